"""The tables of docs/gate.md, each as Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meta_tests.gate_study.replay import (
    GateRun,
    bound,
    disjoint,
    floors_of,
    history_run,
    most_pairs,
    paired_noise,
    tally,
    threshold_alarms,
    versus_runs,
    welch_alarms,
)
from meta_tests.gate_study.runs import Session, sessions
from meta_tests.gate_study.simulate import SCENARIOS, outcome
from prooflops.gate.decisions import SieveRule
from prooflops.history.records import Timed
from prooflops.statistics.decision_rule import decide
from prooflops.statistics.effects import UNKNOWN_FLOOR, paired
from prooflops.statistics.plan import MIN_EFFECT, Plan

FIGURE = "min"  # what prooflops.statistics.noise.location takes; a test holds the two together
CLASSES = ((0.0, 0.03), (0.03, 0.07), (0.07, np.inf))
HISTORY_GROUP = 10
SIMULATED_RUNS = 300


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def class_name(low: float, high: float) -> str:
    return f"{low:.0%} to {high:.0%}" if np.isfinite(high) else f"above {low:.0%}"


@lru_cache
def data() -> tuple[Session, ...]:
    """The sessions whose processes all ran the same code."""
    return tuple(session for session in sessions() if not session.facts["extra"].any())


@lru_cache
def planted() -> tuple[Session, ...]:
    """The sessions in which some processes had more work."""
    return tuple(session for session in sessions() if session.facts["extra"].any())


@lru_cache
def unchanged(figure: str = FIGURE) -> dict[str, list[GateRun]]:
    return {s.name: list(versus_runs(s.figures[figure], Plan(benchmarks=len(s.kernels)))) for s in data()}


@lru_cache
def slowed(factor: float, figure: str = FIGURE) -> dict[str, list[GateRun]]:
    return {
        s.name: list(versus_runs(s.figures[figure], Plan(benchmarks=len(s.kernels)), factor=factor, step=2))
        for s in data()
    }


def kernels_by_class(session: Session, figure: str = FIGURE) -> dict[tuple[float, float], list[int]]:
    noise = paired_noise(session.figures[figure])
    return {(low, high): [k for k, x in enumerate(noise) if low <= x < high] for low, high in CLASSES}


def the_data() -> str:
    rows = []
    for s in (*data(), *planted()):
        x, facts = s.figures[FIGURE], s.facts
        noise = paired_noise(s.only(0.0).figures[FIGURE])
        rows.append(
            (
                s.name,
                f"{len(x)}",
                f"{(facts['started'][-1] - facts['started'][0]) / 60:.0f} min",
                f"{np.median(facts['load']):.1f} ({facts['load'].max():.1f})",
                f"{facts['steal'].mean():.1%}",
                f"{np.median(facts['wall_s']):.1f} s",
                f"{min(noise):.1%} / {np.median(noise):.1%} / {max(noise):.1%}",
            )
        )
    head = (
        "session",
        "processes",
        "over",
        "load: median (most)",
        "steal",
        "a process took",
        "paired noise: least / median / most",
    )
    return markdown(head, rows)


def false_alarms() -> str:
    rows = []
    for name in [s.name for s in data()] + ["all"]:
        chosen = [s for s in data() if name in (s.name, "all")]
        runs = [run for s in chosen for run in unchanged()[s.name]]
        apart = [run for s in chosen for run in disjoint(unchanged()[s.name])]
        counts = [
            [sum(part) for part in zip(*(rival(s)[:2] for s in chosen), strict=True)]
            for rival in (
                *(lambda s, figure=figure: threshold_alarms(s, figure) for figure in ("mean", "median", "min")),
                welch_alarms,
            )
        ]
        rows.append(
            (
                name,
                bound(sum(run.alarmed for run in runs), len(runs)),
                bound(sum(run.alarmed for run in apart), len(apart)),
                bound(
                    sum(d.verdict == "SLOWER" for r in apart for d in r.decisions), sum(len(r.decisions) for r in apart)
                ),
                *(f"{alarms / of:.0%} of {of}" for alarms, of in counts),
            )
        )
    head = ("session", "the gate, a run from every process on", "runs that share no process", "their benchmarks")
    return markdown((*head, "mean:5%", "median:5%", "min:5%", "Welch's t, 1 %"), rows)


def power() -> str:
    rows = []
    for factor in (1.0, 1.05, 1.10):
        runs = unchanged() if factor == 1 else slowed(factor)
        for low, high in CLASSES:
            kernels = {s.name: kernels_by_class(s)[low, high] for s in data()}
            tallies = [tally(runs[s.name], kernels[s.name]) for s in data()]
            total = sum(t.total for t in tallies)
            if not total:
                continue
            share = {v: sum(t.verdicts[v] for t in tallies) / total for v in ("SLOWER", "INCONCLUSIVE", "SAME")}
            taken = np.concatenate([t.pairs for t in tallies])
            rows.append(
                (
                    "none" if factor == 1 else f"+{factor - 1:.0%}",
                    class_name(low, high),
                    f"{total}",
                    *(f"{share[v]:.1%}" for v in ("SLOWER", "INCONCLUSIVE", "SAME")),
                    f"{taken.mean():.0f}",
                    f"{np.quantile(taken, 0.95):.0f}",
                )
            )
    head = ("planted", "paired noise", "comparisons", "SLOWER", "INCONCLUSIVE", "SAME", "pairs: mean", "95 % within")
    return markdown(head, rows)


def minutes() -> str:
    rows = []
    for s in data():
        wall_s = float(np.median(s.facts["wall_s"]))
        taken = np.array([run.processes for run in unchanged()[s.name]])
        slow = np.array([run.processes for run in slowed(1.05)[s.name]])
        if len(taken) and len(slow):
            most = 2 * most_pairs(Plan(benchmarks=len(s.kernels)))
            rows.append(
                (
                    s.name,
                    f"{wall_s:.1f} s",
                    f"{taken.mean():.0f} ({taken.mean() * wall_s / 60:.1f} min)",
                    f"{slow.mean():.0f} ({slow.mean() * wall_s / 60:.1f} min)",
                    f"{most} ({most * wall_s / 60:.1f} min)",
                )
            )
    return markdown(("session", "a process takes", "unchanged: processes", "+5 % everywhere", "at most"), rows)


def real_slowdowns() -> str:
    rows = []
    for s in planted():
        for extra in (0.05, 0.10):
            found, ratios = _planted_runs(s, extra)
            noise = paired_noise(s.only(0.0).figures[FIGURE])
            for low, high in CLASSES:
                kernels = [k for k, x in enumerate(noise) if low <= x < high]
                verdicts = [found[k][i] for k in kernels for i in range(len(found[k]))]
                if not verdicts:
                    continue
                middle = np.median([ratios[k] for k in kernels])
                shares = [f"{verdicts.count(v) / len(verdicts):.1%}" for v in ("SLOWER", "INCONCLUSIVE", "SAME")]
                row = (
                    s.name,
                    f"+{extra:.0%}",
                    class_name(low, high),
                    f"{len(verdicts)}",
                    f"{middle - 1:+.1%}",
                    *shares,
                )
                rows.append(row)
    head = ("session", "more work", "paired noise", "comparisons", "median estimate", "SLOWER", "INCONCLUSIVE", "SAME")
    return markdown(head, rows) if rows else "No session with more work has been taken yet."


def _planted_runs(s: Session, extra: float) -> tuple[list[list[str]], list[float]]:
    """Verdicts per kernel over windows of a planted session's pairs, and the estimate from all its pairs."""
    x, work = s.figures[FIGURE], s.facts["extra"]
    quads = [i for i in range(len(x) - 3) if np.allclose(work[i : i + 4], (0, extra, extra, 0))]
    before = x[[process for i in quads for process in (i, i + 3)]]
    after = x[[process for i in quads for process in (i + 1, i + 2)]]
    plan = Plan(benchmarks=len(s.kernels))
    pairs = most_pairs(plan)
    found: list[list[str]] = []
    for b, a in zip(before.T, after.T, strict=True):
        windows = range(0, len(b) - pairs + 1, 2)
        found.append([decide(b[i : i + pairs], a[i : i + pairs], plan).verdict or "" for i in windows])
    return found, [paired(b, a, level=0.01).ratio for b, a in zip(before.T, after.T, strict=True)]


def locations() -> str:
    rows = []
    for figure in ("min", "p10", "p25", "median", "mean"):
        noise = [x for s in data() for x in paired_noise(s.figures[figure])]
        plain = []
        for s in data():
            even = len(s) // 2 * 2
            pairs = np.log(s.figures[figure][1:even:2] / s.figures[figure][:even:2])
            plain += list(pairs.std(axis=0, ddof=1))
        shares = []
        for factor in (1.05, 1.10):
            runs = [run for found in slowed(factor, figure).values() for run in found]
            shares.append(tally(runs, range(len(data()[0].kernels))).share("SLOWER"))
        alarms = sum(run.alarmed for found in unchanged(figure).values() for run in found)
        rows.append(
            (
                figure,
                f"{np.median(noise):.1%}",
                f"{max(noise):.1%}",
                f"{np.median(plain):.0%}",
                *(f"{share:.1%}" for share in shares),
                f"{alarms}",
            )
        )
    head = (
        "figure",
        "paired noise: median",
        "most",
        "plain standard deviation",
        "+5 % found",
        "+10 % found",
        "false alarms",
    )
    return markdown(head, rows)


def estimate_or_bound() -> str:
    """How often a slowdown is found if the estimate, or its bound, must exceed the smallest effect."""
    rows, plan, runs = [], Plan(benchmarks=20), 400
    pairs = most_pairs(plan)
    for noise in (0.02, 0.04, 0.07):
        for slowdown in (1.01, 1.03, 1.05, 1.10):
            draw, by_estimate, by_bound = np.random.default_rng(0), 0, 0
            for _ in range(runs):
                before, after = np.exp(draw.normal(0, noise / np.sqrt(2), (2, pairs)))
                by_estimate += decide(before, after * slowdown, plan).verdict == "SLOWER"
                # By the bound: the same rule, asked whether after is slower than 1.03 x before.
                by_bound += decide(before, after * slowdown / (1 + MIN_EFFECT), plan, 1e-9).verdict == "SLOWER"
            rows.append((f"{noise:.0%}", f"+{slowdown - 1:.0%}", f"{by_estimate / runs:.1%}", f"{by_bound / runs:.1%}"))
    return markdown(("paired noise", "true slowdown", "by the estimate", "by the bound"), rows)


Floors = Callable[[list[NDArray[np.float64]]], list[float]]


def no_floor(before: list[NDArray[np.float64]]) -> list[float]:
    return [0.0] * before[0].shape[1]


def unknown_floor(before: list[NDArray[np.float64]]) -> list[float]:
    return [UNKNOWN_FLOOR] * before[0].shape[1]


def known_floor(before: list[NDArray[np.float64]]) -> list[float]:
    return floors_of(before, 0.05)


HISTORY_RULES: tuple[tuple[str, Floors, bool], ...] = (
    ("rank sums alone", no_floor, True),
    (f"floor of {UNKNOWN_FLOOR:.0%}", unknown_floor, True),
    (f"floor of {UNKNOWN_FLOOR:.0%} and common shift (the gate's)", unknown_floor, False),
    ("floor from six groups and common shift (the gate's)", known_floor, False),
)


def history() -> str:
    rows = []
    for rule, floors, alone in HISTORY_RULES:
        for where, windows in (("next in its session", _next_groups), ("in another session", _groups_across)):
            found: dict[float, list[GateRun]] = {1.0: [], 1.05: [], 1.10: []}
            for groups, now in windows():
                floor = floors(groups)
                for factor, runs in found.items():
                    runs.append(history_run(groups[-1], now, floor, HISTORY_GROUP, factor=factor, alone=alone))
            if found[1.0]:
                same, *slower = (tally(runs, range(len(runs[0].decisions))) for runs in found.values())
                alarms = bound(sum(run.alarmed for run in found[1.0]), len(found[1.0]))
                unchanged_ = f"{same.share('SAME'):.0%} / {same.share('INCONCLUSIVE'):.0%}"
                rows.append((rule, where, alarms, unchanged_, *(f"{t.share('SLOWER'):.0%}" for t in slower)))
    head = ("rule", "now", "whole runs that alarm", "unchanged: SAME / INCONCLUSIVE", "+5 % found", "+10 % found")
    return markdown(head, rows)


def sieve() -> str:
    """What one look at as many processes as the first look takes leaves to pairs, beside a stored group."""
    rows = []
    for where, windows in (("next in its session", _next_groups), ("in another session", _groups_across)):
        found: dict[float, list[bool]] = {1.0: [], 1.05: [], 1.10: []}
        for groups, now in itertools.islice(windows(), 0, None, 4):
            rule = SieveRule(Plan(benchmarks=now.shape[1], shared_baseline=True), paired=False)
            for factor, left in found.items():
                for stored, taken in zip(groups[-1].T, factor * now[: rule.plan.looks[0]].T, strict=True):
                    group = [Timed(float(time_s), {}, {}) for time_s in stored]
                    decision = rule.decision("", (group, [Timed(float(time_s), {}, {}) for time_s in taken]), 1.0)
                    left.append(decision.verdict != "SAME")
        rows.append((where, str(len(found[1.0])), *(f"{np.mean(left):.1%}" for left in found.values())))
    return markdown(("now", "benchmarks", "unchanged: left to pairs", "+5 %", "+10 %"), rows)


Windows = Iterable[tuple[list[NDArray[np.float64]], NDArray[np.float64]]]


def _groups(x: NDArray[np.float64], start: int) -> list[NDArray[np.float64]]:
    return [x[start + i * HISTORY_GROUP : start + (i + 1) * HISTORY_GROUP] for i in range(6)]


def _next_groups() -> Windows:
    """From every second process on: six groups of processes, of which the last is the baseline, and the two after."""
    for session in data():
        x = session.figures[FIGURE]
        for start in range(0, len(x) - 8 * HISTORY_GROUP + 1, 2):
            yield _groups(x, start), x[start + 6 * HISTORY_GROUP : start + 8 * HISTORY_GROUP]


def _groups_across() -> Windows:
    """Six groups of processes of one session, of which the last is the baseline, and two of a later session."""
    for early, late in itertools.combinations(data(), 2):
        x, y = early.figures[FIGURE], late.figures[FIGURE]
        for stored in range(0, len(x) - 6 * HISTORY_GROUP + 1, 2 * HISTORY_GROUP):
            for start in range(0, len(y) - 2 * HISTORY_GROUP + 1, 2 * HISTORY_GROUP):
                yield _groups(x, stored), y[start : start + 2 * HISTORY_GROUP]


def simulated() -> str:
    rows = []
    for scenario in SCENARIOS:
        result = outcome(scenario, SIMULATED_RUNS)
        kernels = range(len(result.unchanged[0].decisions))
        same, slow_5, slow_10 = (tally(r, kernels) for r in (result.unchanged, result.slower_5, result.slower_10))
        rows.append(
            (
                scenario.__name__.replace("_", " "),
                str(scenario.__doc__),
                bound(sum(run.alarmed for run in result.unchanged), SIMULATED_RUNS),
                f"{result.threshold_alarms / SIMULATED_RUNS:.0%}",
                f"{same.share('SAME'):.0%} / {same.share('INCONCLUSIVE'):.0%}",
                f"{slow_5.share('SLOWER'):.0%}",
                f"{slow_10.share('SLOWER'):.0%}",
            )
        )
    head = (
        "noise",
        "what it adds",
        "whole runs that alarm",
        "min:5%",
        "unchanged: SAME / INCONCLUSIVE",
        "+5 % found",
        "+10 % found",
    )
    return markdown(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "data": the_data,
    "false alarms": false_alarms,
    "power": power,
    "minutes": minutes,
    "real slowdowns": real_slowdowns,
    "locations": locations,
    "estimate or bound": estimate_or_bound,
    "history": history,
    "sieve": sieve,
    "simulated": simulated,
}
