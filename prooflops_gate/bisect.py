"""Names the first slow commit since a good one, for each benchmark that got slower.

`--gate-bisect GOOD`.

git's own bisection chooses the commits, in a worktree of its own, where the user's checkout and a
bisection in progress there are out of reach. Each commit is measured beside GOOD by pairs of
processes, for all benchmarks whose first slow commit is not known yet, and is bad above half of the
whole slowdown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prooflops_gate import git, sides
from prooflops_gate.comparison import Comparison, compare
from prooflops_gate.instruments.counts import MORE, UNSTEADY, Count
from prooflops_gate.instruments.exact import Sides
from prooflops_gate.instruments.instructions import Instructions
from prooflops_gate.instruments.pace import FIRST
from prooflops_gate.instruments.time_rule import TimeRule, figures
from prooflops_gate.instruments.times import Times
from prooflops_gate.loop import count, exhaust
from prooflops_gate.pairs import Pairs
from prooflops_gate.question import Question
from prooflops_gate.revision import Revision, meant, shallow
from prooflops_gate.rows import INSTRUCTIONS, TIME, Row, interval, joined
from prooflops_gate.selection import files_of
from prooflops_gate.statistics import effects
from prooflops_gate.statistics.decision_rule import Decision, Plan
from prooflops_gate.statistics.effects import Effect
from prooflops_gate.task import ReplicateFailed, Task
from prooflops_gate.unpatched import time

# A commit is decided after one of these numbers of pairs.
LOOKS = (8, 16, 32)
# Eight pairs that agree reach it.
LEVEL = 1 / 256
# git's exit code where commits that could not be decided are all that is left.
ONLY_SKIPPED = 2
FIRST_BAD, POSSIBLE = "# first bad commit: [", "# possible first bad commit: ["


@dataclass(frozen=True)
class HalfwayRule(TimeRule):
    """Whether a commit has more than half of the whole slowdown since GOOD (SLOWER), or less
    (SAME).

    `halves` are ratios by benchmark.
    """

    halves: Mapping[str, float] = field(default_factory=dict)

    def decision(self, name: str, sides: Sides) -> Decision:
        before, after = figures(sides)
        half = self.halves[name]
        for look in self.plan.looks:
            effect = effects.paired(before[:look], after[:look], level=LEVEL)
            if look > len(after):
                return Decision(None, look, effect)
            if effect.low > half:
                return Decision("SLOWER", look, effect)
            if effect.high < half:
                return Decision("SAME", look, effect)
        return Decision("INCONCLUSIVE", self.plan.looks[-1], effect)


@dataclass(frozen=True)
class Step:
    """The result of a commit for one benchmark.

    A word of git's bisection (good, bad, skip), and why.
    """

    word: str
    effect: Effect | None = None
    why: str = ""

    def __str__(self) -> str:
        if not self.effect:
            return f"{self.word}  {self.why}"
        open_ = ", not decided" if self.word == "skip" else ""
        bounds = f"{self.effect.ratio:.3f} ({interval(self.effect)})"
        return f"{self.word}  {bounds}, {self.effect.pairs} pairs{open_}"


class Bisection:
    """The commits between `good` and the one that is checked out, for the benchmarks that got
    slower in between.

    `more`: those that take more instructions, and are not shown to be slower.
    """

    def __init__(
        self, question: Question, commit: str, slow: Mapping[str, Effect], more: Mapping[str, Count]
    ) -> None:
        self.question, self.good_commit, self.slow, self.more = question, commit, slow, more
        self.ratios = {name: each.ratio for name, each in slow.items()}
        self.ratios |= {name: each.ratio for name, each in more.items()}
        root = question.here.root
        self.bad_commit = git.commit_named(root, "HEAD") or ""
        whole = {name: Step("bad", effect) for name, effect in slow.items()}
        whole |= {name: Step("bad", why=str(each)) for name, each in more.items()}
        self.steps: dict[str, dict[str, Step]] = {self.bad_commit: whole}
        self.logs: dict[str, list[str]] = {}
        bad = Revision(self.bad_commit, "the worktree of the bisection")
        self.tree = sides.checkout(bad, root, question.processes)
        self.top = git.repository_of(self.tree.root) or self.tree.root

    def culprits(self) -> dict[str, list[str]]:
        """The benchmarks by their first slow commit, in words; the slowest are bisected first."""
        names = sorted(self.ratios, key=lambda name: -self.ratios[name])
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
                    f"--gate-bisect: git neither ends nor goes on from {self.described(commit)}"
                )
            last = commit
            if name not in self.steps.get(commit, {}):
                self.steps.setdefault(commit, {}).update(self.measured(commit, open_))
            self.bisect(self.steps[commit][name].word)
        self.logs[name] = [
            line for line in self.git("bisect", "log").splitlines() if not line.startswith("#")
        ]
        if len(found) == 1:
            return f"the first slow commit is {self.described(found[0])}"
        return f"the first slow commit is one of {len(found)}, as others could not be decided"

    def bisect(self, *words: str) -> None:
        """A step of git's bisection.

        Checks another commit out, without files that tests and Python left there.
        """
        self.git("reset", "--quiet", "--hard")
        self.git("bisect", *words)
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
        """Compares GOOD and this commit, which is checked out, by pairs.

        A step for each of these benchmarks.
        """
        here = replace(self.tree, label=f"commit {commit[:9]}")
        question = replace(
            self.question,
            here=here,
            asked=f"--gate-bisect, at {commit[:9]}",
            heard=lambda done: None,
            began=time.monotonic(),
        )
        timed = [name for name in names if name in self.slow]
        counted = [name for name in names if name not in self.slow]
        found: dict[str, Step] = {}
        if timed:
            found |= self.timed(question, timed)
        if counted:
            found |= self.counted(question, counted)
        return found

    def counted(self, question: Question, names: Sequence[str]) -> dict[str, Step]:
        """The steps by instructions: bad above half of the whole increase."""
        files, settings = files_of(names), question.settings
        if len(sides.existing(files, question.here)) < len(files):
            return dict.fromkeys(names, Step("skip", why="the benchmark is not there"))
        counting = Instructions(
            dict.fromkeys(names, 0.0),
            settings.min_instructions,
            0.0,
            began=question.began,
            ends=question.ends,
        )
        count(counting, Pairs(question).measure, question.say)
        why = "; ".join(counting.decide().notes)
        return {name: self.counted_step(name, counting.found.get(name), why) for name in names}

    def counted_step(self, name: str, count: Count | None, why: str) -> Step:
        if count is None or count.verdict == UNSTEADY:
            return Step("skip", why=str(count or why))
        is_bad = count.ratio > math.sqrt(self.ratios[name])
        return Step("bad" if is_bad else "good", why=str(count))

    def timed(self, question: Question, names: Sequence[str]) -> dict[str, Step]:
        """The steps by time."""
        pairs = Pairs(question)
        halves = {name: math.sqrt(effect.ratio) for name, effect in self.slow.items()}
        plan = Plan(benchmarks=1, looks=LOOKS)
        rule = HalfwayRule(plan, question.settings.min_effect, halves=halves)
        try:
            first = pairs.measure(Task(tests=tuple(names), paces=FIRST))
            times = Times(first.pairs, rule, question.ends)
            times.measure(first, time.monotonic() - question.began)
            exhaust(times, pairs.measure, question.say)
        except (ReplicateFailed, pytest.UsageError) as error:
            why = f"it cannot be run: {str(error).splitlines()[-1]}"
            return dict.fromkeys(names, Step("skip", why=why))
        words = {"SLOWER": "bad", "SAME": "good"}
        steps = dict.fromkeys(names, Step("skip", why="the benchmark is not there, or failed"))
        for row in times.decide().rows:
            steps[row.name] = Step(words.get(row.verdict, "skip"), row.effect)
        return steps

    def evidence(self, name: str) -> list[str]:
        """The commits that were measured for a benchmark, the oldest first, and git's log of the
        bisection.
        """
        order = self.git(
            "rev-list", "--reverse", "--topo-order", f"{self.good_commit}..{self.bad_commit}"
        ).split()
        measured = [commit for commit in order if name in self.steps.get(commit, {})]
        steps = [f"  {commit[:9]}  {self.steps[commit][name]}" for commit in measured]
        return [*steps, f"  git bisect log: {'; '.join(self.logs[name])}"]

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
    slow = {
        row.name: row.effect
        for row in found.rows
        if row.is_time and row.verdict == "SLOWER" and row.effect
    }
    more = {
        row.name: found.counts[row.name]
        for row in found.rows
        if row.verdict == MORE and row.name not in slow
    }
    if not slow and not more:
        none = f"no benchmark is SLOWER than at {question.other.label}: nothing to bisect"
        return replace(found, notes=(*found.notes, none))
    bisection = Bisection(question, commit, slow, more)
    notes = list(found.notes)
    said_of: dict[str, str] = {}
    for said, names in bisection.culprits().items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        notes += [f"{said}, for {names[0]}{others}:", *bisection.evidence(names[0])]
        said_of |= dict.fromkeys(names, said)
    rows = tuple(with_commit(row, said_of.get(row.name, "")) for row in found.rows)
    return replace(found, rows=rows, notes=tuple(notes))


def with_commit(row: Row, said: str) -> Row:
    """The row of a time or of instructions, which says where by its first slow commit."""
    if row.quantity in (TIME, INSTRUCTIONS):
        return replace(row, where=joined(said, row.where))
    return row


def checked_good(text: str, root: Path) -> Revision:
    """The commit that `--gate-bisect` names.

    Raises UsageError where none lies between it and a clean checkout.
    """
    asked, wrong = f"--gate-bisect {text}", ""
    good = meant(asked, text, root)
    if git.repository_of(root) is None:
        wrong = f"{root} is no git repository"
    elif good is None:
        wrong = f"no revision of this repository{shallow(text, root)}"
    elif git.is_changed(root):
        wrong = "files differ from the commit that is checked out: commit or stash them first"
    elif good.commit == git.commit_named(root, "HEAD"):
        wrong = f"{good.label} is the commit which is checked out; valid: one before it"
    elif git.output(root, "merge-base", "--is-ancestor", good.commit, "HEAD") is None:
        wrong = "that is no ancestor of the commit which is checked out, so none lies between"
    if wrong or good is None:
        raise pytest.UsageError(f"{asked}: {wrong}")
    return good
