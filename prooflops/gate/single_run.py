"""One run of pytest compared with a baseline, or stored as one: what the options of the gate do without replicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from prooflops import run_state
from prooflops.console.tables import aligned, write_coloured
from prooflops.gate.settings import Settings
from prooflops.history import comparison as compare
from prooflops.history import record as recording
from prooflops.history import records as history

OUTCOME = pytest.StashKey[list[str]]()
BASELINE = pytest.StashKey[list[history.Summary]]()
UNFINISHED: Mapping[int, str] = {
    pytest.ExitCode.TESTS_FAILED: "tests failed",
    pytest.ExitCode.INTERRUPTED: "the run was interrupted",
    pytest.ExitCode.NO_TESTS_COLLECTED: "no test ran",
}


def check_baseline(config: pytest.Config, settings: Settings) -> None:
    """Refuses, before anything runs, a baseline that is not there or is another machine's."""
    own = recording.fingerprint(config)
    # Kept: once this run's own record is stored, it is the latest.
    summaries = config.stash[BASELINE] = baseline_of(settings, history.fingerprint_id(own))
    other = summaries[-1]
    if other.fingerprint_id == history.fingerprint_id(own) or settings.portable:
        return
    raise pytest.UsageError(refusal(settings, other, own))


def refusal(settings: Settings, other: history.Summary, own: dict[str, object]) -> str:
    """Why a baseline of another fingerprint is not compared with."""
    theirs = history.read(other.path)["prooflops"].get("fingerprint", {})
    rows = "; ".join(history.differences(theirs, own)) or "the digest of the fingerprint"
    return (
        f"--gate-baseline {settings.baseline}: it was recorded under other conditions ({rows}), and times of other "
        "machines are not compared. --gate-portable compares ratios that mean the same on both; --gate-versus runs "
        "both sides here"
    )


def baseline_of(settings: Settings, own: str) -> list[history.Summary]:
    """The records of the baseline that was named. Raises UsageError where there is none."""
    try:
        return history.baseline(settings.folder, str(settings.baseline), own, settings.exact)
    except (history.UnknownBaseline, history.UnreadableRecord) as error:
        raise pytest.UsageError(str(error)) from error


def finish(config: pytest.Config, settings: Settings, status: int) -> None:
    """Compares this run's record, and stores it under a name if the run's exit `status` is 0.

    A baseline in which benchmarks are lacking would let them pass as NEW from then on.
    """
    path = config.stash[run_state.RECORD_PATH]
    # As it was stored: JSON makes a list of a tuple, and this run is compared with what was stored of others.
    mine = history.summary_of(history.read(path), path, settings.exact)
    lines = config.stash[OUTCOME] = []
    if settings.baseline:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        skips = skip_reasons(terminal.stats.get("skipped", ()) if terminal else ())
        lines += compared(config.stash[BASELINE], mine, settings, skips)
    if settings.record and status != pytest.ExitCode.OK:
        why = UNFINISHED.get(status, f"the run ended with exit code {int(status)}")
        lines.append(f"not stored as {settings.record}: {why}")
    elif settings.record:
        try:
            stored = history.store_baseline(settings.record, [path])
            lines.append(f"baseline {settings.record}: this run ({_short(path, settings.folder)}), named in {stored}")
        except OSError as error:
            config.stash[run_state.STORAGE_ERROR] = f"the baseline {settings.record} could not be stored: {error}"


def skip_reasons(reports: Iterable[pytest.TestReport]) -> dict[str, str]:
    """Why each of these tests was skipped, of those that were."""
    return {
        report.nodeid: report.longrepr[2].removeprefix("Skipped: ")
        for report in reports
        if report.skipped and isinstance(report.longrepr, tuple)
    }


def compared(
    then: list[history.Summary], mine: history.Summary, settings: Settings, skips: Mapping[str, str]
) -> list[str]:
    """The table of a comparison, and a line that sums it up."""
    floors = {name: row["floor"] for name, row in _floors(settings, mine).items() if row.get("floor")}
    rows = compare.compare(then, [mine], min_effect=settings.min_effect, floors=floors, portable=settings.portable)
    rows = compare.with_skips(rows, skips)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in compare.counts(rows).items())
    table = compare.table(rows)
    shown = aligned(table) if len(table) > 1 else []
    none = "" if any(row.effect for row in rows) or not settings.portable else "; no ratio that both sides have"
    return [*shown, f"against {settings.baseline} ({len(then)} records): {counts or 'nothing to compare'}{none}"]


def _floors(settings: Settings, mine: history.Summary) -> dict[str, dict[str, float]]:
    return history.noise_floors(settings.folder, mine.fingerprint_id)


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def print_summary(terminal: pytest.TerminalReporter) -> None:
    """Prints the comparison."""
    lines = terminal.config.stash.get(OUTCOME, [])
    if lines:
        terminal.section("compared with the history")
        write_coloured(terminal, lines)
