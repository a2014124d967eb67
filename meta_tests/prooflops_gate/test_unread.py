"""Whether a file in which two sides differ was opened, by the kernel's own word."""

import subprocess
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from meta_tests.prooflops_gate.foreign_repo import commit_all, run, run_git, valid_json
from prooflops_gate.task import Pair, Side
from prooflops_gate.unread import Unread

DOCUMENT, DATA = "text/guide", "data/words.txt"


@pytest.fixture
def sides(tmp_path):
    """A checkout whose document and data differ from those of its commit, and that commit."""
    here, other = tmp_path / "here", tmp_path / "other"
    for name in (DOCUMENT, DATA, "work.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x = 1\n")
    run_git(tmp_path, "init", "-q", "here")
    commit_all(here)
    run_git(here, "worktree", "add", "-q", "--detach", str(other))
    return Side("this side", "python", here), Side("other", "python", other, fresh=True)


def pair_of(here, other):
    """A pair whose processes imported one file each."""
    return Pair(
        *(
            SimpleNamespace(side=side, modules={"work": f"{side.root}/work.py"})
            for side in (other, here)
        )
    )


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_differs_and_a_program_opens_on_either_side_is_seen(sides, which):
    here, other = sides
    root = sides[which].root
    (here.root / DOCUMENT).write_text("more")
    with closing(Unread(here, other)) as unread:
        # As long as the sides are alike there.
        subprocess.run(["cat", root / DATA], check=True)
        assert unread.explains(pair_of(here, other)) == (
            "no process opened a file that differs (1 file)"
        )
        subprocess.run(["cat", root / DOCUMENT], check=True)
        assert not unread.explains(pair_of(here, other))


def test_a_file_of_one_side_is_found_by_listing_its_folder(sides):
    here, other = sides
    (here.root / "text/new").write_text("more")
    (here.root / DATA).unlink()
    for side, name in ((here, DATA), (other, DOCUMENT)):
        with closing(Unread(here, other)) as unread:
            assert unread.explains(pair_of(here, other))
            list((side.root / name).parent.iterdir())
            assert not unread.explains(pair_of(here, other))


@pytest.mark.parametrize(("changed", "fresh"), [("work.py", True), (DOCUMENT, False)])
def test_an_imported_file_that_differs_and_another_checkout_need_measuring(sides, changed, fresh):
    here, other = sides
    (here.root / changed).write_text("x = 2\n")
    with closing(Unread(here, replace(other, fresh=fresh))) as unread:
        assert not unread.explains(pair_of(here, other))


def test_a_commit_of_documents_takes_one_pair(foreign, tmp_path):
    (foreign / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p benchmark\n")
    (foreign / "guide").mkdir()
    (foreign / "guide" / "use.md").write_text("How to use it.\n")
    commit_all(foreign)
    (foreign / "guide" / "use.md").write_text("How not to use it.\n")
    written = tmp_path / "gate.json"
    options = ("--gate", "--gate-versus", "HEAD", f"--gate-json={written}")
    done = run(foreign, "test_foreign.py", *options)
    assert done.code == 0
    assert "SAME: no process opened a file that differs (1 file)" in done.output
    assert "; 1 pair in " in done.output
    content = valid_json(written)
    assert {row["decided_by"] for row in content["rows"]} == {"files"}
