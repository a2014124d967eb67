"""This suite's own pytest plugin, loaded by the root conftest: device, claims, quick and thorough, reports."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

import accounting
import prooflops
from accounting import measured
from accounting.devices import bandwidth_bytes_per_s
from prooflops.console.progress import Progress
from prooflops.gate.settings import history_folder
from prooflops.machine import device as devices
from prooflops.machine.conditions import conditions as device_conditions
from prooflops.run_state import is_replicate
from prooflops.suite import ranks
from prooflops.suite import report as reports
from prooflops.suite import speed as speeds
from prooflops.suite.verdicts import Claim, Outcome, Registry, RegistryError, Verdict, load_registry, verdict_of

EXAMPLES = {"quick": 20, "default": 100, "thorough": 1000}

_run = pytest.StashKey["Run"]()
_examples = pytest.StashKey[list[int]]()
_unmet = pytest.StashKey[str]()


# ---- options -----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("prooflops", "validate this machine")
    group.addoption(
        "--device", help="cpu, cuda, cuda:1, mps, xpu, or all (each card); default: torch's accelerator, else cpu"
    )
    group.addoption("--quick", action="store_true", help="a fifth of the examples, short benchmarks")
    group.addoption("--thorough", action="store_true", help="ten times the examples, long benchmarks")
    group.addoption("--report", metavar="DIR", default="reports", help="folder of verdicts.json and report.md")
    group.addoption(
        "--known-failures", metavar="FILE", help="claims known to fail on this machine: one id a line, # comments"
    )
    group.addoption(
        "--claim", metavar="ID|TOPIC", action="append", default=[], help="only this claim or topic; may be repeated"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if config.option.device != "all" or config.option.help or config.option.version:
        return None
    from prooflops.suite import all_devices as box  # before a run is configured, which would ask the device

    return box.run(config)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    refuse_a_mix_of_copies(config.rootpath)
    if config.option.quick and config.option.thorough:
        raise pytest.UsageError("--quick and --thorough exclude each other")
    pace = "quick" if config.option.quick else "thorough" if config.option.thorough else "default"
    try:
        job = ranks.place()
        request = config.option.device
        device = devices.chosen(ranks.device_of(request, job, devices.counts()) if job else request)
        registry = load_registry(config.rootpath / "test_claims" / "registry")
        selected = registry.selected(config.option.claim) if config.option.claim else None
    except (ValueError, RegistryError) as error:
        raise pytest.UsageError(str(error)) from error
    known = known_failures(config.option.known_failures, registry)
    run = config.stash[_run] = Run(device, pace, registry, selected, known)
    config.pluginmanager.register(run, "prooflops.run")
    if job:
        config.pluginmanager.register(ranks.Ranked(config, job), "prooflops.suite.ranks")
    if not config.getoption("hypothesis_profile", None):
        hypothesis.settings.register_profile(
            "prooflops",
            max_examples=EXAMPLES[pace],
            deadline=None,
            print_blob=True,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )
        hypothesis.settings.load_profile("prooflops")


def refuse_a_mix_of_copies(root: Path) -> None:
    """Stops the run where the tests come from a clone but the code they test from another, installed copy."""
    for package in (accounting, prooflops):
        origin = Path(str(package.__file__)).resolve()
        if root.resolve() not in origin.parents:
            raise pytest.UsageError(
                f"{package.__name__} was imported from {origin.parent}, but these tests are those of {root}: "
                f"uninstall the other copy (pip uninstall prooflops), or install this one (pip install -e {root})"
            )


def known_failures(file: str | None, registry: Registry) -> frozenset[str]:
    """The claim ids listed in the adopter's file of known failures."""
    if file is None:
        return frozenset()
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise pytest.UsageError(f"--known-failures {file}: {error.strerror}") from error
    listed = {line.partition("#")[0].strip() for line in lines} - {""}
    if unknown := sorted(listed - registry.claims.keys()):
        raise pytest.UsageError(
            f"--known-failures {file}: no claim is named {', '.join(unknown)}; "
            f"valid are the ids of test_claims/registry, such as {', '.join(list(registry.claims)[:3])}"
        )
    return frozenset(listed)


# ---- collection --------------------------------------------------------------------------------------------------


def claims_of(item: pytest.Item) -> tuple[str, ...]:
    """The claim ids that the markers of a test name."""
    return tuple(dict.fromkeys(claim for marker in item.iter_markers("claim") for claim in marker.args))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash[_run]
    complain_of_unknown_claims(run.registry, items)
    if _whole_of_test_claims(config):
        complain_of_claims_without_a_test(run.registry, items)
    for item in items:
        ids = claims_of(item)
        item.extra_keyword_matches.update(ids)
        if _only_starts_others(config):
            continue  # what follows asks the device, and is said of each test by the process that runs it
        item.user_properties += [("claim", claim) for claim in ids]
        _mark_needs(item, run)
        _use_the_devices_clock(item, run.device)
        if run.known & set(ids):
            # Not strict: a known failure that now holds is reported, and does not redden the run.
            item.add_marker(pytest.mark.xfail(reason="listed in --known-failures", strict=False), append=False)
        _count_examples(item)
    if run.selected is not None:
        chosen = [item for item in items if run.selected & set(claims_of(item))]
        dropped = [item for item in items if not run.selected & set(claims_of(item))]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = chosen


def _only_starts_others(config: pytest.Config) -> bool:
    """Whether this is the parent of a gate run: it executes no test, opens no device and has nothing to report."""
    return bool(config.pluginmanager.hasplugin("prooflops.gate.run"))


def complain_of_unknown_claims(registry: Registry, items: list[pytest.Item]) -> None:
    unknown = {claim: item.nodeid for item in items for claim in claims_of(item) if claim not in registry.claims}
    if unknown:
        rows = ", ".join(f"{claim!r} ({node})" for claim, node in unknown.items())
        raise pytest.UsageError(f"markers name claims that test_claims/registry does not have: {rows}")


def complain_of_claims_without_a_test(registry: Registry, items: list[pytest.Item]) -> None:
    tested = {claim for item in items for claim in claims_of(item)}
    missing = [claim.id for claim in registry.claims.values() if claim.id not in tested and not claim.on_record]
    if missing:
        raise pytest.UsageError(f"claims of test_claims/registry that no test settles: {', '.join(missing)}")


def _whole_of_test_claims(config: pytest.Config) -> bool:
    wanted = config.rootpath / "test_claims"
    given = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    narrowed = (
        config.option.keyword or config.option.markexpr or config.getoption("deselect", None) or config.option.ignore
    )
    return not narrowed and any(path == wanted or path in wanted.parents for path in given)


def _mark_needs(item: pytest.Item, run: Run) -> None:
    ids = claims_of(item)
    claimed = {need for claim in ids for need in run.registry.claims[claim].needs} if len(ids) else set()
    own = {need for marker in item.iter_markers("needs") for need in marker.args}
    for need in sorted(own | claimed):
        try:
            why = devices.unmet(need, run.device)
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from error
        if why and (need in own or _all_need(run, ids, need)):
            item.stash[_unmet] = why
            item.add_marker(pytest.mark.skip(reason=why))


def _all_need(run: Run, ids: tuple[str, ...], need: str) -> bool:
    return all(need in run.registry.claims[claim].needs for claim in ids)


def _use_the_devices_clock(item: pytest.Item, device: torch.device) -> None:
    """Has pytest-benchmark time a benchmark by the device's own clock."""
    if "benchmark" not in getattr(item, "fixturenames", ()):
        return
    own = item.get_closest_marker("benchmark")
    options = {"timer": measured.clock(device), **(own.kwargs if own else {})}
    item.add_marker(pytest.mark.benchmark(**options), append=False)  # pytest-benchmark reads the closest marker only


def _count_examples(item: pytest.Item) -> None:
    """Has hypothesis's own entry for wrappers (`inner_test`) count the examples that ran to their end."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is None or not isinstance(item, pytest.Function):
        return
    counter = getattr(handle.inner_test, "_examples", None)
    if counter is None:
        inner, counter = handle.inner_test, [0]

        @functools.wraps(inner)
        def counting(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            counter[0] += 1
            return result

        counting._examples = counter  # type: ignore[attr-defined]
        handle.inner_test = counting
    item.stash[_examples] = counter


# ---- running -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """The device under test, and of its kind the current one: what names none (a graph, a pinned tensor) goes there."""
    device = pytestconfig.stash[_run].device
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


@pytest.fixture(scope="session")
def job(pytestconfig: pytest.Config) -> ranks.Ranked | None:
    """This process as a rank of a job of several, see `prooflops.suite.ranks`; None for a run of its own."""
    return pytestconfig.pluginmanager.get_plugin("prooflops.suite.ranks")


@pytest.fixture(scope="session")
def pace(pytestconfig: pytest.Config) -> str:
    """quick, default or thorough."""
    return pytestconfig.stash[_run].pace


@pytest.fixture(scope="session")
def isa(device: torch.device) -> list[str]:
    """The features of the device under test that decide its rates, as the header prints them."""
    return devices.isa(device)


@pytest.fixture(scope="session")
def peak_flop_per_s(device: torch.device) -> Callable[[str], float | None]:
    """The vendor's dense peak of the device under test for a dtype; None where none is on record."""
    return functools.partial(devices.peak_flop_per_s, device)


@pytest.fixture(scope="session")
def bound_flop_per_s(device: torch.device) -> Callable[[str], float | None]:
    """What no rate measured on the device under test can exceed, for a dtype; None where nothing is known."""
    return functools.partial(devices.bound_flop_per_s, device)


@pytest.fixture(scope="session")
def bound_bytes_per_s(device: torch.device) -> float | None:
    """What no stream from or to the memory of the device under test can exceed; None where nothing is on record."""
    return bandwidth_bytes_per_s(devices.accelerator(device))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Records a measured figure with the claim: `figure("1.62x slower")`."""
    return lambda text: request.node.user_properties.append(("figure", text))


@pytest.fixture
def speed(device: torch.device, figure: Callable[[str], None]) -> speeds.Speed:
    """Judged comparisons of two functions' times, see `prooflops.suite.speed`."""
    return speeds.Speed(device, figure)


@pytest.fixture(scope="session")
def conditions(device: torch.device) -> Callable[[], AbstractContextManager[dict[str, Any]]]:
    """`with conditions() as record:` the device's state before and after, see `prooflops.machine.conditions`."""
    return functools.partial(device_conditions, device)


@pytest.fixture(scope="session")
def progress_of(pytestconfig: pytest.Config) -> Callable[[str], Progress]:
    """Says on the terminal what something long by that name is doing, see `prooflops.console.progress`."""
    return functools.partial(Progress, pytestconfig)


@pytest.fixture
def progress(request: pytest.FixtureRequest, progress_of: Callable[[str], Progress]) -> Progress:
    """Says on the terminal what a long test is doing."""
    return progress_of(request.node.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # The claims work on small tensors, whose operations only wait for a second thread on a busy machine; and threads
    # that wait for one another are most of the noise of a comparison of times.
    with measured.one_thread() if claims_of(item) else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    counter = item.stash.get(_examples, None)
    before = counter[0] if counter else 0
    try:
        return (yield)
    finally:
        item.user_properties.append(("cases", counter[0] - before if counter else 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    outcome = yield
    ids = claims_of(item)
    if ids and outcome.failed:
        registry = item.config.stash[_run].registry
        outcome.sections.append(("claimed", "\n\n".join(registry.describe(claim) for claim in ids)))
    if _unmet in item.stash:
        outcome.user_properties = [*outcome.user_properties, ("unmet", item.stash[_unmet])]
    return outcome


class Run:
    """One run: what was asked for, and what became of the tests so far. A plugin, so that it hears of each test."""

    def __init__(
        self,
        device: torch.device,
        pace: str,
        registry: Registry,
        selected: frozenset[str] | None,
        known: frozenset[str],
    ) -> None:
        self.device = device
        self.pace = pace
        self.registry = registry
        self.selected = selected
        self.known = known
        self.outcomes: dict[str, list[Outcome]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        properties = report.user_properties
        ids = [str(value) for key, value in properties if key == "claim"]
        outcome = Outcome(
            test=report.nodeid,
            status=_status(report),
            reason=reason_of(report),
            cases=sum(int(str(value)) for key, value in properties if key == "cases"),
            duration=report.duration,
            figures=tuple(str(value) for key, value in properties if key == "figure"),
        )
        for claim in ids:
            self.outcomes[claim].append(outcome)

    def verdicts(self) -> list[Verdict]:
        """A verdict for each claim this run had a test of, and the on-record ones of its topics, as in the registry."""

        topics = {claim.partition(".")[0] for claim in self.outcomes}

        def concerned(claim: Claim) -> bool:
            asked = claim.topic in topics if self.selected is None else claim.id in self.selected
            return claim.id in self.outcomes or (asked and claim.on_record)

        rows = self.registry.claims.values()
        return [verdict_of(claim, self.outcomes.get(claim.id, [])) for claim in rows if concerned(claim)]


def _status(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "known" if report.skipped else "passed"
    if report.skipped:
        return "unmet" if any(key == "unmet" for key, _ in report.user_properties) else "skipped"
    return report.outcome


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped or failed, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        text = str(report.longrepr[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr or "")
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else report.outcome


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    # The clock at one moment is no property of the machine, and makes a machine look different from itself.
    for key in ("hz_actual", "hz_actual_friendly"):
        machine_info.get("cpu", {}).pop(key, None)


def pytest_gate_fingerprint(config: pytest.Config) -> dict[str, Any]:
    job = ranks.place()
    return devices.fingerprint(config.stash[_run].device) | ({"ranks": job.size} if job else {})


# ---- reporting ---------------------------------------------------------------------------------------------------


def pytest_report_header(config: pytest.Config) -> list[str]:
    run = config.stash[_run]
    origin = f"accounting and prooflops from {Path(str(accounting.__file__)).parents[1]}"
    head = [f"device: {run.device}"] if _only_starts_others(config) else devices.headline(run.device)
    return [*head, f"pace: {run.pace} ({EXAMPLES[run.pace]} examples a property), {origin}"]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    run = config.stash[_run]
    if config.option.collectonly or hasattr(config, "workerinput") or _only_starts_others(config):
        return
    if not ranks.is_writer():
        return
    verdicts = run.verdicts()
    finished = config.stash[reports.KEY] = reports.finish(
        config,
        device=run.device,
        pace=run.pace,
        registry=run.registry,
        verdicts=verdicts,
        # A user's model has a page of its own, and leaves the report of the last validation as it is; so does a part of
        # a gate run.
        folder=None
        if is_replicate() or (config.getoption("model", None) and not verdicts)
        else Path(config.option.report),
        records=history_folder(config),
    )
    if finished.verdicts and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK  # all that was asked for is on record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stash = terminalreporter.config.stash
    if reports.KEY in stash:
        reports.print_summary(terminalreporter, stash[reports.KEY], known=stash[_run].known)
