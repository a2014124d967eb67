"""The other side of a comparison."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prooflops.gate import sides
from prooflops.gate.processes import Replicate, Side
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
    config = SimpleNamespace(rootpath=foreign, invocation_params=SimpleNamespace(args=[f"--gate-versus={other}"]))
    with pytest.raises(pytest.UsageError, match=why):
        sides.other_side(other, config, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "no revision of this repository, a shallow clone: `git fetch --unshallow`, or `fetch-depth: 0`"),
        ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "no git repository (fatal: detected dubious ownership"),
        ({"PATH": ""}, "no git repository (git is not installed)"),
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
        return Replicate(side, {}, "/usr", {"fast": str((root / file).resolve())}, [])

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
