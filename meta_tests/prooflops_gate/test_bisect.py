"""The first slow commit of each benchmark, in a repository of six commits, and what cannot be
walked.
"""

import re

import pytest

from meta_tests.prooflops_gate.foreign_repo import (
    INI,
    commit_all,
    run,
    run_git,
    worktrees,
    write_quick_plan,
)
from prooflops_gate import cleanup_process
from prooflops_gate.bisect import checked_good

WORK = """
WORST, OTHER = {worst}, {other}  # {commit}
def busy(steps):
    for i in range(steps):
        i * i
"""
TESTS = """
import work

def test_worst(benchmark):
    benchmark.pedantic(work.busy, args=(work.WORST,), rounds=30, iterations=4)

def test_other(benchmark):
    benchmark.pedantic(work.busy, args=(work.OTHER,), rounds=30, iterations=4)

def test_that_is_no_benchmark():
    raise AssertionError("it is not run")
"""
# Two pairs that agree exclude half of a change.
FEW = """
    from dataclasses import replace
    question.plan_for = lambda *args, **rest: replace(plan(*args, **rest), miss_rate=0.6)
"""
LARGE = ("--gate-min-effect", "90%")


def state(repo):
    return [
        run_git(repo, *words)
        for words in (("bisect", "log"), ("status", "--porcelain"), ("rev-parse", "HEAD"))
    ]


@pytest.fixture
def six_commits(tmp_path):
    """Good, then the worst's slowdown, one that cannot be imported, one without a change, and the
    other's, twice.
    """
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "pytest.ini").write_text(INI)
    (repo / ".gitignore").write_text("__pycache__\n.prooflops\n.benchmarks\n")
    (repo / "test_b.py").write_text(TESTS)
    write_quick_plan(tmp_path / "path", FEW)
    run_git(repo, "init", "-q")
    for commit, (worst, other) in enumerate(
        [(900, 900), (4500, 900), (0, 0), (4500, 900), (4500, 3600), (4500, 3600)]
    ):
        text = WORK.format(worst=worst, other=other, commit=commit)
        (repo / "work.py").write_text(text if worst else "raise ImportError('half a commit')\n")
        commit_all(repo, f"Make change {commit}")
    return repo


@pytest.mark.prove
def test_the_first_slow_commit_is_named_and_the_repository_left_alone(six_commits):
    commits = run_git(
        six_commits, "rev-list", "--reverse", "--abbrev-commit", "--abbrev=9", "HEAD"
    ).split()
    good, worst, broken, _, other, _ = commits
    # One of the user's own, in progress.
    run_git(six_commits, "bisect", "start")
    mine = state(six_commits)

    index = str(six_commits / ".git" / "index")
    done = run(
        six_commits, "--gate-bisect", good, *LARGE, "-k", "worst or other", GIT_INDEX_FILE=index
    )

    assert done.code == 1
    assert "2 failed" in done.output
    for benchmark, commit, change in (("worst", worst, 1), ("other", other, 4)):
        assert f"the first slow commit is {commit} (" in done.output
        assert f"Ada: Make change {change}), for test_b.py::test_{benchmark}:" in done.output
    assert f"  {broken}  skip  it cannot be run: " in done.output
    assert "half a commit" in done.output
    assert f"  {worst}  bad  " in done.output
    assert "git's steps: git bisect start" in done.output
    assert re.search(rf"Bisecting: .* left .*, now {broken} \(", done.output)
    assert re.search(r"2 SLOWER; [45] comparisons in ", done.output)
    assert state(six_commits) == mine
    assert worktrees(six_commits) == 1, "a worktree is left"


def test_nothing_slower_is_said_and_what_cannot_be_walked_is_refused(
    six_commits,
):
    done = run(six_commits, "--gate-bisect", "HEAD~1", "-k", "worst", *LARGE)
    assert done.code == 0
    assert "no benchmark is SLOWER than at revision HEAD~1" in done.output
    run_git(six_commits, "branch", "aside", "HEAD~1")
    run_git(six_commits, "checkout", "-q", "HEAD~2")
    for good, why in (
        ("no-such", "no revision of this repository"),
        ("aside^0", "is not an ancestor of the checked-out commit"),
        ("aside", "merge base with aside (.*) is the checked-out commit"),
        ("HEAD", "is the checked-out commit"),
    ):
        with pytest.raises(pytest.UsageError, match=f"--gate-bisect {re.escape(good)}: .*{why}"):
            checked_good(good, six_commits)
    (six_commits / "work.py").write_text("")
    done = run(six_commits, "--gate-bisect", "HEAD~1")
    assert done.code == 4
    assert "--gate-bisect HEAD~1: files differ from the checked-out commit" in done.output
    with pytest.raises(pytest.UsageError, match="is not a git repository"):
        checked_good("HEAD~1", six_commits.parent)


def test_nothing_is_left_of_a_bisection_that_is_cut_off(six_commits, tmp_path):
    tree = tmp_path / "tree"
    with cleanup_process.running() as register:
        register("worktree", str(six_commits), str(tree))
        run_git(six_commits, "worktree", "add", "-q", "--detach", str(tree))
        run_git(tree, "bisect", "start", "HEAD", "HEAD~5")
    assert not tree.exists()
    assert worktrees(six_commits) == 1
    left = run_git(six_commits, "for-each-ref", "--format=%(refname)").split()
    assert all(name.startswith("refs/heads/") for name in left), left
