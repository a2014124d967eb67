"""Shows runs side by side, one column a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prooflops.suite.fleet.nodes import SOFTWARE, NodeRun, Timing, short_name
from prooflops.suite.fleet.slow import LEAST_SLOWDOWN
from prooflops.suite.page import delivery
from prooflops_gate.console.tables import engineering, many, times_as

MOST_COLUMNS = 8
# A crashed test settles nothing.
UNSETTLED = ("not checked", "error")
ABSENT = "-"
# A smaller ratio of times is written as a fraction.
LEAST_MULTIPLE = 0.1


def columns(runs: Sequence[NodeRun], slow: Sequence[str]) -> list[NodeRun]:
    """The runs that have a column, oldest first.

    Of more than eight these are the newest runs of the machines that are slow, below a floor or
    contradict a claim, and the first other one.
    """
    if len(runs) <= MOST_COLUMNS:
        return list(runs)
    newest = {run.node: run for run in runs}.values()
    notable = [run for run in newest if run.is_red or run.node in slow]
    sound = [run for run in newest if run not in notable]
    return [*sound[:1], *notable][:MOST_COLUMNS]


def titles(shown: Sequence[NodeRun]) -> list[str]:
    """The machine of each column, and what tells its runs apart: software, or the date."""
    names = [run.node for run in shown]
    for key in (*SOFTWARE, "date"):
        if len(set(names)) == len(names):
            break
        values = [run.date[:19] if key == "date" else run.software.get(key, "") for run in shown]
        if len(set(values)) > 1:
            word = "" if key == "date" else f"{key} "
            names = [f"{name}, {word}{value}" for name, value in zip(names, values, strict=True)]
    return names


def contested_claims(shown: Sequence[NodeRun]) -> list[list[str]]:
    """Claims that fail in a column, or whose verdicts differ, with the verdict of each column."""
    rows = []
    for claim in sorted({claim for run in shown for claim in run.verdicts}):
        found = [run.verdicts.get(claim, ABSENT) for run in shown]
        found = [ABSENT if verdict in UNSETTLED else verdict for verdict in found]
        if "FAILS" in found or (len(set(found)) > 1 and ABSENT not in found):
            rows.append([claim, *found])
    return rows


def delivered(shown: Sequence[NodeRun]) -> list[list[str]]:
    """The verdict of each column, then each figure that one of them has."""
    rows = [["verdict", *(run.answer for run in shown)]]
    figures = [{each.name: each for each in run.figures} for run in shown]
    rows += [
        [name, *(_figure_text(found.get(name)) for found in figures)]
        for name in dict.fromkeys(name for found in figures for name in found)
    ]
    return rows


def _figure_text(figure: delivery.Figure | None) -> str:
    if figure is None:
        return ABSENT
    return delivery.value_text(figure) + " BELOW FLOOR" * (figure.met is False)


def times(shown: Sequence[NodeRun]) -> list[list[str]]:
    """Each benchmark in the first column that has it, and in the others the time as a multiple.

    A benchmark that only one of several columns measured is omitted. "~" marks a multiple that two
    runs of one machine may have: no difference was found.
    """
    rows = []
    for name in dict.fromkeys(name for run in shown for name in run.timings):
        found = [run.timings.get(name) for run in shown]
        first, *others = filter(None, found)
        if others or len(shown) == 1:
            cells = [_cell(first, each) for each in found]
            cells[found.index(first)] = engineering(first.value, first.unit)
            rows.append([short_name(name), *cells])
    return rows


def _cell(first: Timing, timing: Timing | None) -> str:
    slowdown = timing.slowdown(first) if timing else None
    if timing is None or slowdown is None:
        return ABSENT
    return "~ " * is_within_spread(first, timing, slowdown) + _factor(slowdown)


def _factor(slowdown: float) -> str:
    """A ratio of times: "1.42x", or a fraction for more than ten times as fast.

    >>> _factor(1.42), _factor(1 / 435)
    ('1.42x', '1/435')
    """
    return times_as(slowdown) if slowdown > LEAST_MULTIPLE else f"1/{1 / slowdown:,.0f}"


def is_within_spread(first: Timing, timing: Timing, slowdown: float) -> bool:
    """True if two runs of one machine may differ as much: by 3 %, or by both spreads together."""
    factor = max(slowdown, 1 / slowdown)
    return factor - 1 <= max(LEAST_SLOWDOWN, first.spread + timing.spread)


def changes(shown: Sequence[NodeRun]) -> list[str]:
    """One sentence per further column: what got slower or faster than in the first."""
    first, *others = zip(titles(shown), shown, strict=True)
    return [
        f"{title} against {first[0]}: {_change(first[1].timings, run.timings)}"
        for title, run in others
    ]


def _change(first: Mapping[str, Timing], timings: Mapping[str, Timing]) -> str:
    both = {name: timing.slowdown(first[name]) for name, timing in timings.items() if name in first}
    slowdowns = {name: slowdown for name, slowdown in both.items() if slowdown is not None}
    if not slowdowns:
        return "no uncontended benchmark in common"
    beyond = [
        slowdown
        for name, slowdown in slowdowns.items()
        if not is_within_spread(first[name], timings[name], slowdown)
    ]
    slower = sum(slowdown > 1 for slowdown in beyond)
    most = max(slowdowns, key=lambda name: abs(math.log(slowdowns[name])))
    return (
        f"{many(len(slowdowns), 'benchmark')}, {slower} slower, {len(beyond) - slower} faster, the "
        f"others within their spread; {short_name(most)} differs most, "
        f"taking {_factor(slowdowns[most])} the time"
    )
