"""Names the first slow commit since a good one, for each benchmark that got slower.

`--gate-bisect GOOD`.

git's own bisection chooses the commits, in a worktree of its own. The user's checkout, and a
bisection in progress there, are out of reach. Each commit is measured beside GOOD by pairs of
processes, for all benchmarks whose first slow commit is not known yet. It is bad if it has more
than half of the whole slowdown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prooflops_gate import git, sides
from prooflops_gate.comparison import Comparison, Stopped, compare
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.question import Question
from prooflops_gate.report.sentences import sentence
from prooflops_gate.revision import Revision, meant, shallow
from prooflops_gate.rows import INSTRUCTIONS, Row, joined
from prooflops_gate.selection import files_of
from prooflops_gate.task import ReplicateFailed
from prooflops_gate.unpatched import time

# git's exit code where commits that could not be decided are all that is left.
ONLY_SKIPPED = 2
FIRST_BAD, POSSIBLE = "# first bad commit: [", "# possible first bad commit: ["
# The answer to git's bisection for a verdict; any other verdict skips the commit.
WORDS = {"SLOWER": "bad", "SAME": "good", "FASTER": "good"}


@dataclass(frozen=True)
class Step:
    """The result of a commit for one benchmark: a word of git's bisection, and why."""

    word: str
    why: str

    def __str__(self) -> str:
        return f"{self.word}  {self.why}"


class Bisection:
    """The commits between `good` and the checkout, for the benchmarks that got slower in between.

    `slow` has the row of each.
    """

    def __init__(self, question: Question, commit: str, slow: Mapping[str, Row]) -> None:
        self.question, self.good_commit, self.slow = question, commit, slow
        root = question.here.root
        self.bad_commit = git.commit_named(root, "HEAD") or ""
        whole = {name: Step("bad", sentence(row)) for name, row in slow.items()}
        self.steps: dict[str, dict[str, Step]] = {self.bad_commit: whole}
        self.logs: dict[str, list[str]] = {}
        # git's line on the commits that are left.
        self.left = ""
        bad = Revision(self.bad_commit, "the worktree of the bisection")
        self.tree = sides.checkout(bad, root, question.processes)
        self.top = git.repository_of(self.tree.root) or self.tree.root

    def culprits(self) -> dict[str, list[str]]:
        """The benchmarks by their first slow commit, in words; the slowest are bisected first."""
        names = sorted(self.slow, key=lambda name: -ratio_of(self.slow[name]))
        found: dict[str, list[str]] = {}
        for index, name in enumerate(names):
            found.setdefault(self.first_slow(name, names[index:]), []).append(name)
        return found

    def first_slow(self, name: str, open_: Sequence[str]) -> str:
        """Bisects for one benchmark; the result in words.

        `open_`: benchmarks to be measured with it.
        """
        self.bisect("start", self.bad_commit, self.good_commit)
        last = ""
        while not (found := self.found()):
            commit = self.git("rev-parse", "HEAD")
            if commit == last:
                raise pytest.UsageError(
                    f"--gate-bisect: git stopped at {self.described(commit)} without a result"
                )
            last = commit
            if name not in self.steps.get(commit, {}):
                self.question.say(f"{self.left}, now {self.described(commit)}")
                self.steps.setdefault(commit, {}).update(self.measured(commit, open_))
            self.bisect(self.steps[commit][name].word)
        self.logs[name] = [
            line for line in self.git("bisect", "log").splitlines() if not line.startswith("#")
        ]
        if len(found) == 1:
            return f"the first slow commit is {self.described(found[0])}"
        return f"the first slow commit is one of {len(found)}: git could not decide between them"

    def bisect(self, *words: str) -> None:
        """A step of git's bisection.

        Checks another commit out, without files that tests and Python left there.
        """
        self.git("reset", "--quiet", "--hard")
        said = self.git("bisect", *words)
        self.left = said.partition("\n")[0] or self.left
        self.git("clean", "-ffdxq")

    def found(self) -> list[str]:
        """The first bad commit, or the several candidates, once git knows; none before."""
        log = self.git("bisect", "log").splitlines()
        for head in (FIRST_BAD, POSSIBLE):
            if commits := [
                line.removeprefix(head).partition("]")[0] for line in log if line.startswith(head)
            ]:
                return commits
        return []

    def measured(self, commit: str, names: Sequence[str]) -> dict[str, Step]:
        """Compares GOOD and this commit, which is checked out: a step for each of these benchmarks.

        The smallest change that counts is half of the whole.
        """
        tests = [self.slow[name].test or name for name in names]
        question = replace(
            self.question,
            here=replace(self.tree, label=f"commit {commit[:9]}"),
            asked=f"--gate-bisect, at {commit[:9]}",
            selection=replace(self.question.selection, only=tests),
            smallest={name: math.sqrt(ratio_of(self.slow[name])) - 1 for name in names},
            targets=tuple(sides.existing(files_of(tests), self.question.other)),
            heard=lambda done: None,
            began=time.monotonic(),
        )
        try:
            rows = compare(question).rows
        except (ReplicateFailed, pytest.UsageError) as error:
            why = f"it cannot be run: {str(error).splitlines()[-1]}"
            return dict.fromkeys(names, Step("skip", why))
        steps = dict.fromkeys(names, Step("skip", "the benchmark is not there, or failed"))
        for row in rows:
            if row.is_time and row.name in steps:
                steps[row.name] = Step(WORDS.get(row.verdict, "skip"), sentence(row))
        return steps

    def evidence(self, name: str) -> list[str]:
        """The commits measured for a benchmark, oldest first, and git's log of the bisection."""
        order = self.git(
            "rev-list", "--reverse", "--topo-order", f"{self.good_commit}..{self.bad_commit}"
        ).split()
        measured = [commit for commit in order if name in self.steps.get(commit, {})]
        steps = [f"  {commit[:9]}  {self.steps[commit][name]}" for commit in measured]
        return [*steps, f"  git's steps: {'; '.join(self.logs[name])}"]

    def described(self, commit: str) -> str:
        return self.git(
            "show", "--no-patch", "--date=short", "--format=%h (%ad, %an: %s)", "--abbrev=9", commit
        )

    def git(self, *words: str) -> str:
        """git's output in the worktree."""
        done = git.run(self.top, *words)
        if done.returncode not in (0, ONLY_SKIPPED):
            raise pytest.UsageError(f"--gate-bisect: git {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()


def bisect(question: Question, commit: str) -> Comparison:
    """Compares this side with a good revision.

    The rows of SLOWER benchmarks name their first slow commit.
    """
    found = compare(question)
    slow = {row.name: row for row in found.rows if row.is_time and row.verdict == "SLOWER"}
    if not slow:
        none = f"no benchmark is SLOWER than at {question.other.label}: nothing to bisect"
        return replace(found, notes=(*found.notes, none))
    bisection = Bisection(question, commit, slow)
    notes = list(found.notes)
    said_of: dict[str, str] = {}
    try:
        culprits = bisection.culprits()
    except Stopped as stopped:
        raise Stopped(found) from stopped
    for said, names in culprits.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        notes += [f"{said}, for {names[0]}{others}:", *bisection.evidence(names[0])]
        said_of |= dict.fromkeys(names, said)
    rows = tuple(with_commit(row, said_of.get(row.name, "")) for row in found.rows)
    compared = many(len(bisection.steps), "comparison")
    effort = f"{compared} in {minutes(time.monotonic() - question.began)}"
    return replace(found, rows=rows, notes=tuple(notes), effort=effort)


def ratio_of(row: Row) -> float:
    """The ratio of the times, or of the instructions if these decided."""
    assert row.effect
    return row.instructions if row.by == INSTRUCTIONS and row.instructions else row.effect.ratio


def with_commit(row: Row, said: str) -> Row:
    """The row of a time, which says where by its first slow commit."""
    return replace(row, where=joined(said, row.where)) if row.is_time else row


def checked_good(text: str, root: Path) -> Revision:
    """The commit that `--gate-bisect` names.

    Raises UsageError where none lies between it and a clean checkout.
    """
    asked, wrong = f"--gate-bisect {text}", ""
    good = meant(asked, text, root)
    if git.repository_of(root) is None:
        wrong = f"{root} is not a git repository"
    elif good is None:
        wrong = f"no revision of this repository{shallow(text, root)}"
    elif git.is_changed(root):
        wrong = "files differ from the checked-out commit: commit or stash them first"
    elif good.commit == git.commit_named(root, "HEAD"):
        wrong = f"{good.label} is the checked-out commit: name an earlier one"
    elif git.output(root, "merge-base", "--is-ancestor", good.commit, "HEAD") is None:
        wrong = "it is not an ancestor of the checked-out commit: name one"
    if wrong or good is None:
        raise pytest.UsageError(f"{asked}: {wrong}")
    return good
