"""`python -m prooflops compare`: compares the records of many runs on one page."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from prooflops import __version__
from prooflops.suite.fleet import columns as side_by_side
from prooflops.suite.fleet.nodes import NodeRun, read_runs
from prooflops.suite.fleet.slow import CONFIRMED, FEWEST_MACHINES, Fleet, fleets
from prooflops_gate.console.tables import many
from prooflops_gate.history import records as history
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section
from prooflops_gate.page.terminal import section_lines, width_of, wrapped

MOST_PRINTED_ROWS = 20
SLOW_HEAD = ["machine", "state", "slower by"]
FOOT = (
    "“~” marks a difference that two runs of one machine may have: less than 3 %, or than both "
    "spreads together. Contended measurements are omitted. A suspect that is slow in a second run, "
    "too, is bad; otherwise it was a one-off."
)


def run(sources: Sequence[str], folder: Path, say: Callable[[str], None] = print) -> int:
    """Compares the records of these sources. Returns 1 if two runs show a machine as bad.

    Raises ValueError for a source without a record.
    """
    runs, unreadable = read_runs(sources)
    return publish(runs, unreadable, folder, "compare", say)


def publish(
    runs: Sequence[NodeRun],
    unreadable: Sequence[str],
    folder: Path,
    name: str,
    say: Callable[[str], None],
) -> int:
    """Prints the comparison and writes it to `folder`. Returns 1 if a machine is bad."""
    found = fleets(runs)
    page = page_of(runs, found, unreadable)
    print_page(page, say)
    history.write_atomically(folder / f"{name}.md", markdown(page))
    history.write_atomically(folder / f"{name}.html", html(page))
    say(f"report: {folder}/{name}.html")
    return int(any(machine.state == CONFIRMED for fleet in found for machine in fleet.slow))


def page_of(runs: Sequence[NodeRun], found: Sequence[Fleet], unreadable: Sequence[str]) -> Page:
    """The page of a comparison: changes and slow machines, then the tables."""
    slow = [machine for fleet in found for machine in fleet.slow]
    shown = side_by_side.columns(runs, [machine.node for machine in slow])
    lead = [sentence(fleet) for fleet in found if len(fleet.machines) > 1]
    if len(runs) == 1:
        lead.append("Only one run was given, so there is nothing to compare it with")
    elif len(shown) == len(runs):
        lead = side_by_side.changes(shown) + lead
    else:
        answers = Counter(run.answer for run in {run.node: run for run in runs}.values())
        counted = ", ".join(f"{number} {answer}" for answer, number in answers.items())
        lead.append(f"The newest run of each machine: {counted}")
        lead.append("The tables show the machines that stand out, and one normal machine")
    partial = [run for run in runs if run.partial]
    rows = [[machine.node, machine.state, f"{machine.slowdown:.1%}"] for machine in slow]
    return Page(
        title=f"{many(len(runs), 'run')} of {many(len({run.node for run in runs}), 'machine')}",
        kind=f"prooflops {__version__} · runs compared · to {runs[-1].date[:10]}",
        lead=[f"{line}." for line in lead],
        warnings=[f"Partial run: {x.node}, {x.date[:16]}: {x.partial}." for x in partial],
        sections=[
            Section("Slow machines", [SLOW_HEAD, *rows]),
            *tables_of(shown),
            Section("Not read", remarks=unreadable),
        ],
        foot=FOOT,
    )


def sentence(fleet: Fleet) -> str:
    """The number of slow machines of a kind, and the smallest slowdown that would be named."""
    number = many(len(fleet.machines), "machine")
    if fleet.limit is None:
        return f"{fleet.kind}, {number}: {FEWEST_MACHINES} are needed to name a slow one"
    named = len(fleet.slow) or "none"
    return f"{fleet.kind}, {number}: {named} slower than the others by {fleet.limit:.1%} or more"


def tables_of(shown: Sequence[NodeRun]) -> Iterator[Section]:
    """The verdicts, the times and the claims side by side."""
    titles = side_by_side.titles(shown)
    yield Section("Does it deliver?", [["figure", *titles], *side_by_side.delivered(shown)])
    title = f"Time for the same work, against {titles[0]}"
    yield Section(title, [["benchmark", *titles], *side_by_side.times(shown)])
    claims = side_by_side.contested_claims(shown)
    yield Section("Claims that fail or differ", [["claim", *titles], *claims])


def print_page(page: Page, say: Callable[[str], None]) -> None:
    """Prints what changed, and the first rows of each table."""
    width = width_of(isatty=sys.stdout.isatty())
    for line in [*page.lead, f"{page.title}.", *page.warnings]:
        for part in wrapped(line, width):
            say(part)
    for section in page.shown:
        rows = section.rows[: MOST_PRINTED_ROWS + 1]
        for line in ("", section.title, *section_lines(replace(section, rows=rows), width)):
            say(line)
        if len(section.rows) > len(rows):
            say(f"and {len(section.rows) - len(rows)} more on the page")
