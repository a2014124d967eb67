"""Shows runs side by side, one column per run or per kind of machine and software."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from prooflops.suite.fleet.nodes import NodeRun, Timing, collected, short_name
from prooflops.suite.fleet.slow import LEAST_SLOWDOWN
from prooflops.suite.page import delivery
from prooflops_gate.console.tables import engineering, many, times_as

MOST_UNGROUPED_RUNS = 8
# A crashed test settles nothing.
UNSETTLED = ("not checked", "error")
FACTS_SHOWN_WITHOUT_NAME = ("kind", "node", "machines", "date")


@dataclass(frozen=True)
class Column:
    """Runs shown together: the newest run per machine.

    Several machines are shown by the median one's times, the widest spreads, and how many of them
    have which verdict. A claim is listed where its test settled it.
    """

    title: str
    verdict: str
    timings: Mapping[str, Timing]
    claims: Mapping[str, str]
    figures: Mapping[str, str]


def column_of(title: str, runs: Sequence[NodeRun]) -> Column:
    timings = collected(run.timings for run in runs)
    claims = collected(run.verdicts for run in runs)
    figures = collected({each.name: each for each in run.figures} for run in runs)
    settled = {}
    for claim, found in claims.items():
        verdicts = [verdict for verdict in found if verdict not in UNSETTLED]
        if verdicts:
            settled[claim] = counted(verdicts)
    return Column(
        title,
        counted(run.answer for run in runs),
        {name: _middle(group) for name, group in timings.items()},
        settled,
        {name: _figure_text(group) for name, group in figures.items()},
    )


def _middle(timings: Sequence[Timing]) -> Timing:
    """The median machine of those that did the most common work, with the widest spread."""
    ((common, _),) = Counter(each.work for each in timings).most_common(1)
    alike = sorted((each for each in timings if each.work == common), key=lambda each: each.time_s)
    return replace(alike[len(alike) // 2], spread=max(each.spread for each in alike))


def counted(words: Iterable[str]) -> str:
    """The one word, or several words with the number of each.

    >>> counted(["holds", "holds"]), counted(["holds", "FAILS", "holds"])
    ('holds', 'holds ×2, FAILS ×1')
    """
    found = Counter(words)
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{word} ×{count}" for word, count in found.most_common())


def _figure_text(found: Sequence[delivery.Figure]) -> str:
    """The figure of the median machine, marked where one is below its floor."""
    ordered = sorted(found, key=lambda figure: float(figure.entry["value"]))
    below = sum(each.met is False for each in found)
    number = f" ×{below}" if len(found) > 1 else ""
    marked = f" BELOW FLOOR{number}" if below else ""
    return delivery.value_text(ordered[len(ordered) // 2]) + marked


def columns(runs: Sequence[NodeRun]) -> list[Column]:
    """Columns for these runs, oldest first. Titles show only the differences."""
    if len(runs) <= MOST_UNGROUPED_RUNS:
        groups = [[run] for run in runs]
        facts = [
            {"kind": run.kind, "node": run.node, **run.software, "date": run.date[:19]}
            for run in runs
        ]
    else:
        alike: dict[tuple[str, ...], dict[str, NodeRun]] = {}
        for run in runs:
            alike.setdefault((run.kind, *run.software.values()), {})[run.node] = run
        groups = [[*group.values()] for group in alike.values()]
        facts = [
            {"kind": group[0].kind, **group[0].software, "machines": f"x{len(group)}"}
            for group in groups
        ]
    return list(map(column_of, distinguishing(facts), groups))


def distinguishing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Titles of the facts that differ; the date only if no other fact separates two rows.

    A host that is the only one of its kind is named by its kind.

    >>> distinguishing([{"kind": "a", "torch": "2.6"}, {"kind": "a", "torch": "2.7"}])
    ['torch 2.6', 'torch 2.7']
    """
    differ = [key for key in rows[0] if _number_of_values(rows, [key]) > 1]
    left_out = {"date"} if _number_of_values(rows, ["kind"]) < len(rows) else {"date", "node"}
    shown = [key for key in differ if key not in left_out]
    if _number_of_values(rows, shown) < len(rows):
        shown = differ
    titles = []
    for row in rows:
        words = []
        for key in shown:
            if row[key]:
                name = "" if key in FACTS_SHOWN_WITHOUT_NAME else f"{key} "
                words.append(name + row[key])
        titles.append(", ".join(words) or row["kind"])
    return titles


def _number_of_values(rows: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(row[key] for key in keys) for row in rows})


def contested_claims(shown: Sequence[Column]) -> list[list[str]]:
    """Claims that fail in a column, or that all settled differently, with each verdict."""
    rows = []
    for claim in sorted({claim for column in shown for claim in column.claims}):
        found = [column.claims.get(claim, "-") for column in shown]
        is_failed = any("FAILS" in verdict for verdict in found)
        is_uniform = len({*found}) == 1 and "×" not in found[0]
        if is_failed or not (is_uniform or "-" in found):
            rows.append([claim, *found])
    return rows


def delivered(shown: Sequence[Column]) -> list[list[str]]:
    """The verdict of each column, then each figure that one of them has."""
    rows = [["verdict", *(column.verdict for column in shown)]]
    for name in dict.fromkeys(name for column in shown for name in column.figures):
        cells = [column.figures.get(name, "-") for column in shown]
        rows.append([name, *cells])
    return rows


def times(shown: Sequence[Column]) -> list[list[str]]:
    """Each benchmark in the first column that has it, and its ratio to that in the others.

    Times are compared where the work is the same, else rates; without a common rate the sizes are
    named. A benchmark that only one of several columns measured is omitted. "~" marks a ratio that
    two runs of one machine may have: no difference was found.
    """
    rows = []
    for name in dict.fromkeys(name for column in shown for name in column.timings):
        found = [column.timings.get(name) for column in shown]
        first, *others = filter(None, found)
        if others or len(shown) == 1:
            by_rate = others and all(each.work != first.work for each in others)
            own = engineering(*first.rate) if by_rate and first.rate else ""
            cells = [_cell(first, each) if each else "-" for each in found]
            cells[found.index(first)] = own or engineering(first.time_s, "s")
            rows.append([short_name(name), *cells])
    return rows


def _cell(first: Timing, timing: Timing) -> str:
    slowdown = timing.slowdown(first)
    if slowdown is None:
        return f"not compared: {first.size}, {timing.size}"
    mark = "~ " if is_within_spread(first, timing, slowdown) else ""
    return mark + _factor(first, timing, slowdown)


def _factor(first: Timing, timing: Timing, slowdown: float) -> str:
    """The ratio of two times, or, where the work differs, of two rates."""
    is_same = timing.work == first.work
    return times_as(slowdown) if is_same else f"{times_as(1 / slowdown)} the rate"


def is_within_spread(first: Timing, timing: Timing, slowdown: float) -> bool:
    """Whether two runs of one machine may differ as much: by 3 %, or by both spreads together."""
    factor = max(slowdown, 1 / slowdown)
    return factor - 1 <= max(LEAST_SLOWDOWN, first.spread + timing.spread)


def changes(shown: Sequence[Column]) -> list[str]:
    """One sentence per further column: what got slower or faster than in the first."""
    first = shown[0]
    return [
        f"{column.title}, against {first.title}: {_change(first.timings, column.timings)}"
        for column in shown[1:]
    ]


def _change(first: Mapping[str, Timing], timings: Mapping[str, Timing]) -> str:
    both = [name for name in timings if name in first]
    if not both:
        return "no uncontended benchmark in common"
    found = {name: timings[name].slowdown(first[name]) for name in both}
    slowdowns = {name: each for name, each in found.items() if each is not None}
    by_rate = [name for name in slowdowns if timings[name].work != first[name].work]
    clauses = [_numbers(first, timings, slowdowns)] if slowdowns else []
    if by_rate:
        clauses.append(f"{len(by_rate)} by their rates, as the work differs")
    apart = [name for name in both if name not in slowdowns]
    if apart:
        sizes = f"{first[apart[0]].size} and {timings[apart[0]].size}"
        clauses.append(f"{len(apart)} not compared ({short_name(apart[0])}: {sizes})")
    return "; ".join(clauses)


def _numbers(
    first: Mapping[str, Timing], timings: Mapping[str, Timing], slowdowns: Mapping[str, float]
) -> str:
    beyond = [
        slowdown
        for name, slowdown in slowdowns.items()
        if not is_within_spread(first[name], timings[name], slowdown)
    ]
    slower = sum(each > 1 for each in beyond)
    numbers = {
        "slower": slower,
        "faster": len(beyond) - slower,
        "within their spread": len(slowdowns) - len(beyond),
    }
    said = ", ".join(f"{number} {word}" for word, number in numbers.items())
    most = max(slowdowns, key=lambda name: abs(math.log(slowdowns[name])))
    factor = _factor(first[most], timings[most], slowdowns[most])
    of_time = "" if factor.endswith("rate") else " the time"
    apart = median(abs(slowdown - 1) for slowdown in slowdowns.values())
    return (
        f"of {many(len(slowdowns), 'benchmark')} {said}; most in {short_name(most)}: "
        f"{factor}{of_time}; median difference {apart:.1%}"
    )
