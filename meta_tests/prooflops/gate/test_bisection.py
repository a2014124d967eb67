"""The first slow commit of each benchmark, in a repository of six commits, and what cannot be walked."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meta_tests.prooflops.gate.foreign_repo import INI, QUICK, run, worktrees
from meta_tests.prooflops.gate.without_processes import A, B, C, Processes, measurement
from prooflops.gate import cleanup_process
from prooflops.gate.bisection import LEVEL, LOOKS, Bisection, HalfwayRule, Step, bisect, checked_good
from prooflops.gate.decisions import look_at
from prooflops.gate.processes import Replicate, Side, environment_of_git
from prooflops.history.records import Timed
from prooflops.statistics.plan import Plan

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
D = "test_b.py::test_d"
LARGE = ("--gate-min-effect", "90%")
FEW = "    from prooflops.gate import bisection\n    bisection.LOOKS, bisection.LEVEL = (2, 6), 0.3\n"


def git(repo: Path, *words: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=repo, env=environment_of_git(), check=True, capture_output=True, text=True
    )
    return done.stdout


def state(repo: Path) -> list[str]:
    return [git(repo, *words) for words in (("bisect", "log"), ("status", "--porcelain"), ("rev-parse", "HEAD"))]


@pytest.fixture
def six_commits(tmp_path: Path) -> Path:
    """Good, then the worst's slowdown, one that cannot be imported, one without a change, and the other's, twice."""
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "pytest.ini").write_text(INI)
    (repo / ".gitignore").write_text("__pycache__\n.prooflops\n.benchmarks\n")
    (repo / "test_b.py").write_text(TESTS)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "quick_plan.py").write_text(QUICK + FEW)
    git(repo, "init", "-q")
    for commit, (worst, other) in enumerate([(900, 900), (4500, 900), (0, 0), (4500, 900), (4500, 3600), (4500, 3600)]):
        text = WORK.format(worst=worst, other=other, commit=commit)
        (repo / "work.py").write_text(text if worst else "raise ImportError('half a commit')\n")
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", f"Make change {commit}")
    return repo


class Walk(Processes):
    """Processes that take as long as `SECONDS` says of each commit, and leave files behind; the worktrees are real."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.commits = git(repo, "rev-list", "--reverse", "HEAD").split()
        super().__init__(self.times)
        self.broken = {f"commit {self.commits[2][:9]}"}
        self.folder, self.clean = folder, True

    def times(self, label: str) -> dict[str, float]:
        (commit,) = [number for number, commit in enumerate(self.commits) if commit[:9] in label] or [5]
        return {name: seconds[commit] for name, seconds in SECONDS.items() if seconds[commit]}

    def worktree(self, repository: Path, revision: str) -> Path:
        path = self.folder / f"tree-{len(list(self.folder.iterdir()))}"
        git(repository, "worktree", "add", "-q", "--detach", str(path), revision)
        return path

    def run(self, side: Side, *words: Any, **named: Any) -> Replicate:
        if side.label.startswith("commit "):
            head = git(side.root, "rev-parse", "--short=9", "HEAD").strip()
            left = side.root / "__pycache__"
            again = side.label in (each.side.label for each in self.asked)
            self.clean &= side.label == f"commit {head}" and left.exists() == again
            (side.root / "work.py").write_text("changed by a test")
            left.mkdir(exist_ok=True)
        return super().run(side, *words, **named)


SECONDS: dict[str, list[Any]] = {  # None: that commit lacks it
    A: [1.0, 5.0, 5.0, 5.0, 5.0, 5.0],
    B: [1.0, 1.0, 1.0, 1.0, 4.0, 4.0],
    C: [1.0, 1.0, 1.0, 1.0, 3.0, 3.0],
    D: [1.0, None, 1.0, 2.0, (1.0, 2.0), 2.0],
}


def test_a_commit_that_cannot_be_decided_is_passed_over_and_several_may_be_the_first(
    six_commits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trees").mkdir()
    walk = Walk(six_commits, tmp_path / "trees")
    found: Any = measurement(six_commits, walk, "test_b.py")
    git(six_commits, "bisect", "start")
    mine = state(six_commits)
    monkeypatch.setenv("GIT_INDEX_FILE", str(six_commits / ".git" / "index"))
    began = time.monotonic()
    bisect(found, [A, B, C, D], "HEAD~5")
    assert found.begun > began, "each commit has the whole budget"
    assert walk.clean
    assert walk.asked[2].side.paths == (str(six_commits),), "both sides import from their own folder first"
    first, broken, third, fourth, last = (commit[:9] for commit in walk.commits[1:])
    assert [line.split(" (")[0] + line.split(")")[1] for line in found.said[2:]] == [
        f"commit {broken}: 4 benchmarks", f"commit {third}: 4 benchmarks", f"commit {first}: 4 benchmarks",
        f"commit {fourth}: 3 benchmarks",
    ]  # fmt: skip
    lines = [line for line in found.lines[4:] if not line.startswith("  git bisect log: ")]
    day = git(six_commits, "show", "--no-patch", "--date=short", "--format=%ad", "HEAD").strip()
    ones, more = "(1.000 to 1.000), 8 pairs", {ratio: f"({ratio} to {ratio}" for ratio in ("5.000", "4.000", "2.000")}
    assert lines == [
        f"the first slow commit is {first} ({day}, Ada: Make change 1), for {A}:",
        f"  {first}  bad  5.000 {more['5.000']}), 8 pairs",
        f"  {broken}  skip  it cannot be run: its last line",
        f"  {third}  bad  5.000 {more['5.000']}), 8 pairs",
        f"  {last}  bad  5.000 {more['5.000']}, 99%), 13 pairs",
        f"the first slow commit is {fourth} ({day}, Ada: Make change 4), for {B} and 1 more:",
        f"  {first}  good  1.000 {ones}",
        f"  {broken}  skip  it cannot be run: its last line",
        f"  {third}  good  1.000 {ones}",
        f"  {fourth}  bad  4.000 {more['4.000']}), 8 pairs",
        f"  {last}  bad  4.000 {more['4.000']}, 99%), 13 pairs",
        f"the first slow commit is one of 3, as others could not be decided, for {D}:",
        f"  {first}  skip  the benchmark is not there, or failed",
        f"  {broken}  skip  it cannot be run: its last line",
        f"  {third}  bad  2.000 {more['2.000']}), 8 pairs",
        f"  {fourth}  skip  1.414 (1.000 to 2.000), 32 pairs, not decided",
        f"  {last}  bad  2.000 {more['2.000']}, 99%), 13 pairs",
    ]
    words = [[step.split(" ")[2] for step in line.split("; ")] for line in found.lines if "bisect log: " in line]
    assert words[0] == ["git", "skip", "bad", "bad"], "what git was told"
    notes = {row.name: row.note for row in found.rows}
    assert notes[D] == "the first slow commit is one of 3, as others could not be decided"
    assert notes[C] == notes[B] == f"the first slow commit is {fourth} ({day}, Ada: Make change 4)"
    assert state(six_commits) == mine

    walked = Bisection(found, walk.asked[0].side, "")
    for quantity, name, note in (("time", B, "slow; noisy"), ("flops", B, "noisy"), ("time", A, "noisy")):
        row = replace(found.rows[0], name=name, quantity=quantity, note="noisy")
        assert walked.with_note(row, {B: "slow"}).note == note
    walked.top = six_commits
    walked.steps = {walk.commits[5]: {A: Step("bad")}}
    with pytest.raises(pytest.UsageError, match=f"^--gate-bisect: git neither ends nor goes on from {last} "):
        walked.first_slow(A, [A])
    with pytest.raises(pytest.UsageError, match=r"^--gate-bisect: git rev-parse --verify no-such: fatal: "):
        walked.git("rev-parse", "--verify", "no-such")


@pytest.mark.prove
def test_the_first_slow_commit_of_each_benchmark_is_named_and_the_users_repository_is_left_alone(
    six_commits: Path,
) -> None:
    commits = git(six_commits, "rev-list", "--reverse", "--abbrev-commit", "--abbrev=9", "HEAD").split()
    good, worst, broken, _, other, _ = commits
    git(six_commits, "bisect", "start")  # one of the user's own, in progress
    mine = state(six_commits)

    index = str(six_commits / ".git" / "index")
    done = run(six_commits, "--gate-bisect", good, *LARGE, "-k", "worst or other", GIT_INDEX_FILE=index)

    assert done.code == 1, done.output
    assert "2 failed" in done.output, done.output
    for benchmark, commit, change in (("worst", worst, 1), ("other", other, 4)):
        assert f"the first slow commit is {commit} (" in done.output, done.output
        assert f"Ada: Make change {change}), for test_b.py::test_{benchmark}:" in done.output, done.output
    assert f"  {broken}  skip  it cannot be run: " in done.output, done.output
    assert "half a commit" in done.output, done.output
    assert f"  {worst}  bad  " in done.output, done.output
    assert "git bisect log: git bisect start" in done.output, done.output
    assert state(six_commits) == mine
    assert worktrees(six_commits) == 1, "a worktree is left"


def test_nothing_slower_is_said_and_what_cannot_be_walked_is_refused_before_anything_runs(six_commits: Path) -> None:
    done = run(six_commits, "--gate-bisect", "HEAD~1", "-k", "worst", *LARGE)
    assert done.code == 0, done.output
    assert "no benchmark is SLOWER than at revision HEAD~1" in done.output, done.output
    git(six_commits, "branch", "aside", "HEAD~1")
    git(six_commits, "checkout", "-q", "HEAD~2")
    for good, why in (
        ("no-such", "no revision of this repository"),
        ("aside", "is no ancestor of the commit which is checked out"),
        ("HEAD", "that is the commit which is checked out"),
    ):
        with pytest.raises(pytest.UsageError, match=f"--gate-bisect {good}: .*{why}"):
            checked_good(good, six_commits)
    (six_commits / "work.py").write_text("")
    done = run(six_commits, "--gate-bisect", "HEAD~1")
    assert done.code == 4, done.output
    assert "--gate-bisect HEAD~1: files differ from the commit that is checked out" in done.output, done.output
    with pytest.raises(pytest.UsageError, match="is no git repository"):
        checked_good("HEAD~1", six_commits.parent)


@pytest.mark.parametrize(
    ("ratio", "verdict", "pairs"), [(1.09, "SLOWER", 8), (1.01, "SAME", 8), (1.05, "INCONCLUSIVE", 32)]
)
def test_a_commit_is_bad_from_half_of_the_whole_slowdown_on(ratio: float, verdict: str, pairs: int) -> None:
    assert (LOOKS, LEVEL) == ((8, 16, 32), 2**-8), "eight pairs that agree, or more that mostly do"
    rule = HalfwayRule(Plan(benchmarks=1, looks=LOOKS), halves={"a": 1.1**0.5})
    both: dict[str, tuple[list[Timed], list[Timed]]] = {"a": ([], [])}
    while look_at(both, rule)[1]:
        both["a"][0].append(Timed(1.0, {}, {}))
        both["a"][1].append(Timed(ratio * (1 + 0.02 * (-1) ** len(both["a"][1])), {}, {}))
    ((row,), _) = look_at(both, rule)
    assert (row.verdict, len(both["a"][1])) == (verdict, pairs), row
    assert rule.decision("a", both["a"]).wanted == pairs


def test_nothing_is_left_of_a_bisection_that_is_cut_off(six_commits: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    with cleanup_process.running() as register:
        register("worktree", str(six_commits), str(tree))
        git(six_commits, "worktree", "add", "-q", "--detach", str(tree))
        git(tree, "bisect", "start", "HEAD", "HEAD~5")
    assert not tree.exists()
    assert worktrees(six_commits) == 1
    left = git(six_commits, "for-each-ref", "--format=%(refname)").split()
    assert all(name.startswith("refs/heads/") for name in left), left
