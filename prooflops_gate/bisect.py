"""Names the first slow commit since a good one, for each benchmark that got slower: `--gate-bisect GOOD`.

git's own bisection chooses the commits, in a worktree of its own, where the user's checkout and a bisection in progress
there are out of reach. Each commit is measured beside GOOD by pairs of processes, for all benchmarks whose first slow
commit is not known yet, and is bad above half of the whole slowdown.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prooflops_gate import decide, pairs, sides
from prooflops_gate.count import Counting
from prooflops_gate.history.comparison import Sides, seconds
from prooflops_gate.history.rows import INSTRUCTIONS, TIME, Row, interval
from prooflops_gate.instructions import MORE, UNSTEADY, Count
from prooflops_gate.options import files_of
from prooflops_gate.pace import FIRST
from prooflops_gate.process import ReplicateFailed, Side, environment_of_git
from prooflops_gate.schedule import Schedule
from prooflops_gate.session import Session
from prooflops_gate.statistics import effects
from prooflops_gate.statistics.decision_rule import Decision, Plan
from prooflops_gate.statistics.effects import Effect

LOOKS = (8, 16, 32)  # pairs
LEVEL = 1 / 256  # at each look: eight pairs that agree
ONLY_SKIPPED = 2  # git's exit code where commits that could not be decided are all that is left
FIRST_BAD, POSSIBLE = "# first bad commit: [", "# possible first bad commit: ["


@dataclass(frozen=True)
class HalfwayRule(decide.ReplicateRule):
    """Whether a commit has more than half of the whole slowdown since GOOD (SLOWER), or less (SAME)."""

    halves: Mapping[str, float] = field(default_factory=dict)  # ratios by benchmark

    def decision(self, name: str, sides: Sides, *_: float) -> Decision:
        before, after = map(seconds, sides)
        for look in self.plan.looks:
            effect = effects.paired(before[:look], after[:look], level=LEVEL)
            if look > len(after):
                return Decision(None, look, effect)
            if effect.low > self.halves[name] or effect.high < self.halves[name]:
                return Decision(
                    "SLOWER" if effect.low > self.halves[name] else "SAME", look, effect
                )
        return Decision("INCONCLUSIVE", self.plan.looks[-1], effect)


@dataclass(frozen=True)
class Step:
    """The result of a commit for one benchmark: a word of git's bisection, and why."""

    word: str  # good, bad, skip
    effect: Effect | None = None
    why: str = ""

    def __str__(self) -> str:
        if not self.effect:
            return f"{self.word}  {self.why}"
        open_ = ", not decided" if self.word == "skip" else ""
        bounds = f"{self.effect.ratio:.3f} ({interval(self.effect)})"
        return f"{self.word}  {bounds}, {self.effect.pairs} pairs{open_}"


class Bisection:
    """The commits between `good` and the one that is checked out, for the benchmarks that got slower in between.

    `more`: those that take more instructions, and are not shown to be slower.
    """

    def __init__(
        self,
        session: Session,
        good: Side,
        commit: str,
        slow: Mapping[str, Effect],
        more: Mapping[str, Count],
    ) -> None:
        self.session, self.good, self.good_commit, self.slow, self.more = (
            session,
            good,
            commit,
            slow,
            more,
        )
        self.ratios = {name: each.ratio for name, each in slow.items()} | {
            name: each.ratio for name, each in more.items()
        }
        root = session.here.root
        self.bad_commit = sides.commit_named(root, "HEAD") or ""
        whole = {name: Step("bad", effect) for name, effect in slow.items()}
        whole |= {name: Step("bad", why=str(each)) for name, each in more.items()}
        self.steps = {self.bad_commit: whole}  # by commit, name
        self.logs: dict[str, list[str]] = {}
        self.tree = sides.checkout(
            self.bad_commit, "the worktree of the bisection", root, session.replicates
        )
        self.top = sides.repository_of(self.tree.root) or self.tree.root

    def culprits(self) -> dict[str, list[str]]:
        """The benchmarks by their first slow commit, in words; the slowest are bisected first."""
        names = sorted(self.ratios, key=lambda name: -self.ratios[name])
        found: dict[str, list[str]] = {}
        for index, name in enumerate(names):
            found.setdefault(self.first_slow(name, names[index:]), []).append(name)
        return found

    def first_slow(self, name: str, open_: Sequence[str]) -> str:
        """Bisects for one benchmark; the result in words. `open_`: benchmarks to be measured with it."""
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
        """A step of git's bisection: checks another commit out, without files that tests and Python left there."""
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
        """Compares GOOD and this commit, which is checked out, by pairs: a step for each of these benchmarks."""
        here = replace(self.tree, label=f"commit {commit[:9]}")
        timed = [name for name in names if name in self.slow]
        counted = [name for name in names if name not in self.slow]
        return {
            **(self.timed(here, commit, timed) if timed else {}),
            **(self.counted(here, counted) if counted else {}),
        }

    def counted(self, here: Side, names: Sequence[str]) -> dict[str, Step]:
        """The steps by instructions: bad above half of what the whole takes more."""
        session, lines = self.session, self.session.lines
        if len(sides.existing(files_of(names), here)) < len(files_of(names)):
            return dict.fromkeys(names, Step("skip", why="the benchmark is not there"))
        session.lines = []
        counting = Counting(session, here, self.good, dict.fromkeys(names, 0.0), 0.0)
        found = counting.run([], time.monotonic() + session.settings.budget_s)
        why, session.lines = "; ".join(session.lines), lines
        return {
            name: Step(
                "bad" if each.ratio > math.sqrt(self.ratios[name]) else "good", why=str(each)
            )
            if (each := found.get(name)) and each.verdict != UNSTEADY
            else Step("skip", why=str(each or why))
            for name in names
        }

    def timed(self, here: Side, commit: str, names: Sequence[str]) -> dict[str, Step]:
        """The steps by time."""
        session = self.session
        both = pairs.Pairs(session, here, self.good, f"--gate-bisect, at {commit[:9]}")
        halves = {name: math.sqrt(effect.ratio) for name, effect in self.slow.items()}
        rule = HalfwayRule(
            Plan(benchmarks=1, looks=LOOKS), session.settings.min_effect, halves=halves
        )
        began = session.begun = time.monotonic()
        try:
            first = both.take(names, FIRST)
            schedule = Schedule(session, rule, both.take)
            rows = {
                row.name: row
                for row in schedule.run(first, dict.fromkeys(first, ()), time.monotonic() - began)
            }
        except (ReplicateFailed, pytest.UsageError) as error:
            return dict.fromkeys(
                names, Step("skip", why=f"it cannot be run: {str(error).splitlines()[-1]}")
            )
        words = {"SLOWER": "bad", "SAME": "good"}
        steps = {
            name: Step(words.get(row.verdict, "skip"), row.effect) for name, row in rows.items()
        }
        return {
            name: steps.get(name, Step("skip", why="the benchmark is not there, or failed"))
            for name in names
        }

    def evidence(self, name: str) -> list[str]:
        """The commits that were measured for a benchmark, the oldest first, and git's log of the bisection."""
        order = self.git(
            "rev-list", "--reverse", "--topo-order", f"{self.good_commit}..{self.bad_commit}"
        ).split()
        steps = [
            f"  {commit[:9]}  {self.steps[commit][name]}"
            for commit in order
            if name in self.steps.get(commit, {})
        ]
        return [*steps, f"  git bisect log: {'; '.join(self.logs[name])}"]

    def described(self, commit: str) -> str:
        return self.git(
            "show", "--no-patch", "--date=short", "--format=%h (%ad, %an: %s)", "--abbrev=9", commit
        )

    def git(self, *words: str) -> str:
        """git's output in the worktree, which is named: in a hook the environment names the user's own."""
        place = ["-C", str(self.top), f"--git-dir={self.top / '.git'}", f"--work-tree={self.top}"]
        done = subprocess.run(
            ["git", *place, *words], capture_output=True, text=True, env=environment_of_git()
        )
        if done.returncode not in (0, ONLY_SKIPPED):
            raise pytest.UsageError(f"--gate-bisect: git {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()


def bisect(session: Session, benchmarks: Sequence[str], text: str) -> list[Row]:
    """The rows of these benchmarks beside a good revision; those of SLOWER ones name their first slow commit."""
    root = session.here.root
    commit = checked_good(text, root)
    good = sides.checkout(commit, f"revision {text} ({commit[:9]})", root, session.replicates)
    session.here = replace(session.here, paths=sides.import_paths(root, root))
    rows, _ = pairs.compare(session, session.here, good, f"--gate-bisect {text}", benchmarks)
    slow = {
        row.name: row.effect
        for row in rows
        if row.quantity == TIME and row.verdict == "SLOWER" and row.effect
    }
    counted = {
        row.name: session.counts[row.name]
        for row in rows
        if row.verdict == MORE and row.name not in slow
    }
    if not slow and not counted:
        session.lines.append(f"no benchmark is SLOWER than at {good.label}: nothing to bisect")
        return rows
    bisection = Bisection(session, good, commit, slow, counted)
    culprits = bisection.culprits()
    for said, names in culprits.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        session.lines += [f"{said}, for {names[0]}{more}:", *bisection.evidence(names[0])]
    notes = {name: said for said, names in culprits.items() for name in names}
    return [
        replace(row, note="; ".join(filter(None, [notes[row.name], row.note])))
        if row.quantity in (TIME, INSTRUCTIONS) and row.name in notes
        else row
        for row in rows
    ]


def checked_good(text: str, root: Path) -> str:
    """The commit that `--gate-bisect` names. Raises UsageError where none lies between it and a clean checkout."""
    wrong = ""
    commit = sides.commit_named(root, text)
    if sides.repository_of(root) is None:
        wrong = f"{root} is no git repository"
    elif commit is None:
        wrong = "no revision of this repository (a shallow clone lacks some)"
    elif sides.is_changed(root):
        wrong = "files differ from the commit that is checked out: commit or stash them first"
    elif commit == sides.commit_named(root, "HEAD"):
        wrong = "that is the commit which is checked out; valid: one before it"
    elif sides.git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        wrong = "that is no ancestor of the commit which is checked out, so none lies between"
    if wrong or commit is None:
        raise pytest.UsageError(f"--gate-bisect {text}: {wrong}")
    return commit
