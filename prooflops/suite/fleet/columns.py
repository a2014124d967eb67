"""Shows runs side by side, one column per run or per kind of machine and software."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from prooflops.suite.fleet.nodes import NodeRun, collected, short_name
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

    Several machines are shown by their median times, their widest spreads, and how many of them
    have which verdict. A claim is listed where its test settled it.
    """

    title: str
    verdict: str
    times_s: Mapping[str, float]
    spreads: Mapping[str, float]
    claims: Mapping[str, str]
    figures: Mapping[str, str]


def column_of(title: str, runs: Sequence[NodeRun]) -> Column:
    times = collected(run.times_s for run in runs)
    spreads = collected(run.spreads for run in runs)
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
        {name: median(group) for name, group in times.items()},
        {name: max(group) for name, group in spreads.items()},
        settled,
        {name: _figure_text(group) for name, group in figures.items()},
    )


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


def differing_claims(shown: Sequence[Column]) -> list[list[str]]:
    """Claims that all columns settled, and whose verdicts differ, with the verdicts per column."""
    rows = []
    for claim, first in sorted(shown[0].claims.items()):
        found = [column.claims.get(claim, "") for column in shown]
        if all(found) and (set(found) != {first} or "×" in first):
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
    """Each benchmark's time in the first column that has one, and the ratio to it in the others.

    A benchmark that only one of several columns measured is omitted. "~" marks a ratio that two
    runs of one machine may have: no difference was found.
    """
    rows = []
    for name in dict.fromkeys(name for column in shown for name in column.times_s):
        having = [column for column in shown if name in column.times_s]
        if len(having) >= min(len(shown), 2):
            cells = [_time_text(having[0], column, name) for column in shown]
            rows.append([short_name(name), *cells])
    return rows


def _time_text(first: Column, column: Column, name: str) -> str:
    if name not in column.times_s:
        return "-"
    if column is first:
        return engineering(column.times_s[name], "s")
    mark = "~ " if is_within_spread(first, column, name) else ""
    return mark + times_as(column.times_s[name] / first.times_s[name])


def is_within_spread(first: Column, column: Column, name: str) -> bool:
    """Whether two runs of one machine may differ as much: by 3 %, or by both spreads together."""
    ratio = column.times_s[name] / first.times_s[name]
    return abs(ratio - 1) <= max(LEAST_SLOWDOWN, first.spreads[name] + column.spreads[name])


def changes(shown: Sequence[Column]) -> list[str]:
    """One sentence per further column: what got slower or faster than in the first."""
    first = shown[0]
    return [
        f"{column.title}, against {first.title}: {_change(first, column)}" for column in shown[1:]
    ]


def _change(first: Column, column: Column) -> str:
    names = [name for name in column.times_s if name in first.times_s]
    if not names:
        return "no uncontended benchmark in common"
    ratios = {name: column.times_s[name] / first.times_s[name] for name in names}
    beyond = [name for name in names if not is_within_spread(first, column, name)]
    slower = sum(ratios[name] > 1 for name in beyond)
    numbers = {
        "slower": slower,
        "faster": len(beyond) - slower,
        "within their spread": len(names) - len(beyond),
    }
    said = ", ".join(f"{number} {word}" for word, number in numbers.items())
    most = max(names, key=lambda name: abs(math.log(ratios[name])))
    apart = median(abs(ratio - 1) for ratio in ratios.values())
    return (
        f"of {many(len(names), 'benchmark')} {said}; most in {short_name(most)}: "
        f"{times_as(ratios[most])} the time; median difference {apart:.1%}"
    )
