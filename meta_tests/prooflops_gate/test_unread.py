"""Whether a file in which two sides differ was opened, by the kernel's own word."""

import subprocess
from contextlib import closing
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


def pair_of(here, other, imported="work.py"):
    """A pair whose processes imported one file each."""
    return Pair(
        *(
            SimpleNamespace(side=side, modules={"work": f"{side.root}/{imported}"})
            for side in (other, here)
        )
    )


def in_c(side, name):
    subprocess.run(["cat", side.root / name], check=True, stdout=subprocess.DEVNULL)


def in_python(side, name):
    (side.root / name).read_text()


def by_listing(side, name):
    list((side.root / name).parent.iterdir())


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("read", [in_c, in_python])
def test_a_file_that_differs_and_is_opened_on_either_side_is_seen(sides, read, which):
    here, other = sides
    (here.root / DOCUMENT).write_text("more")
    with closing(Unread(here, other)) as unread:
        # As long as the sides are alike there.
        read(sides[which], DATA)
        assert unread.explains(pair_of(here, other)) == (
            "no process opened a file that differs (1 file)"
        )
        read(sides[which], DOCUMENT)
        assert not unread.explains(pair_of(here, other))


def test_a_file_of_one_side_is_found_by_listing_its_folder(sides):
    here, other = sides
    (here.root / "text/new").write_text("more")
    (here.root / DATA).unlink()
    for side, name in ((here, DATA), (other, DOCUMENT)):
        with closing(Unread(here, other)) as unread:
            assert unread.explains(pair_of(here, other))
            by_listing(side, name)
            assert not unread.explains(pair_of(here, other))


def test_an_imported_file_that_differs_needs_measuring_though_its_bytecode_was_read(sides):
    here, other = sides
    (here.root / "work.py").write_text("x = 2\n")
    with closing(Unread(here, other)) as unread:
        assert not unread.explains(pair_of(here, other))


def test_another_checkout_explains_nothing(sides):
    here, other = sides
    with closing(Unread(here, Side("other", "python", other.root))) as unread:
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
    assert done.code == 0, done.output
    assert "SAME: no process opened a file that differs (1 file)" in done.output
    assert "; 1 pair in " in done.output
    content = valid_json(written)
    assert {row["decided_by"] for row in content["rows"]} == {"files"}
