"""Finds or makes a Python that can run this repository and prints its path: the first step of every `make` target.

1. The Python that runs this file already has all packages: that Python itself. No venv, no pip, no network.
2. It has torch but not all the rest: `.venv`, which sees its packages, and only what is missing is installed there.
3. It has no torch: `.venv`, apart from its packages, with the versions of constraints.txt.

The torch found is validated as it is, so it is never replaced: a broken or too old one is an error. It is imported to
find out (about a second, which the run then saves, as the files are in memory by then); of the other packages the
metadata are read. Only the standard library is used, as nothing else is there yet.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent
GATE = "prooflops-gate"
STAMP = (
    "made-by-make.json"  # in .venv: from which Python it is made and, once it is complete, of what
)
# Modules whose name is not that of the package with _ for -.
IMPORT_NAMES = {
    "Jinja2": "jinja2",
    "import-linter": "importlinter",
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
}


class SetupError(Exception):
    """What keeps the set-up from being done, and what to do about it."""


@dataclass(frozen=True)
class Requirement:
    """One line of a list of dependencies in pyproject.toml."""

    name: str
    minimum: str

    def __str__(self) -> str:
        return f"{self.name}>={self.minimum}"

    def is_met_by(self, version: str | None) -> bool:
        """Whether `version` is there and late enough; 2.6.0a0+nv25.1, as vendors build it, counts as 2.6."""
        return version is not None and _release(version) >= _release(self.minimum)


@dataclass(frozen=True)
class Interpreter:
    """What a Python says of itself, and the version of each package that it can import."""

    executable: str
    prefix: str
    python: str
    site_folders: list[str]
    packages: dict[str, str]
    torch_error: str = ""

    def lacks(self, needs: list[Requirement]) -> list[Requirement]:
        return [need for need in needs if not need.is_met_by(self.packages.get(need.name))]


@dataclass(frozen=True)
class SetUp:
    """How to come by a Python for the run: as it is, or through .venv."""

    direct: bool
    site_folders: tuple[str, ...] = ()  # of the given Python, to be seen from .venv
    constrained: bool = False  # torch is ours to choose, so install what the project is tested with


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def requirements(*extras: str, repository: Path = REPOSITORY) -> list[Requirement]:
    """The dependencies of the gate and of the suite that apply here, with those of some extras.

    Read line by line, as Python 3.10 has no TOML reader; meta_tests/test_setup_env.py holds this against a real one.
    The gate itself lies in the clone, so it is not among them.
    """
    gate = requirements_in(repository / "prooflops_gate" / "pyproject.toml", ("dependencies",))
    suite = requirements_in(repository / "pyproject.toml", ("dependencies", *extras))
    return [each for each in gate + suite if each.name != GATE]


def requirements_in(file: Path, lists: tuple[str, ...]) -> list[Requirement]:
    """The dependencies that apply here of the named lists in one pyproject.toml."""
    found, current = [], ""
    form = re.compile(r""" +"([\w.-]+)>=([\d.]+)(?:; python_version < '([\d.]+)')?",""")
    for line in file.read_text(encoding="utf-8").splitlines():
        if start := re.fullmatch(r"(\w+) = \[", line):
            current = start[1]
        elif line == "]":
            current = ""
        elif current in lists and not line.lstrip().startswith("#"):
            match = form.match(line)
            if match is None:
                raise SetupError(f'{file}: {line.strip()} should be of the form "name>=version"')
            if not match[3] or sys.version_info[:2] < _release(match[3]):
                found.append(Requirement(match[1], match[2]))
    return found


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def needs_of_a_run(*extras: str, repository: Path = REPOSITORY) -> list[Requirement]:
    """What the suite needs on this machine: its dependencies, extras, and `nvidia` where there is an NVIDIA driver."""
    nvidia = ["nvidia"] if has_nvidia_driver() else []
    return requirements(*nvidia, *extras, repository=repository)


def _self_portrait(names: list[str]) -> Interpreter:
    """The Interpreter that is running this file."""
    packages, torch_error = {}, ""
    for name in names:
        module = IMPORT_NAMES.get(name, name.replace("-", "_"))
        spec = importlib.util.find_spec(module)
        if (
            spec is None or spec.origin is None
        ):  # no origin: an empty folder that an uninstallation left behind
            continue
        try:  # torch by import, because it breaks in ways that no metadata tell: a CUDA library that is not there, say
            packages[name] = (
                __import__("torch").__version__
                if name == "torch"
                else importlib.metadata.version(name)
            )
        except importlib.metadata.PackageNotFoundError:
            continue  # pytest finds its plugins by their metadata, pip its versions: without them it isn't there
        except Exception as error:
            torch_error = f"{type(error).__name__}: {error}"
    folders = [
        path
        for path in sys.path[1:]
        if re.search(r"(site|dist)-packages$", path) and Path(path).is_dir()
    ]
    return Interpreter(
        sys.executable,
        sys.prefix,
        sys.version,
        folders,
        {k: str(v) for k, v in packages.items()},
        torch_error,
    )


def interpreter(python: str, names: list[str]) -> Interpreter:
    """What `python` says of itself, in a process of its own."""
    try:
        answer = subprocess.run(
            [python, __file__, "--probe", *names], capture_output=True, text=True, check=False
        )
        return Interpreter(
            **json.loads(answer.stdout.splitlines()[-1])
        )  # the last line: a torch may print at import
    except OSError as error:
        raise SetupError(f"{python} cannot be started: {error}") from None
    except (IndexError, ValueError):
        end = answer.stderr.strip()[-1000:]
        died = f"{python} did not survive the import of torch (exit status {answer.returncode})"
        raise SetupError(f"{died}: {end}") from None


def plan(given: Interpreter, needs: list[Requirement]) -> SetUp:
    """What to do with a Python that has these packages."""
    if given.torch_error:
        raise SetupError(
            f"the torch of {given.executable} cannot be imported: {given.torch_error}\n"
            "It is left as it is. Repair it, or name another Python: make PYTHON=/path/to/python ..."
        )
    missing = given.lacks(needs)
    if not missing:
        return SetUp(direct=True)
    if "torch" not in given.packages:
        return SetUp(direct=False, constrained=True)
    if "torch" in [need.name for need in missing]:
        raise SetupError(
            f"{given.executable} has torch {given.packages['torch']}, but {missing[0]} is needed, and a torch that is "
            "there is never replaced. Upgrade it, or name another Python: make PYTHON=/path/to/python ... "
            "(one without torch gets its own in .venv)"
        )
    return SetUp(direct=False, site_folders=tuple(given.site_folders))


class Venv:
    """The folder .venv, its Python, and the stamp that tells a finished one from one that was killed half-made."""

    def __init__(self, folder: Path = REPOSITORY / ".venv") -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")

    def stamp(self) -> dict[str, str] | None:
        """Its stamp, or None where `make` did not make it."""
        try:
            return dict(json.loads((self.folder / STAMP).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def write_stamp(self, given: Interpreter, key: str) -> None:
        """`key` is empty from the beginning to the end of any change."""
        self.folder.mkdir(exist_ok=True)
        partial = self.folder / (STAMP + ".partial")
        partial.write_text(json.dumps({"given": given.executable, "key": key}), encoding="utf-8")
        partial.replace(self.folder / STAMP)

    def remove(self) -> None:
        """Delete it, unless it is a working environment that somebody else made."""
        if self.stamp() is None and (self.folder / "pyvenv.cfg").exists():
            raise SetupError(
                f"{self.folder} was not made by `make`, so it is not touched. Delete it, or use it: "
                f"`pip install` the dependencies of pyproject.toml there and run make PYTHON={self.python} ..."
            )
        (self.folder / "pyvenv.cfg").unlink(
            missing_ok=True
        )  # so that a deletion that is killed can be resumed
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def create(self, given: Interpreter, site_folders: tuple[str, ...]) -> None:
        """Make it anew from `given`, seeing the packages in `site_folders`.

        `--system-site-packages` would show those of the base Python, also where `given` is itself an environment.
        """
        self.remove()
        self.write_stamp(given, key="")
        venv = [given.executable, "-m", "venv", str(self.folder)]
        without_pip = [
            *venv,
            "--without-pip",
        ]  # Debian keeps ensurepip apart, in the package python3-venv
        if _run(venv, quiet=True) != 0 and _run(without_pip) != 0:
            raise SetupError(
                f"{given.executable} cannot make a virtual environment; its reason stands above"
            )
        (packages,) = self.folder.glob("lib/python*/site-packages")
        lines = [
            f"import site; site.addsitedir({folder!r})\n" for folder in site_folders
        ]  # so their .pth files count
        (packages / "given-python.pth").write_text("".join(lines), encoding="utf-8")

    def install(
        self, given: Interpreter, needs: list[Requirement], constraints: Path | None
    ) -> None:
        """Install `needs` by pip: its own, or else that of `given`."""
        pip = [self.python, "-m", "pip"]
        if _run([*pip, "--version"], quiet=True) != 0:
            pip = [given.executable, "-m", "pip", "--python", self.python]
        if _run([*pip, "--version"], quiet=True) != 0:
            raise SetupError(
                f"{given.executable} has neither ensurepip nor pip 22.3 or later (Debian: apt install python3-venv)"
            )
        options = ["--disable-pip-version-check", "--no-input"]
        options += ["--constraint", str(constraints)] if constraints else []
        names = [str(need) for need in needs]
        # Python compiles what a run imports, a part of these 9,000 files; pip would compile all, one after another.
        if _run([*pip, "install", "--no-compile", *options, *names]) != 0:
            raise SetupError(
                f"pip could not install {' '.join(names)}; its reason stands above.\n"
                "Without a network, either name a Python that has them (make PYTHON=/path/to/python ...), or fetch "
                "them on a like machine that has one and bring the folder:\n"
                f"  pip download --dest wheels {' '.join(options[2:])} {' '.join(map(repr, names))}\n"
                "  PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels make ..."
            )


def _run(command: list[str], quiet: bool = False) -> int:
    """The exit status of a command; what it prints goes to stderr, as stdout is for the one path."""
    output = subprocess.DEVNULL if quiet else sys.stderr
    environment = {
        **os.environ,
        "PIP_USER": "0",
    }  # some images set it, and a venv has no user folder
    return subprocess.run(
        command, stdout=output, stderr=output, env=environment, check=False
    ).returncode


def _say(message: str) -> None:
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def _key(given: Interpreter, needs: list[Requirement], constraints: Path) -> str:
    """What .venv is made of: it is current as long as this stays the same."""
    parts = [
        given.prefix,
        given.python,
        given.site_folders,
        given.packages.get("torch"),
        [str(need) for need in needs],
    ]
    return hashlib.sha256(json.dumps(parts).encode() + constraints.read_bytes()).hexdigest()


def ready_python(python: str, *extras: str, repository: Path = REPOSITORY) -> str:
    """The Python to run with, made ready where it is not."""
    needs = needs_of_a_run(*extras, repository=repository)
    names = [need.name for need in needs]
    constraints = repository / "constraints.txt"
    venv = Venv(repository / ".venv")
    stamp = venv.stamp() or {}

    given = interpreter(python, names)
    if stamp and Path(given.prefix).resolve() == venv.folder:
        given = interpreter(
            stamp["given"], names
        )  # .venv is activated: go by the Python that it was made from
    way = plan(given, needs)
    if way.direct:
        _say(f"{given.executable} has all packages that are needed, so nothing is installed")
        return given.executable

    key = _key(given, requirements("nvidia", repository=repository), constraints)
    if stamp.get("key") != key:
        _say(
            f"making {venv.folder} from {given.executable}"
            + (", whose torch it uses" if way.site_folders else "")
        )
        venv.create(given, way.site_folders)
    if missing := interpreter(venv.python, names).lacks(needs):
        _say(f"installing {', '.join(need.name for need in missing)} in {venv.folder}")
        venv.write_stamp(given, key="")
        venv.install(given, missing, constraints if way.constrained else None)
        made = interpreter(venv.python, names)
        if made.torch_error or made.lacks(needs):
            raise SetupError(
                f"{venv.python} still lacks packages: {made.torch_error or made.lacks(needs)}"
            )
    venv.write_stamp(given, key)
    return venv.python


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dev", action="store_true", help="with the tools of `make lint`")
    parser.add_argument(
        "--probe", nargs="*", metavar="PACKAGE", help="print what this Python has, as JSON"
    )
    options = parser.parse_args(arguments)
    if options.probe is not None:
        print(json.dumps(asdict(_self_portrait(options.probe))))
        return 0
    try:
        print(ready_python(sys.executable, *(["dev"] if options.dev else [])))
    except SetupError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
