"""The gate's rule and the usual alternatives, on runs of real processes in the order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, ttest_ind_from_stats

from meta_tests.gate_study.runs import Session
from prooflops.statistics.decision_rule import Decision, decide
from prooflops.statistics.effects import paired
from prooflops.statistics.noise import common_shift, noise_floor
from prooflops.statistics.plan import MIN_EFFECT, Plan

Figures = NDArray[np.float64]


def bound(events: int, of: int) -> str:
    """A share with its exact (Clopper-Pearson) one-sided 95 % upper bound."""
    if not of:
        return "none taken"
    upper = binomtest(events, of, alternative="less").proportion_ci(0.95, method="exact").high
    return f"{events} of {of} = {events / of:.1%} (at most {upper:.1%})"


def abba(start: int, pairs: int) -> tuple[list[int], list[int]]:
    """The processes of either side when processes from `start` on are taken in ABBA order."""
    quads = range(start, start + 2 * pairs, 4)
    before = [process for quad in quads for process in (quad, quad + 3)]
    after = [process for quad in quads for process in (quad + 1, quad + 2)]
    return before[:pairs], after[:pairs]


def most_pairs(plan: Plan) -> int:
    return plan.looks[-1] + plan.confirming_pairs


@dataclass(frozen=True)
class GateRun:
    """One whole run of the gate: a decision per kernel."""

    start: int
    decisions: tuple[Decision, ...]

    @property
    def alarmed(self) -> bool:
        """Whether any kernel is SLOWER, or would be if what was still to come had confirmed it."""
        return any("SLOWER" in (d.verdict, d.verdict is None and d.suspicion) for d in self.decisions)

    @property
    def processes(self) -> int:
        return 2 * max(decision.wanted for decision in self.decisions)


def gate_run(before: Figures, after: Figures, plan: Plan, start: int = 0, min_effect: float = MIN_EFFECT) -> GateRun:
    """The gate on pairs of processes (rows) for all kernels (columns)."""
    return GateRun(start, tuple(decide(b, a, plan, min_effect) for b, a in zip(before.T, after.T, strict=True)))


def versus_runs(figures: Figures, plan: Plan, *, factor: float = 1.0, step: int = 1) -> Iterator[GateRun]:
    """A gate run from every `step`-th process on, over the processes that follow it; `factor` slows the after side.

    Without a factor, the last runs have all their looks, but may lack pairs that a confirmation would need.
    """
    least, most = plan.looks[-1], most_pairs(plan)
    for start in range(0, len(figures) - 2 * (least if factor == 1 else most) + 1, step):
        before, after = abba(start, min(most, (len(figures) - start) // 4 * 2))
        yield gate_run(figures[before], figures[after] * factor, plan, start)


def disjoint(runs: Sequence[GateRun]) -> list[GateRun]:
    """Those of overlapping runs that share no process: each starts where the one before has ended."""
    kept: list[GateRun] = []
    for run in runs:
        if not kept or run.start >= kept[-1].start + kept[-1].processes:
            kept.append(run)
    return kept


def paired_noise(figures: Figures, level: float = 0.1) -> list[float]:
    """The noise of each kernel's pairs over the session, as the gate estimates it."""
    before, after = abba(0, len(figures) // 4 * 2)
    return [paired(b, a, level=level).noise for b, a in zip(figures[before].T, figures[after].T, strict=True)]


def threshold_alarms(session: Session, figure: str, threshold: float = 0.05) -> tuple[int, int, Figures]:
    """pytest-benchmark's --benchmark-compare-fail=FIGURE:5% between each process and the next.

    Whole runs that alarm, runs, and the share of alarms of each kernel.
    """
    times = session.figures[figure]
    alarms = times[1:] > times[:-1] * (1 + threshold)
    return int(alarms.any(axis=1).sum()), len(alarms), alarms.mean(axis=0)


def welch_alarms(session: Session, level: float = 0.01) -> tuple[int, int, Figures]:
    """Welch's t-test, one-sided, of the rounds of each process against those of the next, at `level` per benchmark."""
    mean, sd, n = session.figures["mean"], session.figures["sd"], session.facts["n"][:, None]
    result = ttest_ind_from_stats(
        mean[1:], sd[1:], n[1:], mean[:-1], sd[:-1], n[:-1], equal_var=False, alternative="greater"
    )
    alarms = result.pvalue < level
    return int(alarms.any(axis=1).sum()), len(alarms), alarms.mean(axis=0)


@dataclass(frozen=True)
class Tally:
    """Verdicts of kernels over gate runs, and the processes taken."""

    verdicts: Counter[str]
    pairs: list[int]

    @property
    def total(self) -> int:
        return sum(self.verdicts.values())

    def share(self, verdict: str) -> float:
        return self.verdicts[verdict] / self.total if self.total else float("nan")


def tally(runs: Sequence[GateRun], kernels: Sequence[int]) -> Tally:
    """The verdicts of some kernels."""
    decisions = [run.decisions[kernel] for run in runs for kernel in kernels]
    return Tally(Counter(d.verdict or "" for d in decisions), [d.wanted for d in decisions])


def history_run(
    baseline: Figures, now: Figures, floors: Sequence[float], group: int, *, factor: float = 1.0, alone: bool = False
) -> GateRun:
    """The gate in history mode: a group of processes against a stored one, and once more where it is suspected.

    `factor` slows each kernel in turn, the others being unchanged; `alone` leaves the common shift of the others out.
    """
    common = 1.0 if alone else common_shift(list(baseline.T), list(now.T))
    plan = Plan(benchmarks=baseline.shape[1], looks=(group,), confirming_pairs=group, shared_baseline=True)
    columns = zip(baseline.T, factor * now.T, floors, strict=True)
    return GateRun(0, tuple(decide(b, a, plan, floor=floor, common=common) for b, a, floor in columns))


def floors_of(groups: Sequence[Figures], level: float) -> list[float]:
    """Each kernel's noise floor from groups of processes taken at different times."""
    return [noise_floor([group[:, kernel] for group in groups], level=level) for kernel in range(groups[0].shape[1])]
