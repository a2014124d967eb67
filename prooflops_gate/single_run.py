"""One plain run of pytest reported beside a baseline, or stored as one.

The options of the gate without replicates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pytest

from prooflops_gate import baseline, run_state
from prooflops_gate.baseline import Baseline
from prooflops_gate.comparison import Comparison
from prooflops_gate.console.tables import aligned, coloured, many, write_lines
from prooflops_gate.history import records
from prooflops_gate.history.run_record import fingerprint
from prooflops_gate.options import Settings
from prooflops_gate.report.files import publish
from prooflops_gate.report.result import FINISHED, INTERRUPTED, Judge
from prooflops_gate.rows import table, with_skips

OUTCOME = pytest.StashKey[list[str]]()
BASELINE = pytest.StashKey[Baseline]()
UNFINISHED: Mapping[int, str] = {
    pytest.ExitCode.TESTS_FAILED: "tests failed",
    pytest.ExitCode.INTERRUPTED: "the run was interrupted",
    pytest.ExitCode.NO_TESTS_COLLECTED: "no test ran",
}
NOTE = "times of another session decide nothing: --gate --gate-baseline measures its commit here"


@dataclass(frozen=True)
class Outcomes:
    """The tests that failed in this run, and why others were skipped."""

    failed: tuple[str, ...]
    skipped: Mapping[str, str]


def check_baseline(config: pytest.Config, settings: Settings, benchmarks: Collection[str]) -> None:
    """Refuses, before anything runs, a baseline that is not there."""
    own = records.fingerprint_id(fingerprint(config))
    # Read now: once this run's own record is stored, it is the latest.
    config.stash[BASELINE] = baseline.found(settings, config.rootpath, benchmarks, own)


def finish(config: pytest.Config, settings: Settings, status: int, disturbing: str) -> None:
    """Compares this run's record, and stores it under a name if the run's exit `status` is 0."""
    path = config.stash[run_state.RECORD_PATH]
    lines = config.stash[OUTCOME] = [disturbing] if disturbing else []
    if settings.baseline:
        # Read back, because JSON turns a tuple into a list, and this run is compared with stored
        # ones.
        mine = records.read_summary(path, settings.exact)
        lines += report(config, settings, mine, status)
    if not settings.record:
        return
    if status != pytest.ExitCode.OK:
        why = UNFINISHED.get(status, f"the run ended with exit code {int(status)}")
        lines.append(f"not stored as {settings.record}: {why}")
        return
    try:
        stored = records.store_baseline(settings.record, [path])
        lines.append(f"baseline {settings.record}: this run ({path.name}), named in {stored}")
    except OSError as error:
        why = f"the baseline {settings.record} could not be stored: {error}"
        config.stash[run_state.STORAGE_ERROR] = why


def report(
    config: pytest.Config, settings: Settings, mine: records.Summary, status: int
) -> list[str]:
    """This run beside the baseline, as lines; and as the files that the options ask for."""
    known, ran = config.stash[BASELINE], outcomes(config)
    then = list(known.records)
    rows = with_skips(baseline.stored_rows(then, [mine], NOTE), ran.skipped)
    found = Comparison(
        f"against {known.name} ({many(len(then), 'record')})",
        tuple(rows),
        notes=tuple(filter(None, [baseline.conditions(then[-1], mine)])),
    )
    state, reason = FINISHED, ""
    if status == pytest.ExitCode.INTERRUPTED:
        state, reason = INTERRUPTED, UNFINISHED[status]
    result = Judge(settings, {}).result(found, ran.failed, state, reason)
    publish(result, config, settings)
    shown = table(rows)
    said = aligned(shown) if len(shown) > 1 else []
    return [*said, *found.notes, f"{found.title}: {result.last}"]


def outcomes(config: pytest.Config) -> Outcomes:
    """What the terminal's reporter has heard of this run's tests."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    stats = terminal.stats if terminal else {}
    failed = tuple(each.nodeid for each in stats.get("failed", ()))
    return Outcomes(failed, skip_reasons(stats.get("skipped", ())))


def skip_reasons(reports: Iterable[pytest.TestReport]) -> dict[str, str]:
    """Skip reasons by test id."""
    found = {}
    for report in reports:
        if report.skipped and isinstance(report.longrepr, tuple):
            found[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
    return found


def print_summary(terminal: pytest.TerminalReporter) -> None:
    """Prints the comparison, if there was one."""
    if lines := terminal.config.stash.get(OUTCOME, []):
        terminal.section("compared with the history")
        write_lines(terminal, map(coloured, lines))
