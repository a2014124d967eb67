"""The other side of a comparison."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate import sides
from prooflops.gate.process import Replicate, Side
from prooflops.history.records import Summary


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("HEAD", "both sides are the same"),
        (".", "both sides are the same"),
        (sys.executable, "both sides are the same"),
        ("no-such", "no folder, no interpreter, and no revision of this repository"),
    ],
)
def test_the_same_side_twice_and_an_unknown_side_are_refused(
    foreign: Path, other: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    with pytest.raises(pytest.UsageError, match=why):
        sides.other_side(other, config(foreign), None)  # type: ignore[arg-type]


def config(root: Path, *arguments: str) -> Any:
    return SimpleNamespace(rootpath=root, args=arguments, invocation_params=SimpleNamespace(dir=root))


def test_a_side_that_ran_the_others_code_is_refused(foreign: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"

    def ran(root: Path, *files: Path, prefix: str = "/usr") -> Replicate:
        return Replicate(
            Side("b", "python", root), {}, prefix, {f"m{i}": str(file) for i, file in enumerate(files)}, [], {}, 1.0
        )

    asked = "--gate-versus ../there"
    ours, theirs = foreign / "work.py", there / "work.py"
    sides.check_origins(ran(there, theirs), ran(foreign, ours), foreign, asked)
    sides.check_origins(ran(there, theirs), ran(foreign), foreign, asked)
    sides.check_origins(ran(there), ran(foreign, ours), foreign, asked)
    sides.check_origins(ran(foreign, ours), ran(foreign, ours, prefix="/other"), foreign, asked)
    (foreign / "a").mkdir()
    (foreign / "b").mkdir()
    sides.check_origins(ran(foreign / "a", foreign / "a" / "m"), ran(foreign / "b", ours), foreign, asked)
    sides.check_origins(ran(there, theirs, ours, prefix=str(foreign)), ran(foreign, ours), foreign, asked)
    for before, after, why in (
        (ran(foreign, ours), ran(foreign, ours), "both sides are the same"),
        (ran(there, theirs, ours), ran(foreign, ours), rf"imported m1 from {ours}, which is the other side's"),
        (ran(there, theirs), ran(foreign, theirs), rf"b \(in {foreign}\) imported m0 from {theirs}"),
        (ran(foreign / "a", foreign / "b" / "m"), ran(foreign / "b"), "imported m0"),
        (ran(there), ran(foreign), f"neither side imported anything from {foreign}"),
    ):
        with pytest.raises(pytest.UsageError, match=f"^{asked}: .*{why}"):
            sides.check_origins(before, after, foreign, asked)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "no revision of this repository, a shallow clone: `git fetch --unshallow`, or `fetch-depth: 0`"),
        ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "no git repository (fatal: detected dubious ownership"),
        ({"PATH": ""}, "no git repository (git is not installed)"),
        ({"GIT_DIR": "/nowhere"}, "no git repository (fatal: not a git repository: '/nowhere')"),
    ],
)
def test_what_hides_a_revision_is_said(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], why: str
) -> None:
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{foreign}", tmp_path / "shallow"], check=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = SimpleNamespace(rootpath=tmp_path / "shallow")
    with pytest.raises(pytest.UsageError) as refused:
        sides.other_side("HEAD~1", config, None)  # type: ignore[arg-type]
    assert why in str(refused.value)


def test_the_packages_of_a_repository_that_are_installed_editable_are_imported_from_each_side(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    for root in (foreign, other):
        (root / "part" / "src").mkdir(parents=True)
        (root / "tests").mkdir()
    (tmp_path / "site").mkdir()
    lines = ["import sys", "# none", str(foreign / "part" / "src"), str(foreign / "gone"), str(tmp_path), "relative"]
    (tmp_path / "site" / "editable.pth").write_text("\n".join(lines))
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path / "site")])
    for root in (foreign, other):
        assert sides.import_paths(root, foreign) == (str(root), str(root / "part" / "src"))
        in_tests = (str(root / "tests"), str(root / "part" / "src"))  # the rootdir is a folder of the repository
        assert sides.import_paths(root / "tests", foreign / "tests") == in_tests


def test_an_extension_that_is_built_here_and_not_in_a_fresh_checkout_is_not_compared_with_other_code(
    foreign: Path, tmp_path: Path
) -> None:
    def ran(root: Path, file: str, *, fresh: bool = False) -> Replicate:
        side = Side("a", "python", root, fresh=fresh)
        return Replicate(side, {}, "/usr", {"fast": str((root / file).resolve())}, [], {}, 1.0)

    now = ran(foreign, "fast.cpython-311.so")
    with pytest.raises(pytest.UsageError, match=r"extension .*fast\.cpython-311\.so, which .*; build a second"):
        sides.check_origins(ran(tmp_path / "b", "fast.py", fresh=True), now, foreign, "--gate-versus HEAD")
    sides.check_origins(ran(tmp_path / "b", "fast.py"), now, foreign, "--gate-versus ../b")  # may be meant
    sides.check_origins(ran(tmp_path / "b", "fast.so", fresh=True), now, foreign, "--gate-versus HEAD")
    other = Side("revision", "python", tmp_path, fresh=True)
    assert not sides.lacking(other, foreign)
    (foreign / ".gitignore").write_text("*.so\n")
    (foreign / "fast.cpython-311.so").write_text("")
    (foreign / ".gitmodules").write_text("")
    assert "no built extensions (fast.cpython-311.so) and no submodules: build" in sides.lacking(other, foreign)
    assert not sides.lacking(Side("checkout", "python", tmp_path), foreign)
    (foreign / "fast.cpython-311.so").unlink()
    (foreign / "site-packages").mkdir()
    (foreign / "site-packages" / "other.so").write_text("")
    build = "build a second checkout and give --gate-versus its folder"
    assert sides.lacking(other, foreign) == f"\nA checkout of a revision has no submodules: {build}"
    (foreign / "tests").mkdir()
    assert "submodules" in sides.lacking(other, foreign / "tests"), "they are the repository's"


def summary(commit: str, *, dirty: bool = False) -> Summary:
    return Summary(Path(), "", "", "", "", commit, {}, {}, dirty=dirty)


def test_a_baseline_is_measured_again_only_where_one_commit_holds_it_that_is_here_and_another(foreign: Path) -> None:
    here = sides.commit_named(foreign, "HEAD") or ""
    absent = "0" * 40
    for then, why in (
        ([summary("")], "not under git"),
        ([summary(here), summary(absent)], "records of 2 commits"),
        ([summary(here, dirty=True)], f"recorded with changes to {here[:9]} that no commit holds"),
        ([summary(absent)], "is not in this repository"),
        ([summary(here)], "recorded at this very commit"),
    ):
        commit, said = sides.commit_of_records(then, foreign)
        assert not commit, then
        assert why in said, f"{said!r}, but should be {why!r}"
    (foreign / "work.py").write_text("STEPS = 1\n")
    assert sides.commit_of_records([summary(here)], foreign) == (here, "")
