"""The other side of a comparison."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from meta_tests.prooflops_gate.foreign_repo import run_git
from prooflops_gate import sides
from prooflops_gate.revision import Revision
from prooflops_gate.task import Side

SAME = "both sides are the same"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("HEAD", SAME),
        (".", SAME),
        (sys.executable, SAME),
        ("no-such", "no folder, no interpreter, and no revision"),
    ],
)
def test_the_same_side_twice_and_an_unknown_side_are_refused(foreign, other, why, monkeypatch):
    monkeypatch.chdir(foreign)
    with pytest.raises(pytest.UsageError, match=why):
        sides.other_side(other, config(foreign), None)  # type: ignore[arg-type]


def config(root, *arguments):
    return SimpleNamespace(
        rootpath=root, args=arguments, invocation_params=SimpleNamespace(dir=root)
    )


def test_a_checkout_has_what_a_build_wrote_beside_tracked_files(foreign, tmp_path):
    (foreign / ".gitignore").write_text("version.py\nenv/\n")
    for root in (foreign, tmp_path / "tree"):
        (root / "env").mkdir(parents=True)
    for name in ("version.py", "env/more.py"):
        (foreign / name).touch()
    tree = SimpleNamespace(worktree=lambda top, commit: tmp_path / "tree")
    label = sides.checkout(Revision("HEAD", "HEAD"), foreign, tree).label
    assert "with version.py as this side has it" in label
    assert {each.name for each in (tmp_path / "tree").rglob("*")} == {"env", "version.py"}


MISSING = [
    ("FileNotFoundError: [Errno 2] No such file or directory: 'data/in.bin'", "data/in.bin"),
    ("FileNotFoundError: data/in.bin not found.", "data/in.bin"),
    ("OSError: ./libwork.so: cannot open shared object file: No such file", "libwork.so"),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '{there}/data/in.bin'",
        "data/in.bin",
    ),
    ("unable to open file (name = 'data/große Tabelle.h5', errno = 2)", "data/große Tabelle.h5"),
    ('assert False + where False = exists("data")', "data"),
    ("ModuleNotFoundError: No module named 'work._fast'", "built extensions (libwork.so)"),
    ("No such file or directory: 'new.py'", "built extensions (libwork.so)"),
]


@pytest.mark.parametrize(("failure", "named"), MISSING)
def test_what_git_does_not_track_is_named_where_a_failure_names_it(
    foreign, tmp_path, failure, named
):
    (foreign / ".gitignore").write_text("data\n*.so\n")
    (foreign / "data").mkdir()
    for name in ("libwork.so", "new.py", "data/in.bin", "data/große Tabelle.h5"):
        (foreign / name).touch()
    run_git(foreign, "add", "-A")
    there = tmp_path / "there"
    there.mkdir()
    other = Side("b", "python", there, fresh=True)
    said = sides.lacking(other, foreign, failure.format(there=there))
    assert said.startswith(f"A checkout of a revision has no {named}"), said
    assert said.endswith("prepare a second checkout and give --gate-versus its folder")
    assert not sides.lacking(replace(other, fresh=False), foreign, failure)


def test_editable_packages_are_imported_from_each_side(foreign, tmp_path, monkeypatch):
    other = tmp_path / "other"
    for root in (foreign, other):
        (root / "part" / "src").mkdir(parents=True)
        (root / "tests").mkdir()
    (tmp_path / "site").mkdir()
    lines = [
        "import sys",
        "# none",
        str(foreign / "part" / "src"),
        str(foreign / "gone"),
        str(tmp_path),
        "relative",
    ]
    (tmp_path / "site" / "editable.pth").write_text("\n".join(lines))
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path / "site")])
    for root in (foreign, other):
        assert sides.import_paths(root, foreign) == (str(root), str(root / "part" / "src"))
        # The rootdir is a folder of the repository.
        in_tests = (
            str(root / "tests"),
            str(root / "part" / "src"),
        )
        assert sides.import_paths(root / "tests", foreign / "tests") == in_tests
