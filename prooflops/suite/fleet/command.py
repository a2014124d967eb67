"""`--report-compare`: compares the records of many runs on one page. It runs no test."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from prooflops import __version__
from prooflops.suite.fleet import columns as side_by_side
from prooflops.suite.fleet.bad_nodes import CONFIRMED, OVERALL, SUSPECT, Fleet, Named, fleets
from prooflops.suite.fleet.nodes import NodeRun, read_runs, short_name
from prooflops_gate.console.tables import many
from prooflops_gate.history import records as history
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section
from prooflops_gate.page.terminal import section_lines, width_of, wrapped

MOST_PRINTED = 20  # machines named, or rows of a table, on the terminal
CHANCE = "A healthy fleet has a machine named with a chance of 5 % in all; a second run confirms."
FOOT = (
    "“~”: less than 3 %, or than both spreads together, by which two runs of one machine may "
    "differ. Contended measurements are left out."
)


def run(config: pytest.Config, say: Callable[[str], None] = print) -> int:
    """Runs `--report-compare`. Returns 1 if two runs show a machine as bad.

    Raises UsageError for a bad argument.
    """
    # The collector would scan all loaded records repeatedly.
    gc.disable()
    try:
        return compare(config, say)
    finally:
        gc.enable()


def compare(config: pytest.Config, say: Callable[[str], None]) -> int:
    # A glob gives many: all but the first are arguments of pytest.
    sources = [*config.option.report_compare, *config.option.file_or_dir]
    try:
        runs, unreadable = read_runs(sources)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    found = fleets(runs)
    page = page_of(runs, found, unreadable)
    folder = Path(config.option.report)
    print_page(page, headline(runs, found), say)
    history.write_atomically(folder / "compare.md", markdown(page))
    history.write_atomically(folder / "compare.html", html(page))
    say(f"report: {folder}/compare.html")
    return int(any(named.state == CONFIRMED for fleet in found for named in fleet.named))


def page_of(runs: Sequence[NodeRun], found: Sequence[Fleet], unreadable: Sequence[str]) -> Page:
    """The page: what changed, then the verdicts side by side, then each kind of machine."""
    named = [fleet for fleet in found if fleet.named]
    lead = [f"{line}." for line in changed(runs)]
    for fleet in named:
        verb = "is" if len(fleet.named) == 1 else "are"
        count = f"{len(fleet.named)} of {len(fleet.nodes):,}"
        lead.append(f"{fleet.kind}: {count} {verb} named slower than the others.")
    return Page(
        title=counts(runs),
        kind=f"prooflops {__version__} · runs compared · {days_of(runs)}",
        lead=lead,
        warnings=[f"{line}." for line in partial_runs(runs)],
        sections=[
            *tables_of(runs),
            *(fleet_section(fleet) for fleet in found if len(fleet.nodes) > 1),
            Section("Not read", remarks=unreadable),
        ],
        foot=FOOT,
    )


def changed(runs: Sequence[NodeRun]) -> list[str]:
    """What got slower or faster; of one run, that there is nothing to compare it with."""
    lines = side_by_side.changes(side_by_side.columns(runs))
    if len(runs) == 1:
        return ["one run: there is no other to compare it with"]
    if not lines and len({run.node for run in runs}) == 1:
        newest = f"the newest of these {len(runs)} runs of one machine is shown"
        return [f"{newest}: pytest --gate-history shows all"]
    return lines


def tables_of(runs: Sequence[NodeRun]) -> list[Section]:
    """The tables that have rows, the verdicts first."""
    shown = side_by_side.columns(runs)
    head = [column.title for column in shown]
    tables = {
        "Does it deliver?": ["figure", *head],
        f"Time, against {shown[0].title}": ["benchmark", *head],
        "Claims that differ": ["claim", *head],
    }
    rows = (
        side_by_side.delivered(shown),
        side_by_side.times(shown),
        side_by_side.differing_claims(shown),
    )
    return [
        Section(title, [first, *found])
        for (title, first), found in zip(tables.items(), rows, strict=True)
        if found
    ]


def fleet_section(fleet: Fleet) -> Section:
    """The machines of one kind that are named, and what would have been."""
    limits = fleet.limits[0].upper() + fleet.limits[1:]
    rows = [[named.state, named.node, described(named)] for named in fleet.named]
    return Section(
        fleet.kind,
        [["", "machine", "why"], *rows] if rows else (),
        [f"{limits}. {CHANCE}"],
    )


def print_page(page: Page, lines: Sequence[str], say: Callable[[str], None]) -> None:
    """Prints what changed, the machines named, and the tables' first rows."""
    width = width_of(isatty=sys.stdout.isatty())
    tables = [each for each in page.sections if each.rows and each.rows[0][0] != ""]
    unread = [f"unreadable: {line}" for each in page.sections[-1:] for line in each.remarks]
    for line in [*(each.rstrip(".") for each in page.lead), *lines, *unread]:
        for part in wrapped(line, width):
            say(part)
    for table in tables:
        rows = table.rows[: MOST_PRINTED + 1]
        for line in ("", table.title, *section_lines(Section(table.title, rows), width)):
            say(line)
        if len(table.rows) > len(rows):
            say(f"and {len(table.rows) - len(rows)} more on the page")


def partial_runs(runs: Sequence[NodeRun]) -> list[str]:
    """Names each run of a part of the suite, the first MOST_PRINTED."""
    parts = [
        f"part of a run: {run.node}, {run.date[:16]}: {run.partial}" for run in runs if run.partial
    ]
    more = len(parts) - MOST_PRINTED
    return parts[:MOST_PRINTED] + ([f"and {more} more are parts of a run"] if more > 0 else [])


def headline(runs: Sequence[NodeRun], found: Sequence[Fleet]) -> list[str]:
    """The compared runs, the machines named, and the detection limits."""
    lines = [f"{counts(runs)}, {days_of(runs)}", *partial_runs(runs)]
    for fleet in found:
        if len(fleet.nodes) > 1:
            lines += _fleet_lines(fleet)
    return lines


def _fleet_lines(fleet: Fleet) -> list[str]:
    states = f"{summary(fleet)}; " if fleet.least or fleet.named else ""
    lines = [f"{fleet.kind}, {many(len(fleet.nodes), 'machine')}: {states}{fleet.limits}"]
    shown = fleet.named[:MOST_PRINTED]
    lines += [f"{named.state}: {named.node}: {described(named)}" for named in shown]
    if len(fleet.named) > MOST_PRINTED:
        lines.append(f"and {len(fleet.named) - MOST_PRINTED} more, on the page")
    return lines


def counts(runs: Sequence[NodeRun]) -> str:
    if len(runs) == 1:
        return f"one run of {runs[0].node}"
    return f"{many(len(runs), 'run')} of {many(len({run.node for run in runs}), 'machine')}"


def days_of(runs: Sequence[NodeRun]) -> str:
    """The first and the last day, or the only day."""
    days = sorted({run.date[:10] for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def summary(fleet: Fleet) -> str:
    states = [named.state for named in fleet.named]
    found = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return found or "none is named slower than the others"


def described(named: Named) -> str:
    """Describes a named machine: its slowdown, the benchmarks, and the next step."""
    overall = named.slower.get(OVERALL)
    single = {name: each for name, each in named.slower.items() if name != OVERALL}
    parts = []
    if overall:
        parts.append(f"{overall.share:.1%} slower overall (named from {overall.least:.1%} on)")
    if single:
        worst = max(single, key=lambda name: single[name].share)
        most = f"most in {short_name(worst)} by {single[worst].share:.1%}"
        parts.append(f"slower in {len(single)} of {named.compared} benchmarks, {most}")
    return f"{'; '.join(parts)}; {_next_step(named)}"


def _next_step(named: Named) -> str:
    if named.state == SUSPECT:
        beside = f" at the same time as {named.beside}" if named.beside else ""
        return f"run it again{beside}"
    beside = f"beside {named.beside}" if named.beside else "without a good machine beside it"
    says = "says the same" if named.state == CONFIRMED else "does not say so"
    return f"a second run, {beside}, {says}"
