"""The hooks of the suite's pytest plugin, which the root conftest loads.

Fixtures are in `fixtures.py`.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import accounting
import prooflops
import prooflops_gate
from accounting.checks import validated_choice
from prooflops import timing
from prooflops.copies import other_copy
from prooflops.machine import device as machine
from prooflops.suite import listing, ranks
from prooflops.suite.collection import (
    EXAMPLE_COUNTER,
    check_claims_exist,
    check_claims_have_tests,
    claims_of,
    count_examples,
    names_no_claim,
    note_all_tests,
    skip_without_hardware,
    use_device_clock,
)
from prooflops.suite.commands import PYTEST, called, command_of
from prooflops.suite.controller import Controller, task_of
from prooflops.suite.crashes import crash_of, one_line
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.floors import (
    reference_floors,
    refuse_another_machine,
    stated_floors,
)
from prooflops.suite.options import add_options
from prooflops.suite.peaks import Peaks, stated_peaks
from prooflops.suite.recorder import Recorder
from prooflops.suite.registry import Registry, RegistryError, load_registry
from prooflops.suite.run import EVIDENCE, RUN, Evidence, Run
from prooflops.suite.verdicts import LOST
from prooflops.suite_root import PACKAGED_TESTS
from prooflops_gate.options import given_words, history_folder, refuse_unwritable
from prooflops_gate.page.terminal import width_of, wrapped
from prooflops_gate.run_state import is_replicate

pytest_plugins = ["prooflops.suite.fixtures"]

# Options that pytest-benchmark answers with its own table, or below it.
TABLE_OPTIONS = (
    *("--benchmark-compare", "--benchmark-columns", "--benchmark-sort", "--benchmark-group-by"),
    *("--benchmark-name", "--benchmark-time-unit", "--benchmark-histogram", "--benchmark-cprofile"),
)
EXAMPLES = {"quick": 20, "default": 100, "thorough": 1000}


# ---- options ------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if config.option.help or config.option.version:
        return None
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The output has characters that a terminal without UTF-8 lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    if config.option.claims is not None:
        return listing.run(registry_of(config), config.option.claims)
    if not (config.option.collectonly or is_replicate()):
        refuse_unwritable("--report", Path(config.option.report), "folder")
        refuse_unwritable("the history", history_folder(config), "folder")
    show_requested_table(config)
    if config.option.device != "all":
        return None
    from prooflops.suite import (
        # Before the run is configured, which would open the device.
        all_devices,
    )

    return all_devices.run(config)


def show_requested_table(config: pytest.Config) -> None:
    """Lifts the `--benchmark-quiet` of pytest.ini if an option requests the table."""
    given = given_words(config)
    if "--benchmark-quiet" not in given and any(word.startswith(TABLE_OPTIONS) for word in given):
        config.option.benchmark_quiet = False


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    refuse_a_mix_of_copies(config.rootpath)
    for name in ("device", "reference", "known_failures", "report"):
        # An unset variable of the shell leaves an option empty.
        if getattr(config.option, name) == "":
            raise pytest.UsageError(f"--{name.replace('_', '-')}= is empty: name one, or drop it")
    if config.option.quick and config.option.thorough:
        raise pytest.UsageError("--quick and --thorough exclude each other")
    pace = "quick" if config.option.quick else "thorough" if config.option.thorough else "default"
    try:
        job = ranks.job_rank()
        request = config.option.device
        device = machine.chosen(ranks.device_of(request, job, machine.counts()) if job else request)
        registry = registry_of(config)
        peaks = Peaks(device, stated_peaks([*(config.option.peak or config.getini("peak"))]))
        selected = registry.selected(config.option.claim) if config.option.claim else None
        stated = stated_floors([*(config.option.floor or config.getini("floor"))])
        reference = None
        if config.option.reference:
            refuse_another_machine(config.option.reference, device)
            reference = reference_floors(config.option.reference)
        validated_choice("floor_undecided", config.getini("floor_undecided"), ("pass", "fail"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    known = known_failures(config.option.known_failures, registry)
    run = config.stash[RUN] = Run(device, pace, registry, selected, known, peaks, stated, reference)
    config.pluginmanager.register(run, "prooflops.run")
    if device.type == "cpu":
        run.notes += machine.unseen_gpus()
    # The user's own model keeps the user's settings.
    if config.option.model is None:
        run.notes += [*machine.ignore_tf32_override(), *machine.fit_threads_to_quota()]
    _record(config, run)
    if job:
        config.pluginmanager.register(ranks.RankPlugin(config, job), "prooflops.suite.ranks")
    is_of_the_gate = config.pluginmanager.hasplugin("prooflops_gate.replicate")
    if not config.getoption("hypothesis_profile", None) and not is_of_the_gate:
        draw_examples(EXAMPLES[pace])


def registry_of(config: pytest.Config) -> Registry:
    """The claims of this folder."""
    try:
        return load_registry(config.rootpath / "test_claims" / "registry")
    except RegistryError as error:
        raise pytest.UsageError(str(error)) from error


def _record(config: pytest.Config, run: Run) -> None:
    """Registers what records the run: in memory, or in the file that several processes share."""
    if _only_starts_others(config):
        return
    task = task_of(config)
    if not task:
        command = command_of(called(PYTEST), config.invocation_params.args)
        run.rows.append("slice", slice=1, commit="", command=command)
    else:
        run.rows = file = EvidenceFile(Path(task["path"]))
        if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
            config.pluginmanager.register(Controller(file, task), "prooflops.controller")
            return
    config.pluginmanager.register(Recorder(config, run, task), "prooflops.recorder")


def draw_examples(number: int) -> None:
    """Sets hypothesis's number of examples per property."""
    # Takes a tenth of the start of a process that only measures.
    import hypothesis

    hypothesis.settings.register_profile(
        "prooflops",
        max_examples=number,
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("prooflops")


def refuse_a_mix_of_copies(root: Path) -> None:
    """Stops a run whose tests come from a clone but whose code comes from an installed copy."""
    root = root.resolve()
    home = root.parents[1] if root == PACKAGED_TESTS.resolve() else root
    # An installed copy has the gate as a distribution of its own, perhaps elsewhere.
    gate = () if home != root else (prooflops_gate,)
    if other := other_copy((accounting, prooflops, *gate), home):
        raise pytest.UsageError(
            f"{other}, but these tests belong to {root}: uninstall the other copy "
            "(pip uninstall prooflops prooflops-gate), or install this one "
            f"(pip install -e {root}/prooflops_gate -e {root})"
        )


def known_failures(file: str | None, registry: Registry) -> frozenset[str]:
    """The claim ids listed in the adopter's file of known failures."""
    if file is None:
        return frozenset()
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        # ValueError: no UTF-8, or no path.
        raise pytest.UsageError(
            f"--known-failures {file}: {getattr(error, 'strerror', error)}"
        ) from error
    listed = {line.partition("#")[0].strip() for line in lines} - {""}
    if unknown := sorted(listed - registry.claims.keys()):
        examples = list(registry.claims)[:3]
        raise pytest.UsageError(
            f"--known-failures {file}: no claim is named {', '.join(unknown)}; "
            f"valid are the ids of test_claims/registry, such as {', '.join(examples)}"
        )
    return frozenset(listed)


# ---- collecting and running ---------------------------------------------------------------------


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --claim, skips importing test files that name none of the claims."""
    selected = config.stash[RUN].selected
    return True if selected is not None and names_no_claim(collection_path, selected) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    run = config.stash[RUN]
    check_claims_exist(run.registry, items)
    # pytest already reports collection errors; a run that goes on collects what is left.
    if not (session.testsfailed or run.rows.plan):
        check_claims_have_tests(config, run.registry, items)
    note_all_tests(config, run, items)
    for item in items:
        claims = claims_of(item)
        item.extra_keyword_matches.update(claims)
        if _only_starts_others(config):
            # The process that runs the test queries the device.
            continue
        item.stash[EVIDENCE] = Evidence(claims)
        skip_without_hardware(item, run)
        use_device_clock(item, run.device)
        if run.known & set(claims):
            # Not strict: a known failure that now passes is reported, but does not fail the run.
            item.add_marker(
                pytest.mark.xfail(reason="listed in --known-failures", strict=False), append=False
            )
        count_examples(item)
    if run.selected is not None:
        chosen = [item for item in items if run.selected & set(claims_of(item))]
        if dropped := [item for item in items if not run.selected & set(claims_of(item))]:
            config.hook.pytest_deselected(items=dropped)
        items[:] = chosen


def _only_starts_others(config: pytest.Config) -> bool:
    """True if this is the parent of a gate run, which runs no test and opens no device."""
    return bool(config.pluginmanager.hasplugin("prooflops_gate.run"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # Claims use small tensors, which a second thread rarely speeds up. Threads waiting for one
    # another cause most of the noise in time comparisons.
    with timing.one_thread() if claims_of(item) else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    counter = item.stash.get(EXAMPLE_COUNTER, None)
    before = counter[0] if counter else 0
    try:
        return (yield)
    finally:
        item.stash[EVIDENCE].cases = counter[0] - before if counter else 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    result = yield
    evidence = item.stash[EVIDENCE]
    if call.excinfo and not isinstance(
        call.excinfo.value, (pytest.skip.Exception, pytest.xfail.Exception)
    ):
        error = call.excinfo.value
        evidence.crash = (
            crash_of(error) if call.when == "call" else f"{call.when}: {one_line(error)}"
        )
        if lost := machine.why_lost(item.config.stash[RUN].device):
            evidence.crash = item.session.shouldfail = f"{LOST}{lost} [after {item.nodeid}]"
    # xdist sends plain data on.
    result.evidence = asdict(evidence)  # type: ignore[attr-defined]
    if evidence.claims and result.failed:
        registry = item.config.stash[RUN].registry
        result.sections.append(
            ("claimed", "\n\n".join(registry.describe(claim) for claim in evidence.claims))
        )
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    # The momentary clock is no property of the machine: it would differ between two runs of one
    # machine.
    for key in ("hz_actual", "hz_actual_friendly"):
        machine_info.get("cpu", {}).pop(key, None)


def pytest_gate_fingerprint(config: pytest.Config) -> dict[str, Any]:
    job, run = ranks.job_rank(), config.stash[RUN]
    # The fingerprint from the start, if any: a device lost since then cannot be read.
    return (run.fingerprint or machine.fingerprint(run.device)) | (
        {"ranks": job.size} if job else {}
    )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config, run = session.config, session.config.stash[RUN]
    if not _only_starts_others(config):
        run.fingerprint = machine.fingerprint(run.device)
    if threading.current_thread() is threading.main_thread():
        end_run_on_sigint(session)


def end_run_on_sigint(session: pytest.Session) -> None:
    """Ends the run after a test that swallows KeyboardInterrupt, as callbacks of torch do."""
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> object:
        session.shouldstop = "interrupted"
        return before(number, frame) if callable(before) else None

    if callable(before):
        signal.signal(signal.SIGINT, stop)

        def restore() -> None:
            signal.signal(signal.SIGINT, before)

        session.config.add_cleanup(restore)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (
        ("failed", "F", "BELOW FLOOR")
        if report.failed and "BELOW FLOOR:" in getattr(crash, "message", "")
        else None
    )


# ---- reporting ----------------------------------------------------------------------------------


def pytest_report_header(config: pytest.Config) -> list[str]:
    run = config.stash[RUN]
    origin = (
        f"accounting, prooflops and prooflops_gate from {Path(str(accounting.__file__)).parents[1]}"
    )
    head = [f"device: {run.device}"] if _only_starts_others(config) else run.headline
    lines = [*head, f"pace: {run.pace} ({EXAMPLES[run.pace]} examples per property), {origin}"]
    width = width_of(isatty=sys.stdout.isatty())
    return [part for line in lines for part in wrapped(line, width)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    run = config.stash[RUN]
    if config.option.collectonly or hasattr(config, "workerinput"):
        return
    if not run.rows.is_over or not ranks.is_writer():
        return
    # Not before: it imports what draws the pages.
    from prooflops.suite.evidence import conclusion

    conclusion.conclude(session, run.rows, run.registry)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "prooflops.suite.evidence.conclusion" not in sys.modules:
        return
    from prooflops.suite.page import terminal

    terminal.print_end(terminalreporter, terminalreporter.config.stash[RUN].known)
