"""A baseline is a commit: it is checked out and measured beside this side.

Where the commit cannot be had, its stored figures are reported beside today's. Then exact
quantities and instructions are compared, and times decide nothing: between two sessions lies
whatever the machine did.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest

from prooflops_gate import counted_history, sides
from prooflops_gate.comparison import Comparison
from prooflops_gate.console.tables import many
from prooflops_gate.history import records
from prooflops_gate.history.records import Summary, Timed
from prooflops_gate.instruments.counts import count_row
from prooflops_gate.instruments.exact import claim_rows, exact_rows
from prooflops_gate.instruments.pace import FIRST
from prooflops_gate.options import Settings
from prooflops_gate.question import Question
from prooflops_gate.rows import TIME, Row, one_sided
from prooflops_gate.selection import Selection, files_of, selects_by_expression
from prooflops_gate.task import Task


@dataclass(frozen=True)
class Baseline:
    """The records of a baseline, and the commit they are of; or `why` that cannot be measured."""

    name: str
    records: tuple[Summary, ...]
    commit: str = ""
    why: str = ""


def found(settings: Settings, root: Path, benchmarks: Collection[str], own: str = "") -> Baseline:
    """The baseline that was named. Raises UsageError where there is none.

    `own`: this machine's fingerprint, where it is known; its records are preferred.
    """
    name = str(settings.baseline)
    try:
        then = records.baseline(settings.folder, name, own, settings.exact, benchmarks)
    except (records.UnknownBaseline, records.UnreadableRecord) as error:
        raise pytest.UsageError(str(error)) from error
    return Baseline(name, tuple(then), *commit_to_check_out(then, root))


def commit_to_check_out(then: Sequence[Summary], root: Path) -> tuple[str, str]:
    """The commit of these records, or why it cannot be checked out beside this side.

    One of them is empty.
    """
    commits = {each.commit for each in then}
    commit = next(iter(commits))
    why = ""
    if commits == {""} or sides.repository_of(root) is None:
        why = "not under git"
    elif len(commits) > 1:
        why = f"records of {len(commits)} commits"
    elif any(each.dirty for each in then):
        why = f"recorded with changes to {commit[:9]} that no commit holds"
    elif not sides.commit_named(root, commit):
        why = f"commit {commit[:9]} is not in this repository (a shallow clone lacks some)"
    elif commit == sides.commit_named(root, "HEAD") and not sides.is_changed(root):
        why = "recorded at this very commit"
    return ("" if why else commit), why


def stored_rows(then: Sequence[Summary], now: Sequence[Summary], note: str) -> list[Row]:
    """The rows of stored records beside today's.

    Times are reported, with `note`, and decide nothing.
    """
    names = dict.fromkeys(name for each in (*now, *then) for name in each.benchmarks)
    both = {name: (_timed(then, name), _timed(now, name)) for name in names}
    rows = []
    for name, (before, after) in both.items():
        old, new = _middle_s(before), _middle_s(after)
        if old is None or new is None:
            rows.append(one_sided(name, TIME, old, new))
        else:
            rows.append(Row(name, TIME, old, new, "INCONCLUSIVE", note=note))
    claims = claim_rows([each.verdicts for each in then], [each.verdicts for each in now])
    return [*rows, *exact_rows(both), *claims]


def _timed(side: Sequence[Summary], name: str) -> list[Timed]:
    return [each.benchmarks[name] for each in side if name in each.benchmarks]


def _middle_s(side: Sequence[Timed]) -> float | None:
    return median(timed.time_s for timed in side) if side else None


def conditions(then: Summary, now: Summary) -> str:
    """How the conditions of two records differ; empty where they do not."""
    if then.fingerprint_id == now.fingerprint_id:
        return "recorded in another way" if then.pace != now.pace else ""
    differing = "; ".join(records.differences(then.fingerprint, now.fingerprint))
    return f"recorded under other conditions ({differing or 'the digest of the fingerprint'})"


def report(baseline: Baseline, question: Question) -> Comparison:
    """Today's figures of one process beside the stored ones."""
    selection, settings, here = question.selection, question.settings, question.here
    question.say("one process: the baseline's commit cannot be measured beside it")
    tests = (*selection.benchmarks, *selection.others)
    task = Task(tests=tests, benchmarks_only=False, paces=FIRST)
    files = sides.existing(files_of(tests), here)
    done = question.processes.run([(here, files)], task)[0]
    question.heard(done)
    mine = records.summary_of(done.record, Path("replicate"), settings.exact)
    baseline = found(settings, here.root, selection.benchmarks, mine.fingerprint_id)
    then = [asked_of(each, selection) for each in baseline.records]
    rows = stored_rows(then, [mine], "times of another session decide nothing")
    counted = counted_history.Counted()
    if settings.by != TIME:
        counted = counted_history.compare_with_stored(question)
    rows += [count_row(name, each) for name, each in counted.found.items()]
    why = f"a report: the baseline's commit cannot be measured here: {baseline.why}"
    notes = [why, conditions(then[-1], mine), unselected(baseline, selection), *counted.notes]
    return Comparison(
        f"against the baseline {baseline.name} ({many(len(then), 'record')})",
        tuple(rows),
        tuple(filter(None, notes)),
        effort="1 process",
    )


def asked_of(record: Summary, selection: Selection) -> Summary:
    """The benchmarks of a record that this run is asked about: others are not missing."""
    kept = {}
    for name, timed in record.benchmarks.items():
        is_selected = name in selection.benchmarks or not selects_by_expression(selection.config)
        if selection.covers(timed.test or name) and is_selected:
            kept[name] = timed
    return replace(record, benchmarks=kept)


def unselected(baseline: Baseline, selection: Selection) -> str:
    """How many benchmarks of a baseline -k or -m may exclude, in words; empty where none is."""
    if not selects_by_expression(selection.config):
        return ""
    known = {name for each in baseline.records for name in each.benchmarks}
    left = known - set(selection.benchmarks)
    if not left:
        return ""
    return f"not selected, so not compared: {many(len(left), 'benchmark')} of the baseline"
