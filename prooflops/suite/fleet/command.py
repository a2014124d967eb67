"""`--report-compare`: compares the records of many runs on one page. It runs no test."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from prooflops import __version__
from prooflops.suite.fleet import columns as side_by_side
from prooflops.suite.fleet.bad_nodes import CONFIRMED, OVERALL, SUSPECT, Fleet, Named, fleets
from prooflops.suite.fleet.nodes import NodeRun, read_runs, short_name
from prooflops.suite.report import page
from prooflops.suite.report.drawing import Table
from prooflops.suite.report.terminal import width_of, wrapped
from prooflops_gate.console.tables import fitted, many, markdown_table, visible
from prooflops_gate.history import records as history

MOST_PRINTED = 20  # machines named, or rows of a table, on the terminal


def run(config: pytest.Config, say: Callable[[str], None] = print) -> int:
    """Runs `--report-compare`. Returns 1 if two runs show a machine as bad. Raises UsageError for a bad argument."""
    gc.disable()  # it would scan all loaded records repeatedly
    try:
        return compare(config, say)
    finally:
        gc.enable()


def compare(config: pytest.Config, say: Callable[[str], None]) -> int:
    try:
        runs, unreadable = read_runs(
            [*config.option.report_compare, *config.option.file_or_dir]
        )  # a glob gives many
        kinds = list(dict.fromkeys(run.kind for run in runs))
        prices = side_by_side.validated_prices(config.option.report_price, kinds)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    found = fleets(runs)
    tables = {title: rows for title, rows in tables_of(runs, prices).items() if len(rows) > 1}
    changed = side_by_side.changes(side_by_side.columns(runs))
    if len(runs) > 1 and not changed and len({run.node for run in runs}) == 1:
        changed = [
            f"the newest of these {len(runs)} runs of one machine is shown: pytest --gate-history shows all"
        ]
    lines = [*changed, *headline(runs, found), *(f"unreadable: {line}" for line in unreadable)]
    folder = Path(config.option.report)
    html = page.render(
        "fleet.html.j2",
        version=__version__,
        runs=runs,
        changed=changed,
        partial=partial_runs(runs),
        fleets=[
            (fleet, [(named, described(named)) for named in fleet.named])
            for fleet in found
            if len(fleet.nodes) > 1
        ],
        unreadable=unreadable,
        tables={title: Table(rows[0], rows[1:]) for title, rows in tables.items()},
        counts=counts(runs),
        days=days_of(runs),
    )
    present("Runs compared", lines, tables, folder / "compare.md", say)
    history.write_atomically(folder / "compare.html", html)
    say(f"report: {folder}/compare.html")
    return int(any(named.state == CONFIRMED for fleet in found for named in fleet.named))


def present(
    title: str,
    lines: Sequence[str],
    tables: Mapping[str, list[list[str]]],
    file: Path,
    say: Callable[[str], None],
) -> None:
    """Prints lines and tables, and writes them to a file as Markdown."""
    width = width_of(sys.stdout.isatty())
    text = [f"# {title}", "", *(f"- {line}" for line in lines), ""]
    for line in lines:
        for part in wrapped(visible(line), width, "  "):
            say(part)
    for name, rows in tables.items():
        text += [f"## {name}", "", *markdown_table(rows), ""]
        for line in ("", name, *fitted(rows[: MOST_PRINTED + 1], width)):
            say(visible(line))
        if len(rows) > MOST_PRINTED + 1:
            say(f"and {len(rows) - MOST_PRINTED - 1} more on the page")
    history.write_atomically(file, "\n".join(text) + "\n")


def tables_of(runs: list[NodeRun], prices: dict[str, float]) -> dict[str, list[list[str]]]:
    """The tables by title; an empty table has only its head."""
    shown = side_by_side.columns(runs)
    head = [column.title for column in shown]
    return {
        f"Time, against {shown[0].title}": [["benchmark", *head], *side_by_side.times(shown)],
        "Best rate of each dtype": [["dtype", *head], *side_by_side.rates(shown, prices)],
        "Claims that differ": [["claim", *head], *side_by_side.differing_claims(shown)],
    }


def partial_runs(runs: Sequence[NodeRun]) -> list[str]:
    """Names each run of a part of the suite, the first MOST_PRINTED."""
    parts = [
        f"part of a run: {run.node}, {run.date[:16]}: {run.partial}" for run in runs if run.partial
    ]
    more = len(parts) - MOST_PRINTED
    return parts[:MOST_PRINTED] + ([f"and {more} more are parts of a run"] if more > 0 else [])


def headline(runs: list[NodeRun], found: list[Fleet]) -> list[str]:
    """The compared runs, the machines named, and the detection limits."""
    lines = [f"{counts(runs)}, {days_of(runs)}"]
    lines += partial_runs(runs)
    for fleet in found:
        if len(fleet.nodes) < 2:
            continue
        states = f"{summary(fleet)}; " if fleet.least or fleet.named else ""
        lines.append(f"{fleet.kind}, {many(len(fleet.nodes), 'machine')}: {states}{fleet.limits}")
        lines += [
            f"{named.state}: {named.node}: {described(named)}"
            for named in fleet.named[:MOST_PRINTED]
        ]
        if len(fleet.named) > MOST_PRINTED:
            lines.append(f"and {len(fleet.named) - MOST_PRINTED} more, on the page")
        if fleet.named and fleet.named[0].common:
            lines.append(f"those named have in common: {'; '.join(fleet.named[0].common)}")
        if fleet.faster:
            lines.append(f"faster than the others: {', '.join(fleet.faster)}")
    return lines


def counts(runs: Sequence[NodeRun]) -> str:
    return f"{many(len(runs), 'run')} of {many(len({run.node for run in runs}), 'machine')}"


def days_of(runs: list[NodeRun]) -> str:
    """The first and the last day, or the only day."""
    days = sorted({run.date[:10] for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def summary(fleet: Fleet) -> str:
    states = [named.state for named in fleet.named]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return counts or "none is named slower than the others"


def described(named: Named) -> str:
    """Describes a named machine: its slowdown, the benchmarks, and the next step."""
    overall = named.slower.get(OVERALL)
    single = {name: each for name, each in named.slower.items() if name != OVERALL}
    parts = (
        [f"{overall.share:.1%} slower overall (named from {overall.least:.1%} on)"]
        if overall
        else []
    )
    if single:
        worst = max(single, key=lambda name: single[name].share)
        most = f"most in {short_name(worst)} by {single[worst].share:.1%}"
        parts.append(f"slower in {len(single)} of {named.compared} benchmarks, {most}")
    then = f"run it again at the same time as {named.beside}" if named.beside else "run it again"
    if named.state != SUSPECT:
        beside = f"beside {named.beside}" if named.beside else "without a good machine beside it"
        then = f"a second run, {beside}, {'says the same' if named.state == 'bad' else 'does not say so'}"
    return f"{'; '.join(parts)}; {then}"
