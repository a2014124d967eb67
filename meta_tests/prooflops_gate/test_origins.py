"""Both sides ran their own files, or the comparison is refused."""

import json
import subprocess
from pathlib import Path

import pytest

from prooflops_gate.origins import check_origins
from prooflops_gate.task import Pair, Replicate, Side

SAME = "both sides are the same"
ASKED = "--gate-versus HEAD"


def ran(root, *files, prefix="/usr", **named):
    """A process in `root` that loaded these files, some of them by name."""
    modules = {f"m{index}": str(file) for index, file in enumerate(files)}
    modules |= {name: str(file) for name, file in named.items()}
    return Replicate(Side("b", "python", root), {}, prefix, modules, [], {}, 1.0)


def test_a_side_that_ran_the_others_code_is_refused(foreign, tmp_path):
    there = tmp_path / "there"

    asked = "--gate-versus ../there"
    ours, theirs = foreign / "work.py", there / "work.py"
    environment, lib = str(foreign / "env"), foreign / "env" / "lib" / "libssl.so.3"
    a, b = foreign / "a", foreign / "b"
    for folder in (a, b):
        folder.mkdir()
    for before, after in (
        (ran(there, theirs), ran(foreign, ours)),
        (ran(there), ran(foreign, ours)),
        (ran(foreign, ours), ran(foreign, ours, prefix="/other")),
        (ran(a, a / "m"), ran(b, ours)),
        # A library of an interpreter within this checkout, and such an interpreter.
        (ran(there, theirs, lib, prefix=environment), ran(foreign, ours, lib, prefix=environment)),
        (ran(there, theirs, ours, prefix=str(foreign)), ran(foreign, ours)),
    ):
        check_origins(Pair(before, after), foreign, asked)
    for before, after, why in (
        (ran(foreign, ours), ran(foreign, ours), SAME),
        (ran(there, theirs, ours), ran(foreign, ours), f"imported m1 from {ours}, which is the"),
        (ran(there, theirs), ran(foreign, theirs), f"imported m0 from {theirs}"),
        (ran(a, b / "m"), ran(b), "imported m0"),
        (ran(there), ran(foreign), f"neither side imported anything from {foreign}"),
    ):
        with pytest.raises(pytest.UsageError, match=f"^{asked}: .*{why}"):
            check_origins(Pair(before, after), foreign, asked)


class Installed:
    """A folder of the import path, with distributions in it as pip leaves them."""

    def __init__(self, folder):
        self.folder = folder / "site-packages"

    def add(self, name, *files, source=None, is_editable=False):
        """Writes a distribution's metadata; a wheel or a folder is its source."""
        info = self.folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        if source:
            how = {"dir_info": {"editable": True} if is_editable else {}}
            how = how if Path(source).suffix != ".whl" else {"archive_info": {}}
            url = {"url": Path(source).as_uri(), **how}
            (info / "direct_url.json").write_text(json.dumps(url))
        for file in files:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).touch()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    found = Installed(tmp_path)
    monkeypatch.syspath_prepend(found.folder)
    return found


def refusal(root, there, /, **loaded):
    """Why the comparison is refused; empty where it is not."""
    try:
        check_origins(
            Pair(ran(there, there / "t.py", **loaded), ran(root, root / "t.py", **loaded)),
            root,
            ASKED,
        )
    except pytest.UsageError as refused:
        return str(refused)
    return ""


PROJECT = "[project]\nname = 'The_Work'\n"
DECLARED = {
    "pyproject.toml": PROJECT,
    "setup.cfg": "[metadata]\nname = the-work\n",
    "setup.py": "from setuptools import setup\nsetup(\n    name='the.work')\n",
}


@pytest.mark.parametrize("file", DECLARED)
def test_an_installed_copy_of_the_project_is_refused(foreign, tmp_path, installed, file):
    (foreign / file).write_text(DECLARED[file])
    installed.add("the_work", "work/__init__.py", "work/fast.so")
    installed.add("other", "other/__init__.py")
    loaded = installed.folder / "work" / "__init__.py"
    why = refusal(foreign, tmp_path / "there", work=loaded)
    assert why.startswith(f"{ASKED}: b (in {tmp_path / 'there'}) loaded {loaded}, a build of this ")
    assert "pip install -e" in why
    assert refusal(foreign, tmp_path / "there", other=installed.folder / "other/__init__.py") == ""


def commit(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    subprocess.run(["git", "add", *files], cwd=root, check=True)


@pytest.mark.parametrize(
    ("name", "source", "is_refused"),
    [
        ("part", "packages/part", True),
        ("part", "../dist/part-1.0.whl", True),
        ("part", None, True),
        ("unnamed", "packages/unnamed", True),
        ("other", "vendor/other-1.0.whl", False),
        ("other", "../elsewhere", False),
        ("copied", None, False),
    ],
)
def test_what_was_installed_from_the_repository_is_its_own(
    foreign, tmp_path, installed, name, source, is_refused
):
    (foreign / "packages" / "unnamed").mkdir(parents=True)
    for folder in ("packages/part", "vendor/copied"):
        commit(foreign, f"{folder}/pyproject.toml")
        text = f"[project]\nname = '{folder.partition('/')[2]}'\n"
        (foreign / folder / "pyproject.toml").write_text(text)
    installed.add(name, "part.py", source=source and (foreign / source).resolve())
    why = refusal(foreign, tmp_path / "there", part=installed.folder / "part.py")
    assert bool(why) == is_refused, why


def test_an_editable_install_is_refused_for_what_lies_outside_both_sides(
    foreign, tmp_path, installed
):
    (foreign / "pyproject.toml").write_text(PROJECT)
    third, finder = tmp_path / "third", "__editable___the_work_finder.py"
    (third / "lib" / "work").mkdir(parents=True)
    installed.add("the-work", finder, "work/fast.so", source=third, is_editable=True)
    there = tmp_path / "there"
    environment = third / ".venv" / "lib" / "site-packages" / "numpy" / "__init__.py"
    assert refusal(foreign, there, finder=installed.folder / finder, numpy=environment) == ""
    assert refusal(foreign, there, fast=installed.folder / "work" / "fast.so")
    assert refusal(foreign, there, work=third / "lib" / "work" / "__init__.py")


def test_a_package_that_no_distribution_has_is_known_by_its_name_in_any_layout(
    foreign, tmp_path, installed
):
    commit(foreign, "python/work/__init__.py", "python/work/part/__init__.py", "vendor/six.py")
    commit(foreign, "vendor/requests/__init__.py")
    installed.add("requests", "requests/__init__.py")
    stage, there = tmp_path / "stage", tmp_path / "there"
    assert refusal(foreign, there, **{"work.fast": stage / "work" / "fast.so"})
    assert refusal(foreign, there, part=stage / "part.py", six=stage / "six.py") == ""
    assert refusal(foreign, there, requests=installed.folder / "requests/__init__.py") == ""


def test_a_library_is_refused_where_it_is_the_others_or_is_built_here(foreign, tmp_path):
    (foreign / ".gitignore").write_text("build\n.venv\n")
    (foreign / "build").mkdir()
    (foreign / "build" / "libwork.so.1.2").touch()
    there, local = tmp_path / "there", Path("/usr/local/lib")
    assert "imported lib from" in refusal(foreign, there, lib=foreign / "build" / "libwork.so.1.2")
    why = refusal(foreign, there, **{"libwork.so.1": local / "libwork.so.1"})
    assert f"loaded {local / 'libwork.so.1'}, a build of this repository" in why
    assert refusal(foreign, there, **{"libworks.so.1": local / "libworks.so.1"}) == ""
    # An extension of another project that is called like one here.
    assert refusal(foreign, there, work=local / "libwork.so.1") == ""
