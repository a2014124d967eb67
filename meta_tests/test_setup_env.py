"""The set-up that `make` does: which Python is run, and what is installed where.

No network and no real package: the given Pythons are empty virtual environments with stubs in them, and pip is a
stand-in that puts stubs where pip would put packages.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import setup_env
from setup_env import SetupError, Venv, ready_python, requirements

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(setup_env.__file__).parent
ALL = {need.name: need.minimum for need in requirements("suite", "nvidia")}  # where there is an NVIDIA driver


def put_package(folder, name, version, source=""):
    """A package of one module without content, with the metadata by which pip and pytest find it."""
    module = folder / setup_env.IMPORT_NAMES.get(name, name.replace("-", "_"))
    module.mkdir(parents=True, exist_ok=True)
    # A .pyc is told from its source by the second and the size, and both may be those of the version before.
    shutil.rmtree(module / "__pycache__", ignore_errors=True)
    (module / "__init__.py").write_text(f"__version__ = {version!r}\n{source}\n")
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def packages_of(folder):
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def answer_of(python, code):
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def version_or_none(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@pytest.fixture
def given(tmp_path):
    """Makes a virtual environment with these packages and returns its Python."""

    def make(**versions):
        folder = tmp_path / "given"
        venv.create(folder, symlinks=True)
        for name, version in versions.items():
            put_package(packages_of(folder), name, version)
        return str(folder / "bin" / "python")

    return make


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder)
    return folder


@pytest.fixture
def installs(monkeypatch):
    """The `pip install` commands given, each of which puts stubs into the environment; venvs are made without pip."""
    commands = []

    def run(command, quiet=False):
        if "venv" in command:
            assert command[:3] == [command[0], "-m", "venv"], "the given Python makes it"
            venv.create(command[3], symlinks=True)  # as that does, from the same base, without a process of its own
            return 0
        if "install" in command:
            commands.append(command)
            for requirement in [word for word in command if ">=" in word]:
                put_package(packages_of(Path(command[0]).parent.parent), *requirement.split(">="))
        return 0

    monkeypatch.setattr(setup_env, "_run", run)
    monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: True)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # or the stand-ins see more than their stubs
    return commands


def names_in(command):
    return {word.split(">=")[0] for word in command if ">=" in word}


class TestWhichPythonIsRun:
    def test_one_that_has_all_packages_is_run_as_it_is(self, given, repository, installs):
        python = given(**ALL)
        assert ready_python(python, repository=repository) == python
        assert not installs, f"installed {installs}, but should have installed nothing"
        assert not (repository / ".venv").exists(), "made a .venv that nobody needs"

    def test_its_torch_may_be_a_build_of_the_vendor(self, given, repository, installs):
        python = given(**{**ALL, "torch": "2.6.0a0+ecf3bae40a.nv25.01"})
        assert ready_python(python, repository=repository) == python

    def test_one_without_torch_stays_apart_and_the_tested_versions_are_installed(self, given, repository, installs):
        versions = {name: version for name, version in ALL.items() if name != "torch"}
        python = ready_python(given(**versions), repository=repository)
        assert python == str(repository / ".venv/bin/python")
        (command,) = installs
        assert names_in(command) == set(ALL), "the .venv should see none of the given Python's packages"
        assert command[command.index("--constraint") + 1] == str(repository / "constraints.txt")

    def test_one_with_torch_is_seen_from_the_venv_and_only_the_rest_is_installed(self, given, repository, installs):
        python = ready_python(given(torch="2.11.0", numpy="1.26.4", pytest="7.4"), repository=repository)
        (command,) = installs
        assert names_in(command) == set(ALL) - {"torch", "numpy"}, "pytest 7.4 is too old, torch and numpy are there"
        assert "--constraint" not in command, "a torch that is not ours decides which versions go with it"
        seen = answer_of(
            python, "import torch, numpy, pytest; print(torch.__version__, numpy.__version__, pytest.__file__)"
        )
        assert seen.startswith(f"2.11.0 1.26.4 {repository}"), (
            "torch and numpy from the given Python, pytest from .venv"
        )

    def test_a_torch_in_development_mode_is_seen_too(self, given, repository, installs, tmp_path):
        python = given()
        put_package(tmp_path / "checkout", "torch", "2.12.0")
        (packages_of(tmp_path / "given") / "editable.pth").write_text(f"{tmp_path / 'checkout'}\n")
        ready = ready_python(python, repository=repository)
        assert answer_of(ready, "import torch; print(torch.__version__)") == "2.12.0"

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("raise ImportError('libcudart.so.12: no such file')", "libcudart.so.12: no such file"),
            ("import os; os.abort()", "did not survive the import of torch"),
        ],
    )
    def test_a_broken_torch_is_an_error_and_left_as_it_is(self, given, repository, installs, tmp_path, source, message):
        python = given(**ALL)
        put_package(packages_of(tmp_path / "given"), "torch", "2.11.0", source)
        with pytest.raises(SetupError, match=message):
            ready_python(python, repository=repository)
        assert not installs

    def test_a_torch_that_is_too_old_is_an_error_and_not_replaced(self, given, repository, installs):
        with pytest.raises(SetupError, match=r"has torch 2\.5\.1, but torch>=2\.6 is needed"):
            ready_python(given(**{**ALL, "torch": "2.5.1"}), repository=repository)
        assert not installs

    def test_a_folder_left_behind_by_an_uninstallation_is_no_package(self, given, repository, installs, tmp_path):
        python = given(**{name: version for name, version in ALL.items() if name != "torch"})
        (packages_of(tmp_path / "given") / "torch" / "lib").mkdir(parents=True)
        ready_python(python, repository=repository)
        assert "torch" in names_in(installs[0])

    def test_nvidias_library_is_asked_for_only_with_nvidias_driver(self, given, repository, installs, monkeypatch):
        python = given(**{name: version for name, version in ALL.items() if name != "nvidia-ml-py"})
        monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: False)
        assert ready_python(python, repository=repository) == python
        monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: True)
        ready_python(python, repository=repository)
        assert names_in(installs[0]) == {"nvidia-ml-py"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


class TestWhenTheVenvIsMadeAnew:
    @pytest.fixture
    def tmp_path(self, place):
        """The same for each test, as paths stand in what `python` copies."""
        shutil.rmtree(place / "test", ignore_errors=True)
        (place / "test").mkdir()
        return place / "test"

    @pytest.fixture
    def python(self, place, tmp_path, given, repository, installs):
        """A given Python with torch, for which .venv has been made; once, as that takes five processes."""
        if not (place / "made").exists():
            ready_python(given(torch="2.11.0"), repository=repository)
            (repository / ".venv" / "left").touch()
            shutil.copytree(tmp_path, place / "made", symlinks=True)
        else:
            shutil.copytree(place / "made", tmp_path, symlinks=True, dirs_exist_ok=True)
        installs.clear()
        return str(tmp_path / "given" / "bin" / "python")

    @staticmethod
    def was_kept(repository):
        return (repository / ".venv" / "left").exists()

    def test_a_current_one_is_used_again(self, python, repository, installs):
        ready_python(python, repository=repository)
        assert self.was_kept(repository)
        assert not installs

    def test_a_current_one_gets_the_tools_for_lint_besides(self, python, repository, installs):
        ready_python(python, "dev", repository=repository)
        assert self.was_kept(repository)
        assert names_in(installs[0]) == {need.name for need in requirements("dev")} - set(ALL)

    def test_one_that_is_activated_goes_by_the_python_it_was_made_from(self, python, repository, installs):
        shutil.rmtree(packages_of(repository / ".venv") / "einops")
        ready_python(str(repository / ".venv/bin/python"), repository=repository)
        assert self.was_kept(repository)
        assert names_in(installs[0]) == {"einops"}

    def test_one_that_was_killed_half_made_is_redone(self, python, repository, installs, monkeypatch):
        def killed(*arguments):
            raise KeyboardInterrupt

        shutil.rmtree(packages_of(repository / ".venv") / "einops")
        with monkeypatch.context() as patch:
            patch.setattr(Venv, "install", killed)
            with pytest.raises(KeyboardInterrupt):
                ready_python(python, repository=repository)
        ready_python(python, repository=repository)
        assert not self.was_kept(repository)

    def test_a_deletion_that_was_killed_is_resumed(self, python, repository, installs, monkeypatch):
        def killed(folder):
            (folder / setup_env.STAMP).unlink()
            raise KeyboardInterrupt

        Venv(repository / ".venv").write_stamp(setup_env.interpreter(python, []), key="of something else")
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                ready_python(python, repository=repository)
        ready_python(python, repository=repository)
        assert not self.was_kept(repository)

    def test_another_torch_in_the_given_python_makes_it_anew(self, python, repository, installs, tmp_path):
        packages = packages_of(tmp_path / "given")
        shutil.rmtree(packages / "torch-2.11.0.dist-info")
        put_package(packages, "torch", "2.12.0")
        ready_python(python, repository=repository)
        assert not self.was_kept(repository)

    @pytest.mark.parametrize(
        ("file", "old", "new"),
        [("constraints.txt", "torch==", "torch==9"), ("pyproject.toml", "einops>=", "einops>=9")],
    )
    def test_other_versions_in_the_repository_make_it_anew(self, python, repository, installs, file, old, new):
        text = (repository / file).read_text()
        (repository / file).write_text(text.replace(old, new, 1))
        ready_python(python, repository=repository)
        assert not self.was_kept(repository)

    def test_other_settings_of_ruff_do_not(self, python, repository, installs):
        text = (repository / "pyproject.toml").read_text()
        (repository / "pyproject.toml").write_text(text.replace("line-length = 120", "line-length = 121"))
        ready_python(python, repository=repository)
        assert self.was_kept(repository)

    def test_one_that_somebody_else_made_is_not_touched(self, python, repository, installs):
        (repository / ".venv" / setup_env.STAMP).unlink()
        with pytest.raises(SetupError, match="was not made by `make`"):
            ready_python(python, repository=repository)
        assert self.was_kept(repository)


class TestWhatPipIsTold:
    def test_where_it_fails_the_error_says_what_to_do_without_a_network(self, given, repository, monkeypatch):
        python = setup_env.interpreter(given(), [])
        einops = [need for need in requirements("suite") if need.name == "einops"]
        monkeypatch.setattr(setup_env, "_run", lambda command, quiet=False: int("install" in command))
        with pytest.raises(SetupError, match=r"(?s)could not install einops>=.*Without a network.*PIP_NO_INDEX=1"):
            Venv(repository / ".venv").install(python, einops, None)

    def test_the_given_pythons_pip_installs_where_the_venv_has_none(self, given, repository, monkeypatch):
        commands = []

        def run(command, quiet=False):
            commands.append(command)
            return int(command[0].startswith(str(repository)))  # the .venv's own fails

        monkeypatch.setattr(setup_env, "_run", run)
        python = given()
        Venv(repository / ".venv").install(setup_env.interpreter(python, []), requirements(), None)
        assert commands[-1][:5] == [python, "-m", "pip", "--python", str(repository / ".venv/bin/python")]
        assert "install" in commands[-1]
        assert "--no-compile" in commands[-1], "pip compiles 9,000 files, of which a run imports a part"

    def test_the_constraints_pin_torch_first_and_everything_that_is_asked_for(self):
        lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
        pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
        assert pins[0].name == "torch"
        assert pins[0].marker is None, "a torch without a pin drags in gigabytes of CUDA"
        for pin in pins:
            assert re.fullmatch(r"==[\d.]+", str(pin.specifier)), f"{pin} is not one version"
        asked = {need.name for need in requirements("suite", "nvidia", "dev")} - {"tomli"}
        assert asked <= {pin.name for pin in pins}, "tested versions are not said for all that is asked for"

    @pytest.mark.parametrize("name", ["Makefile", "pyproject.toml", "constraints.txt", "setup_env.py", ".ci/run"])
    def test_no_file_says_where_packages_are_fetched(self, name):
        found = re.findall(r".*(?:://|index-url|find-links|trusted-host).*", (REPOSITORY / name).read_text())
        assert not found, f"{name} names a host or an index, but pip's own settings should decide: {found}"


class TestDependencies:
    @pytest.mark.parametrize("extras", [(), ("suite",), ("suite", "nvidia", "dev")])
    def test_they_are_read_as_a_toml_reader_reads_them(self, extras):
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        listed = sum((project["optional-dependencies"][extra] for extra in extras), project["dependencies"])
        applicable = [Requirement(line) for line in listed]
        expected = [
            f"{need.name}{need.specifier}" for need in applicable if need.marker is None or need.marker.evaluate()
        ]
        assert [str(need) for need in requirements(*extras)] == expected

    def test_the_core_is_what_the_gate_needs(self):
        assert {need.name for need in requirements()} == {"pytest", "pytest-benchmark", "numpy", "scipy"}

    def test_a_line_of_another_form_is_refused(self, repository):
        text = (repository / "pyproject.toml").read_text()
        (repository / "pyproject.toml").write_text(text.replace("numpy>=", "numpy~="))
        with pytest.raises(SetupError, match=r'"numpy~=.* should be of the form'):
            requirements(repository=repository)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
class TestMake:
    def make(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        environment["READY_PYTHON"] = "/no/python"  # which a make that runs these tests puts there
        return subprocess.run(
            ["make", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False, env=environment
        )

    def test_too_old_a_python_is_refused_before_it_reads_anything(self, tmp_path):
        old = tmp_path / "python2.7"
        pretence = "import sys; sys.version_info = (2, 7); sys.version = '2.7.18 (old)'; exec(sys.argv[1])"
        old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretence}" "$2"\n')
        old.chmod(0o755)
        answer = self.make("validate", f"PYTHON={old}")
        assert answer.returncode != 0
        assert "needs Python 3.10 or later, but" in answer.stderr
        assert "is 2.7.18; name another" in answer.stderr

    def test_a_python_that_has_all_packages_runs_pytest(self):
        needs = setup_env.needs_of_a_run()
        if lacking := [need for need in needs if not need.is_met_by(version_or_none(need.name))]:
            pytest.skip(f"this Python lacks {lacking}, which would be installed")
        answer = self.make("validate", f"PYTHON={sys.executable}", "ARGS=--version")
        assert answer.returncode == 0, answer.stderr
        assert "installing" not in answer.stderr
        assert f"pytest {pytest.__version__}" in answer.stdout + answer.stderr

    def test_all_parts_of_make_test_run_side_by_side_even_if_each_fails(self, tmp_path):
        python, log = tmp_path / "python", tmp_path / "log"
        python.write_text(
            f"""#!/bin/sh
case "$1" in
    -c) ;;
    setup_env.py) echo "$0" ;;
    *) echo "began $*" >> {log}; sleep 0.5; echo "ended $*" >> {log}; echo "said $*"; exit 1 ;;
esac
"""
        )
        python.chmod(0o755)
        answer = self.make("test", f"PYTHON={python}")
        assert answer.returncode == 2, answer.stdout + answer.stderr
        for part in ("ruff", "test_claims", "meta_tests/test_faults.py", "meta_tests/prooflops", "meta_tests --ignore"):
            assert re.search(rf"said .*{part}", answer.stdout), f"{part} did not run, or its output is lost"
        if len(os.sched_getaffinity(0)) > 1:
            assert "began" in log.read_text().splitlines()[1], "the parts ran one after the other"

    def test_each_folder_of_the_own_tests_is_run_by_one_part_of_make_test(self):
        commands = self.make("--dry-run", "test", f"READY_PYTHON={sys.executable}").stdout
        alone = re.findall(r"'\*\.md' meta_tests/([\w/.]+)", commands)
        left_out = re.findall(r"--ignore=meta_tests/([\w/.]+)", commands)
        assert sorted(alone) == sorted(left_out), "what one part leaves out is what others run"
        assert all((REPOSITORY / "meta_tests" / name).exists() for name in alone), alone

    def test_warnings_are_errors_in_make_test_only(self):
        assert "-W error" in self.make("--dry-run", "test", f"READY_PYTHON={sys.executable}").stdout
        assert "-W" not in self.make("--dry-run", "validate", f"PYTHON={sys.executable}").stdout
        assert "filterwarnings" not in (REPOSITORY / "pytest.ini").read_text()
