"""Names the first slow commit since a good one, for each benchmark that got slower: `--gate-bisect GOOD`.

git's own bisection chooses the commits, in a worktree of its own, where the user's checkout and a bisection in progress
there are out of reach. Each commit is measured beside GOOD by pairs of processes, for all benchmarks whose first slow
commit is not known yet, and is bad where it lost more than half of what was lost in all.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prooflops.gate import decisions, sides
from prooflops.gate.measurement import Measurement
from prooflops.gate.pacing import Pacing, Pair
from prooflops.gate.processes import ReplicateFailed, Side, environment_of_git
from prooflops.gate.side_by_side import SideBySide
from prooflops.history.comparison import Sides, seconds
from prooflops.history.rows import TIME, Row, interval
from prooflops.statistics import effects
from prooflops.statistics.decision_rule import Decision
from prooflops.statistics.effects import Effect
from prooflops.statistics.plan import Plan

LOOKS = (8, 16, 32)  # pairs
LEVEL = 1 / 256  # at each look: eight pairs that agree
ONLY_SKIPPED = 2  # git's exit code where commits that could not be decided are all that is left
FIRST_BAD, POSSIBLE = "# first bad commit: [", "# possible first bad commit: ["


@dataclass(frozen=True)
class HalfwayRule(decisions.ReplicateRule):
    """Whether a commit is slower than GOOD by more than half of what is lost in all (SLOWER), or by less (SAME)."""

    halves: Mapping[str, float] = field(default_factory=dict)  # ratios by benchmark

    def decision(self, name: str, sides: Sides, *_: float) -> Decision:
        before, after = map(seconds, sides)
        for pairs in self.plan.looks:
            effect = effects.paired(before[:pairs], after[:pairs], level=LEVEL)
            if pairs > len(after):
                return Decision(None, pairs, effect)
            if effect.low > self.halves[name] or effect.high < self.halves[name]:
                return Decision("SLOWER" if effect.low > self.halves[name] else "SAME", pairs, effect)
        return Decision("INCONCLUSIVE", self.plan.looks[-1], effect)


@dataclass(frozen=True)
class Step:
    """What a commit was found to be for one benchmark: the word that git's bisection takes, and why."""

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
    """The commits between `good` and the one that is checked out, for the benchmarks that got slower in between."""

    def __init__(self, measurement: Measurement, good: Side, commit: str) -> None:
        self.measurement, self.good, self.good_commit = measurement, good, commit
        self.bad_commit = sides.commit_named(measurement.here.root, "HEAD") or ""
        self.steps: dict[str, dict[str, Step]] = {}  # by commit and benchmark
        self.halves: dict[str, float] = {}
        self.logs: dict[str, list[str]] = {}

    def run(self) -> None:
        """Finds the first slow commit of each benchmark that is SLOWER, the worst first, and adds notes and lines."""
        measurement = self.measurement
        slow = [row for row in measurement.rows if row.quantity == TIME and row.verdict == "SLOWER" and row.effect]
        if not slow:
            measurement.lines.append(f"no benchmark is SLOWER than at {self.good.label}: nothing to bisect")
            return
        effect_of = {row.name: row.effect for row in slow if row.effect}
        names = sorted(effect_of, key=lambda name: -effect_of[name].ratio)
        self.halves = {name: math.sqrt(effect.ratio) for name, effect in effect_of.items()}
        self.steps[self.bad_commit] = {name: Step("bad", effect) for name, effect in effect_of.items()}
        root = measurement.here.root
        self.tree = sides.checkout(self.bad_commit, "the worktree of the bisection", root, measurement.replicates)
        self.top = sides.repository_of(self.tree.root) or self.tree.root
        culprits: dict[str, list[str]] = {}
        for index, name in enumerate(names):
            culprits.setdefault(self.first_slow(name, names[index:]), []).append(name)
        notes = {name: said for said, found in culprits.items() for name in found}
        measurement.rows = [self.with_note(row, notes) for row in measurement.rows]
        for said, found in culprits.items():
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            measurement.lines += [f"{said}, for {found[0]}{more}:", *self.evidence(found[0])]

    def with_note(self, row: Row, notes: Mapping[str, str]) -> Row:
        if row.quantity != TIME or row.name not in notes:
            return row
        return replace(row, note="; ".join(filter(None, [notes[row.name], row.note])))

    def first_slow(self, name: str, open_: Sequence[str]) -> str:
        """Bisects for one benchmark, and says what was found. `open_`: those to be measured with it."""
        self.bisect("start", self.bad_commit, self.good_commit)
        last = ""
        while not (found := self.found()):
            commit = self.git("rev-parse", "HEAD")
            if commit == last:
                raise pytest.UsageError(f"--gate-bisect: git neither ends nor goes on from {self.described(commit)}")
            last = commit
            if name not in self.steps.get(commit, {}):
                self.steps.setdefault(commit, {}).update(self.measured(commit, open_))
            self.bisect(self.steps[commit][name].word)
        self.logs[name] = [line for line in self.git("bisect", "log").splitlines() if not line.startswith("#")]
        if len(found) == 1:
            return f"the first slow commit is {self.described(found[0])}"
        return f"the first slow commit is one of {len(found)}, as others could not be decided"

    def bisect(self, *words: str) -> None:
        """A step of git's bisection: another commit is checked out, without what tests and Python left there."""
        self.git("reset", "--quiet", "--hard")
        self.git("bisect", *words)
        self.git("clean", "-ffdxq")

    def found(self) -> list[str]:
        """The first bad commit, or the several that it may be, once git knows; none before."""
        log = self.git("bisect", "log").splitlines()
        for head in (FIRST_BAD, POSSIBLE):
            if commits := [line.removeprefix(head).partition("]")[0] for line in log if line.startswith(head)]:
                return commits
        return []

    def measured(self, commit: str, names: Sequence[str]) -> dict[str, Step]:
        """What pairs of GOOD and this commit, which is checked out, say of each of these benchmarks."""
        measurement = self.measurement
        here = replace(self.tree, label=f"commit {commit[:9]}")
        pairs = SideBySide(measurement, here, self.good, f"--gate-bisect, at {commit[:9]}")
        plan = Plan(benchmarks=1, looks=LOOKS)
        rule = HalfwayRule(plan, measurement.settings.min_effect, halves=self.halves)
        began = measurement.begun = time.monotonic()
        measurement.replicates.examined = ()  # of another commit
        measurement.progress.always(f"commit {self.described(commit)}: {len(names)} benchmarks")
        try:
            first: dict[str, Pair] = pairs.take(names)
            pacing = Pacing(
                dict.fromkeys(first, ()), rule, pairs.take, began + measurement.settings.budget_s, measurement.say
            )
            rows = {row.name: row for row in pacing.run(first, time.monotonic() - began)}
        except (ReplicateFailed, pytest.UsageError) as error:
            return dict.fromkeys(names, Step("skip", why=f"it cannot be run: {str(error).splitlines()[-1]}"))
        words = {"SLOWER": "bad", "SAME": "good"}
        steps = {name: Step(words.get(row.verdict, "skip"), row.effect) for name, row in rows.items()}
        return {name: steps.get(name, Step("skip", why="the benchmark is not there, or failed")) for name in names}

    def evidence(self, name: str) -> list[str]:
        """The commits that were measured for a benchmark, the oldest first, and git's log of the bisection."""
        order = self.git("rev-list", "--reverse", "--topo-order", f"{self.good_commit}..{self.bad_commit}").split()
        steps = [
            f"  {commit[:9]}  {self.steps[commit][name]}" for commit in order if name in self.steps.get(commit, {})
        ]
        return [*steps, f"  git bisect log: {'; '.join(self.logs[name])}"]

    def described(self, commit: str) -> str:
        return self.git("show", "--no-patch", "--date=short", "--format=%h (%ad, %an: %s)", "--abbrev=9", commit)

    def git(self, *words: str) -> str:
        """What git prints in the worktree, which is named: in a hook the environment names the user's own."""
        place = ["-C", str(self.top), f"--git-dir={self.top / '.git'}", f"--work-tree={self.top}"]
        done = subprocess.run(["git", *place, *words], capture_output=True, text=True, env=environment_of_git())
        if done.returncode not in (0, ONLY_SKIPPED):
            raise pytest.UsageError(f"--gate-bisect: git {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()


def bisect(measurement: Measurement, benchmarks: Sequence[str], text: str) -> None:
    """Compares these benchmarks with those of a good revision, and bisects for the SLOWER ones."""
    root = measurement.here.root
    commit = checked_good(text, root)
    good = sides.checkout(commit, f"revision {text} ({commit[:9]})", root, measurement.replicates)
    measurement.here = replace(measurement.here, paths=sides.import_paths(root, root))
    SideBySide(measurement, measurement.here, good, f"--gate-bisect {text}").compare(benchmarks)
    Bisection(measurement, good, commit).run()


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
