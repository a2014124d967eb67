"""Runs side by side: one column per run or, for many runs, per kind of machine and software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import median

from prooflops.suite.fleet.nodes import NodeRun, short_name
from prooflops.suite.page import delivery
from prooflops_gate.console.tables import engineering, many, times_as
from prooflops_gate.statistics.outliers import LEAST_SHARE

# More single runs than this are grouped.
MOST_COLUMNS = 8
DELIVERS = "DELIVERS"
PART = "part of a run"
UNSETTLED = ("not checked", "error")


@dataclass(frozen=True)
class Column:
    """Runs shown together: the newest run per machine."""

    title: str
    kind: str
    runs: Sequence[NodeRun]

    @cached_property
    def verdicts(self) -> Mapping[str, Counter[str]]:
        """Per claim, the number of machines per verdict."""
        found: dict[str, Counter[str]] = {}
        for (claim, verdict), count in Counter(
            chain.from_iterable(run.verdicts.items() for run in self.runs)
        ).items():
            found.setdefault(claim, Counter())[verdict] = count
        return found

    def verdict(self, claim: str) -> str:
        """The verdict, or how many machines have which; "-" where none settled it.

        A crashed test settles nothing.
        """
        counts = Counter(
            {
                verdict: n
                for verdict, n in self.verdicts.get(claim, {}).items()
                if verdict not in UNSETTLED
            }
        )
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{verdict} ×{count}" for verdict, count in counts.most_common()) or "-"

    def time_s(self, name: str) -> float | None:
        times = [run.times_s[name] for run in self.runs if name in run.times_s]
        return median(times) if times else None

    @cached_property
    def spreads(self) -> Mapping[str, float]:
        """The widest spread per benchmark, as a share of the median."""
        found: dict[str, float] = {}
        for run in self.runs:
            for name, spread in run.spreads.items():
                found[name] = max(found.get(name, 0.0), spread)
        return found


def columns(runs: Sequence[NodeRun]) -> list[Column]:
    """Columns for these runs, oldest first. Titles show only the differences."""
    if len(runs) <= MOST_COLUMNS:
        groups = [[run] for run in runs]
        described = [_described(run) for run in runs]
    else:
        newest: dict[tuple[str, ...], dict[str, NodeRun]] = {}
        for run in runs:
            newest.setdefault((run.kind, *run.software.values()), {})[run.node] = run
        groups = [[*group.values()] for group in newest.values()]
        described = [
            {"kind": group[0].kind, **group[0].software, "machines": f"x{len(group)}"}
            for group in groups
        ]
    return [
        Column(title, group[0].kind, group)
        for title, group in zip(distinguishing(described), groups, strict=True)
    ]


def _described(run: NodeRun) -> dict[str, str]:
    extent = PART if run.partial else "whole run"
    moment = {"date": run.date[:19], "extent": extent}
    return {"kind": run.kind, "node": run.node, **run.software, **moment}


def distinguishing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Titles of the fields that differ; the date only if no other field separates two rows.

    A host that is the only one of its kind is named by its kind.

    >>> distinguishing([{"node": "a", "torch": "2.6"}, {"node": "a", "torch": "2.7"}])
    ['torch 2.6', 'torch 2.7']
    """
    differ = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if len({row.get(key) for row in rows}) > 1
    ]
    own_kinds = len({row.get("kind") for row in rows}) == len(rows)
    shown = [key for key in differ if key != "date" and not (own_kinds and key == "node")]
    if len({tuple(row.get(key) for key in shown) for row in rows}) < len(rows) and "date" in differ:
        shown.append("date")
    plain = ("kind", "node", "machines", "date", "extent")
    return [
        ", ".join(row[key] if key in plain else f"{key} {row[key]}" for key in shown if key in row)
        or next(iter(row.values()))
        for row in rows
    ]


def differing_claims(shown: Sequence[Column]) -> list[list[str]]:
    """Claims that all columns checked, and whose verdicts differ, with the verdict per column."""
    claims = sorted(set().union(*(column.verdicts for column in shown)))
    rows = [[claim, *(column.verdict(claim) for column in shown)] for claim in claims]
    return [row for row in rows if "-" not in row[1:] and (len(set(row[1:])) > 1 or "×" in row[1])]


def delivered(shown: Sequence[Column]) -> list[list[str]]:
    """The verdict of each column, then each figure that has a floor in one of them."""
    rows = [["verdict", *(_verdicts(column) for column in shown)]]
    names: dict[str, None] = {}
    for column in shown:
        for run in column.runs:
            names.update(dict.fromkeys(each.name for each in run.figures))
    for name in names:
        cells = [_figure_text(column, name) for column in shown]
        rows.append([name, *cells])
    return rows


def _verdicts(column: Column) -> str:
    """The verdict, or of several machines how many have which."""
    found: Counter[str] = Counter()
    for run in column.runs:
        mark, text = delivery.verdict(run.figures)
        found[mark.word if mark.word == DELIVERS else f"{mark.word}: {text.partition(';')[0]}"] += 1
    if len(column.runs) == 1:
        return next(iter(found))
    return ", ".join(f"{word} ×{count}" for word, count in found.most_common())


def _figure_text(column: Column, name: str) -> str:
    """The figure of the column's median machine, marked where one is below its floor."""
    found = [each for run in column.runs for each in run.figures if each.name == name]
    if not found:
        return "-"
    middle = sorted(found, key=lambda each: each.entry["value"])[len(found) // 2]
    below = sum(each.met is False for each in found)
    marked = f" BELOW FLOOR{f' ×{below}' if len(found) > 1 else ''}" if below else ""
    return delivery.value_text(middle) + marked


def times(shown: Sequence[Column]) -> list[list[str]]:
    """Each benchmark's time in the first column that has one, and the ratio to it in the others.

    A benchmark that only one of several columns measured is left out. "~" marks a ratio that two
    runs of one machine may have: no difference was found.
    """
    rows = []
    for name in dict.fromkeys(name for column in shown for name in column.spreads):
        having = [place for place, column in enumerate(shown) if column.time_s(name)]
        if len(having) < min(len(shown), 2):
            continue
        cells, first = ["-"] * len(shown), shown[having[0]]
        cells[having[0]] = engineering(first.time_s(name) or 0.0, "s")
        for place in having[1:]:
            ratio, within = compared(first, shown[place], name)
            cells[place] = f"{'~ ' * within}{times_as(ratio)}"
        rows.append([short_name(name), *cells])
    return rows


def compared(first: Column, column: Column, name: str) -> tuple[float, bool]:
    """The ratio of two columns' times, 0 without both; whether it is within what two runs of one
    machine differ by.

    That is 3 %, or both spreads together where these are wider.
    """
    before, after = first.time_s(name), column.time_s(name)
    ratio = after / before if before and after else 0.0
    spreads = first.spreads.get(name, 0.0) + column.spreads.get(name, 0.0)
    return ratio, abs(ratio - 1) <= max(LEAST_SHARE, spreads)


def changes(shown: Sequence[Column]) -> list[str]:
    """What got slower or faster than in the first column, a sentence for each other one."""
    first = shown[0]
    return [
        f"{column.title}, against {first.title}: {_change(first, column)}" for column in shown[1:]
    ]


def _change(first: Column, column: Column) -> str:
    found = [(short_name(name), *compared(first, column, name)) for name in column.spreads]
    both = [each for each in found if each[1]]
    if not both:
        return "no benchmark was measured without contention in both"
    beyond = [(ratio, name) for name, ratio, is_within in both if not is_within]
    slower = [each for each in beyond if each[0] > 1]
    faster = [each for each in beyond if each[0] < 1]
    parts = []
    if slower:
        ratio, name = max(slower)
        parts.append(f"{len(slower)} slower (most {name}: {times_as(ratio)} the time)")
    if faster:
        ratio, name = min(faster)
        parts.append(f"{len(faster)} faster (most {name}: {times_as(ratio)} the time)")
    if len(both) > len(beyond):
        parts.append(f"{len(both) - len(beyond)} within their spread")
    if len(found) > len(both):
        parts.append(f"{len(found) - len(both)} more not compared")
    apart = median(abs(ratio - 1) for _, ratio, _ in both)
    return f"of {many(len(both), 'benchmark')} {', '.join(parts)}; median difference {apart:.1%}"
