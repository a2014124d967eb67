"""Compares one run of pytest with a baseline, or stores it as one: the options of the gate without replicates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pytest

from prooflops_gate import run_state
from prooflops_gate.console.tables import aligned, many, write_coloured
from prooflops_gate.history import records, rows
from prooflops_gate.history.comparison import compare
from prooflops_gate.history.records import Summary
from prooflops_gate.history.run_record import fingerprint
from prooflops_gate.options import REPORT_ONLY, Settings
from prooflops_gate.publish import INTERRUPTED, publish
from prooflops_gate.report import FINISHED, Result

OUTCOME = pytest.StashKey[list[str]]()
BASELINE = pytest.StashKey[list[Summary]]()
UNFINISHED: Mapping[int, str] = {
    pytest.ExitCode.TESTS_FAILED: "tests failed",
    pytest.ExitCode.INTERRUPTED: "the run was interrupted",
    pytest.ExitCode.NO_TESTS_COLLECTED: "no test ran",
}


def check_baseline(config: pytest.Config, settings: Settings, benchmarks: Collection[str]) -> None:
    """Refuses, before anything runs, a baseline that is not there or is another machine's."""
    own = fingerprint(config)
    own_id = records.fingerprint_id(own)
    # Read now: once this run's own record is stored, it is the latest.
    summaries = config.stash[BASELINE] = baseline_of(settings, own_id, benchmarks)
    if summaries[-1].fingerprint_id != own_id and not settings.portable:
        raise pytest.UsageError(refusal(settings, summaries[-1], own))


def refusal(settings: Settings, other: Summary, own: dict[str, object]) -> str:
    """Why a baseline of another fingerprint is not compared with."""
    theirs = records.read(other.path)["prooflops"].get("fingerprint", {})
    differences = "; ".join(records.differences(theirs, own)) or "the digest of the fingerprint"
    return (
        f"--gate-baseline {settings.baseline}: it was recorded under other conditions ({differences}), and times of "
        "other machines are not compared. --gate-portable compares ratios that mean the same on both; --gate-versus "
        "runs both sides here"
    )


def baseline_of(settings: Settings, own: str, benchmarks: Collection[str]) -> list[Summary]:
    """The records of the baseline that was named, for these benchmarks. Raises UsageError where there is none."""
    try:
        return records.baseline(
            settings.folder, str(settings.baseline), own, settings.exact, benchmarks
        )
    except (records.UnknownBaseline, records.UnreadableRecord) as error:
        raise pytest.UsageError(str(error)) from error


def finish(config: pytest.Config, settings: Settings, status: int) -> None:
    """Compares this run's record, and stores it under a name if the run's exit `status` is 0."""
    path = config.stash[run_state.RECORD_PATH]
    # Read back, because JSON turns a tuple into a list, and this run is compared with stored ones.
    mine = records.summary_of(records.read(path), path, settings.exact)
    lines = config.stash[OUTCOME] = []
    if settings.baseline:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        stats = terminal.stats if terminal else {}
        found = compared(
            config.stash[BASELINE], mine, settings, skip_reasons(stats.get("skipped", ()))
        )
        lines += [*aligned(found.table), found.last] if len(found.table) > 1 else [found.last]
        is_cut = status == pytest.ExitCode.INTERRUPTED
        state, reason = (INTERRUPTED, UNFINISHED[status]) if is_cut else (FINISHED, "")
        failed = [report.nodeid for report in stats.get("failed", ())]
        publish(
            replace(found, table=(), failed_tests=failed, status=state, reason=reason),
            config,
            settings,
        )
    if settings.record and status != pytest.ExitCode.OK:
        why = UNFINISHED.get(status, f"the run ended with exit code {int(status)}")
        lines.append(f"not stored as {settings.record}: {why}")
    elif settings.record:
        try:
            stored = records.store_baseline(settings.record, [path])
            lines.append(f"baseline {settings.record}: this run ({path.name}), named in {stored}")
        except OSError as error:
            config.stash[run_state.STORAGE_ERROR] = (
                f"the baseline {settings.record} could not be stored: {error}"
            )


def skip_reasons(reports: Iterable[pytest.TestReport]) -> dict[str, str]:
    """Skip reasons by test id."""
    return {
        report.nodeid: report.longrepr[2].removeprefix("Skipped: ")
        for report in reports
        if report.skipped and isinstance(report.longrepr, tuple)
    }


def compared(
    then: list[Summary], mine: Summary, settings: Settings, skips: Mapping[str, str]
) -> Result:
    """The table of a comparison, and a line that sums it up."""
    stored = records.noise_floors(settings.folder, mine.fingerprint_id)
    floors = {name: row["floor"] for name, row in stored.items() if row.get("floor")}
    found = compare(
        then, [mine], min_effect=settings.min_effect, floors=floors, portable=settings.portable
    )
    found = rows.with_skips(found, skips)
    none = (
        "; no ratio that both sides have"
        if settings.portable and not any(row.effect for row in found)
        else ""
    )
    counts = rows.counts(found) or "nothing to compare"
    title = f"against {settings.baseline} ({many(len(then), 'record')})"
    return Result(
        title, found, last=f"{title}: {counts}{none}; {REPORT_ONLY}", table=rows.table(found)
    )


def print_summary(terminal: pytest.TerminalReporter) -> None:
    """Prints the comparison, if there was one."""
    if lines := terminal.config.stash.get(OUTCOME, []):
        terminal.section("compared with the history")
        write_coloured(terminal, lines)
