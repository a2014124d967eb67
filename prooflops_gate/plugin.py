"""The installed pytest plugin: history and gate for anybody's pytest-benchmark tests.

Loaded by every run of pytest where the package is installed. So it imports nothing at start but
pytest and the standard library, and does nothing unless one of its options is given.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from prooflops_gate import run_state
from prooflops_gate.options import (
    Settings,
    add_options,
    history_folder,
    marker_settings,
    refuse_rootdir_paths,
    refuse_unwritable,
    settings,
)
from prooflops_gate.run_state import is_benchmark, is_replicate

# The plugins that were switched off, as they disturb benchmarks.
DISTURBING = pytest.StashKey[Sequence[str]]()
# The lines that say what `--gate-record` did.
RECORDED = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from prooflops_gate import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gate(min_effect=0.05, ignore=False): how the gate compares this "
        "benchmark, instead of its ini settings; ignore: not at all, as where its work differs "
        "from run to run",
    )
    chosen = settings(config)
    if not chosen.used or hasattr(config, "workerinput"):
        return
    from prooflops_gate.child import codspeed
    from prooflops_gate.child.options import switch_off
    from prooflops_gate.child.whole_tests import WholeTests

    # Before xdist's own, which is the last, and before anything is collected.
    disturbing = config.stash[DISTURBING] = switch_off(config.option)
    if config.pluginmanager.hasplugin(codspeed.NAME):
        disturbing.append("pytest-codspeed")
    config.pluginmanager.register(WholeTests(), "prooflops_gate.whole_tests")
    if chosen.orchestrated:
        from prooflops_gate import run

        run.configure(config, chosen, disturbing)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Adds the option `--report` of `--gate-history`, unless the project has one of this name."""
    yield
    if "--gate-history" in args and not hasattr(early_config.option, "report"):
        parser.addoption("--report", help="folder of the history's page")
        refuse_rootdir_paths(early_config.invocation_params.dir, args, ("--report",))


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.getoption("gate_history"):
        if settings(config).used:
            from prooflops_gate.child.codspeed import replace_codspeed

            replace_codspeed(config)
        return None
    from prooflops_gate.history import listing

    folder, found = history_folder(config), settings(config)
    if found.used:
        raise pytest.UsageError(
            "--gate-history lists what is stored, and compares nothing: run it without the gate's "
            "other options"
        )
    report = None
    if any(str(word).partition("=")[0] == "--report" for word in config.invocation_params.args):
        report = config.invocation_params.dir / config.getoption("report")
        refuse_unwritable("--report", report, "folder")
    return listing.print_history(folder, found.exact, report=report, root=config.rootpath)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _is_recorded(config):
        return
    found = config.stash[run_state.MARKERS] = {}
    for item in items:
        for marker in reversed(list(item.iter_markers("gate"))):
            try:
                found.setdefault(item.nodeid, {}).update(marker_settings(marker))
            except ValueError as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from error


def _is_recorded(config: pytest.Config) -> bool:
    """True if this run leaves a record.

    By an option, or because this suite's own plugin keeps all of its runs.
    """
    return (
        settings(config).used or is_replicate() or config.pluginmanager.hasplugin("prooflops.run")
    )


@pytest.fixture(scope="session")
def gate_replicate(pytestconfig: pytest.Config) -> Any:
    """The gate's pace for benchmarks that choose their own rounds; None outside the gate.

    `gate_replicate.pace(request.node)` returns the seconds to run, the fewest rounds, and whether
    an earlier process has checked the benchmark. `gate_replicate.leave_out(request.node, seconds)`
    reports the seconds of such checks, which later processes skip.
    """
    found = pytestconfig.pluginmanager.get_plugin("prooflops_gate.replicate")
    return found if found and found.paces else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if not is_benchmark(item) or not _is_recorded(item.config):
        return (yield)
    from prooflops_gate.machine.contention import Watch

    stash = item.config.stash
    watch = stash[run_state.WATCH] = Watch()
    try:
        return (yield)
    finally:
        stash.setdefault(run_state.CONTENTION, {})[item.nodeid] = watch.stop()
        del stash[run_state.WATCH]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if not _is_recorded(config) or config.option.collectonly:
        return
    if settings(config).orchestrated:
        return
    if not config.pluginmanager.hasplugin("prooflops.run"):
        from prooflops_gate.history import run_record

        # Now, so that later imports do not change it.
        run_record.plain_fingerprint()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    # After every other plugin's own (the suite writes its record there), and before the terminal's
    # summary.
    config = session.config
    interrupted = session.exitstatus in (
        pytest.ExitCode.INTERRUPTED,
        pytest.ExitCode.INTERNAL_ERROR,
    )
    config.stash[run_state.PARTIAL] = str(
        session.shouldfail or session.shouldstop or (interrupted and "interrupted") or ""
    )
    result = yield
    if (
        run_state.MARKERS not in config.stash
        or hasattr(config, "workerinput")
        or config.option.collectonly
    ):
        return result
    if session.exitstatus == pytest.ExitCode.USAGE_ERROR:
        # Refused: nothing ran.
        return result
    chosen = settings(config)
    if (chosen.used and not chosen.orchestrated) or is_replicate():
        if run_state.RECORD_PATH not in config.stash:
            from prooflops_gate.history import run_record

            run_record.save(config, run_record.record_of(config), chosen.folder)
        if chosen.record and not is_replicate() and run_state.RECORD_PATH in config.stash:
            store_baseline(config, chosen, session.exitstatus)
    if run_state.STORAGE_ERROR in config.stash and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def store_baseline(config: pytest.Config, chosen: Settings, status: int) -> None:
    """Stores the commit of this run under the name that `--gate-record` gives."""
    from prooflops_gate import baseline

    lines = config.stash[RECORDED] = []
    if disturbing := config.stash[DISTURBING]:
        names = ", ".join(disturbing)
        lines.append(f"this run went without {names}, which would disturb benchmarks")
    try:
        lines.append(baseline.store(str(chosen.record), chosen.folder, config.rootpath, status))
    except OSError as error:
        why = f"the baseline {chosen.record} could not be stored: {error}"
        config.stash[run_state.STORAGE_ERROR] = why


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stash = terminalreporter.config.stash
    if run_state.STORAGE_ERROR in stash:
        terminalreporter.write_line(stash[run_state.STORAGE_ERROR], red=True)
    for line in stash.get(RECORDED, ()):
        terminalreporter.write_line(line)
