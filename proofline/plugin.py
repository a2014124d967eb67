"""The installed pytest plugin: history and gate for anybody's pytest-benchmark tests.

Loaded by every run of pytest where the package is installed, so it imports nothing at start that pytest has not, and
does nothing unless one of its options is given.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HISTORY = ".proofline/history"
REPLICATE = "PROOFLINE_RECORD_TO"  # a process that the gate started leaves its record at this path, and nowhere else
EXACT = "flops bytes peak_bytes live_bytes parameters"
MIN_EFFECT = "3%"
BUDGET_MIN = 10.0
DIRECTIONS = ("slower", "faster", "both")


# ---- options -----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "gate_history",
        f"folder of the run records, relative to the rootdir (default: {HISTORY}); the environment variable "
        "PROOFLINE_HISTORY goes before it",
        default=HISTORY,
    )
    parser.addini(
        "gate_exact",
        f"keys of a benchmark's extra_info that are compared by equality (default: {EXACT})",
        default=EXACT,
    )
    parser.addini("gate_min_effect", f"smallest change that counts (default: {MIN_EFFECT})", default=MIN_EFFECT)
    parser.addini("gate_direction", f"which changes fail: {', '.join(DIRECTIONS)} (default: slower)", default="slower")
    group = parser.getgroup("proofline gate", "compare benchmarks with their history, or with another version")
    option = group.addoption
    option("--gate", action="store_true", help="fail on a confirmed regression, or on a change of an exact quantity")
    option("--gate-baseline", metavar="NAME|latest|FILE", help="compare with this baseline of the history")
    option("--gate-versus", metavar="PYTHON|DIR|REVISION", help="compare with this other side, run side by side")
    option("--gate-record", metavar="NAME", help="store this run as the baseline NAME")
    option("--gate-replicates", metavar="N", help="fresh processes a side, at most, confirming ones too")
    option("--gate-min-effect", metavar="X%", help="smallest change that counts, such as 5%% or 0.05")
    option("--gate-budget", metavar="MINUTES", help=f"time for all replicates (default: {BUDGET_MIN:g})")
    option("--gate-strict", action="store_true", help="fail on INCONCLUSIVE too")
    option("--gate-portable", action="store_true", help="compare with another machine, by portable ratios only")
    option("--gate-noise-floor", action="store_true", help="compare this code with itself: what can be detected here")
    option("--gate-history", action="store_true", help="list records and baselines, oldest first, and exit")


@dataclass(frozen=True)
class Settings:
    """The options of the gate, checked."""

    gate: bool
    baseline: str | None
    versus: str | None
    record: str | None
    replicates: int | None
    min_effect: float
    budget_s: float
    strict: bool
    portable: bool
    noise_floor: bool
    direction: str
    exact: tuple[str, ...]
    folder: Path

    @property
    def orchestrated(self) -> bool:
        """Whether fresh processes do the measuring, and this one only starts them."""
        return self.gate or bool(self.versus) or self.noise_floor or (self.replicates or 1) > 1

    @property
    def used(self) -> bool:
        """Whether any of it was asked for."""
        return self.orchestrated or bool(self.baseline) or bool(self.record)


_settings = pytest.StashKey[Settings]()


def settings(config: pytest.Config) -> Settings:
    """The options of the gate. Raises UsageError for those that are impossible, naming value and valid ones."""
    if _settings not in config.stash:
        try:
            config.stash[_settings] = _checked(config)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_settings]


def _checked(config: pytest.Config) -> Settings:
    option = config.getoption
    found = Settings(
        gate=option("gate"),
        baseline=option("gate_baseline"),
        versus=option("gate_versus"),
        record=option("gate_record"),
        replicates=None
        if option("gate_replicates") is None
        else _count("--gate-replicates", option("gate_replicates")),
        min_effect=_share("--gate-min-effect", option("gate_min_effect"))
        if option("gate_min_effect") is not None
        else _share("gate_min_effect", str(config.getini("gate_min_effect"))),
        budget_s=60 * _positive("--gate-budget", option("gate_budget") or str(BUDGET_MIN)),
        strict=option("gate_strict"),
        portable=option("gate_portable"),
        noise_floor=option("gate_noise_floor"),
        direction=direction("gate_direction", config.getini("gate_direction")),
        exact=tuple(str(config.getini("gate_exact")).split()),
        folder=history_folder(config),
    )
    if found.record is not None:
        from proofline import history

        history.check_name(found.record)
    file = Path(found.baseline) if found.baseline and stands_alone("--gate-baseline", found.baseline, config) else None
    if file and file.is_file() and not file.resolve().is_relative_to(config.invocation_params.dir.resolve()):
        raise ValueError(f"--gate-baseline {file}: write --gate-baseline={file}, or pytest takes its rootdir there")
    for one, other in (("baseline", "versus"), ("noise_floor", "baseline"), ("noise_floor", "versus")):
        if getattr(found, one) and getattr(found, other):
            raise ValueError(
                f"{_flag(one)} and {_flag(other)} exclude each other: they name two things to compare with"
            )
    if found.gate and not (found.baseline or found.versus):
        raise ValueError(
            "--gate needs something to compare with: --gate-baseline NAME|latest|FILE or --gate-versus SIDE"
        )
    if found.record and (found.versus or found.noise_floor or found.gate):
        raise ValueError("--gate-record stores a baseline and decides nothing: run it without --gate, --gate-versus "
                         "and --gate-noise-floor")  # fmt: skip
    if found.record and found.baseline and found.orchestrated:
        raise ValueError("--gate-record with --gate-replicates compares with nothing: run it without --gate-baseline")
    for name, needs in (("strict", "gate"), ("portable", "baseline")):
        if getattr(found, name) and not getattr(found, needs):
            raise ValueError(f"{_flag(name)} says something about {_flag(needs)}, which is not given")
    if found.portable and found.orchestrated:
        raise ValueError("--gate-portable compares ratios of single runs: run it without --gate and --gate-replicates")
    if found.used and option("benchmark_disable", False) and not option("benchmark_enable", False):
        raise ValueError("--benchmark-disable leaves nothing to compare: drop it, or the options of the gate")
    if found.used and option("benchmark_skip", False):
        raise ValueError("--benchmark-skip leaves nothing to compare: drop it, or the options of the gate")
    if found.used and config.pluginmanager.hasplugin("dsession"):
        raise ValueError("benchmarks are not measured under xdist (-n): drop it, or the options of the gate")
    # By its options, not by its name: that depends on how it was loaded.
    if found.used and option("benchmark_disable", None) is None:
        raise ValueError("the gate compares what pytest-benchmark measures, and that plugin is not active")
    return found


def stands_alone(name: str, text: str, config: pytest.Config) -> bool:
    """Whether an option's value was given as a word of its own.

    Before it knows our options, pytest takes one that is a path for a place of tests, and its rootdir from it.
    """
    words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]
    return (name, text) in itertools.pairwise(words)


def _flag(name: str) -> str:
    return "--gate-" + name.replace("_", "-") if name != "gate" else "--gate"


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} should be a whole number of 1 or more, got {text!r}")
    return int(text)


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} should be a positive number, got {text!r}")
    return value


def _share(name: str, text: str) -> float:
    """A share written as 5% or 0.05.

    >>> _share("x", "5%"), _share("x", "0.05")
    (0.05, 0.05)
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ValueError(f"{name} should be a share between 0 and 100 %, such as 5% or 0.05, got {text!r}")
    return value


def direction(name: str, text: object) -> str:
    """Which changes fail. Raises ValueError, naming the valid ones."""
    if text not in DIRECTIONS:
        raise ValueError(f"{name} should be one of {', '.join(DIRECTIONS)}, got {text!r}")
    return str(text)


def history_folder(config: pytest.Config) -> Path:
    """Where records go: PROOFLINE_HISTORY, or the ini setting `gate_history`, relative to the rootdir."""
    return config.rootpath / (os.environ.get("PROOFLINE_HISTORY") or str(config.getini("gate_history")))


# ---- the run -----------------------------------------------------------------------------------------------------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from proofline import hooks

    pluginmanager.add_hookspecs(hooks)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gate(min_effect=0.05, direction='slower', ignore=False): how the gate judges this benchmark, instead "
        "of its ini; ignore: not at all, as where its work differs from run to run",
    )
    if settings(config).orchestrated and not hasattr(config, "workerinput"):
        from proofline import gate

        gate.configure(config, settings(config))


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.getoption("gate_history"):
        return None
    from proofline import listing

    return listing.print_history(history_folder(config), settings(config).exact, verbose=config.option.verbose > 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _records(config):
        return
    from proofline import recording

    found = config.stash[recording.SETTINGS] = {}
    for item in items:
        for marker in reversed(list(item.iter_markers("gate"))):
            try:
                found.setdefault(item.nodeid, {}).update(_of_marker(marker))
            except ValueError as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from error


def _of_marker(marker: pytest.Mark) -> dict[str, Any]:
    valid = ("min_effect", "direction", "ignore")
    if marker.args or not set(marker.kwargs) <= set(valid):
        wrong = [*map(repr, marker.args), *(f"{key}={value!r}" for key, value in marker.kwargs.items())]
        raise ValueError(f"the marker gate takes {', '.join(valid)} by name, got {', '.join(wrong)}")
    given = dict(marker.kwargs)
    if "min_effect" in given:
        given["min_effect"] = _share("min_effect", str(given["min_effect"]))
    if "direction" in given:
        direction("direction", given["direction"])
    if not isinstance(given.get("ignore", False), bool):
        raise ValueError(f"ignore should be True or False, got {given['ignore']!r}")
    return given


def _records(config: pytest.Config) -> bool:
    """Whether this run is kept: it was asked to be, or another plugin (this suite's own) keeps all of its runs."""
    return settings(config).used or is_replicate() or config.pluginmanager.hasplugin("proofline.run")


def is_replicate() -> bool:
    """Whether this process is one of those that the gate compares."""
    return bool(os.environ.get(REPLICATE))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if "benchmark" not in getattr(item, "fixturenames", ()) or not _records(item.config):
        return (yield)
    from proofline import recording
    from proofline.contention import Watch

    watch = Watch()
    try:
        return (yield)
    finally:
        item.config.stash.setdefault(recording.CONTENTION, {})[item.nodeid] = watch.stop()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if settings(config).baseline and not settings(config).orchestrated and not hasattr(config, "workerinput"):
        from proofline import single_run

        single_run.check_baseline(config, settings(config))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    # After every other plugin's own (the suite writes its record there), and before the terminal's summary.
    result = yield
    config = session.config
    if "proofline.recording" not in sys.modules or hasattr(config, "workerinput") or config.option.collectonly:
        return result
    from proofline import recording

    chosen = settings(config)
    if (chosen.used and not chosen.orchestrated) or is_replicate():
        if recording.SAVED not in config.stash:
            recording.save_plain(config, chosen.folder)
        if not is_replicate() and recording.SAVED in config.stash:
            from proofline import single_run

            single_run.finish(config, chosen, session.exitstatus)
    if recording.UNSAVED in config.stash and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "proofline.recording" in sys.modules:
        from proofline import recording

        if recording.UNSAVED in terminalreporter.config.stash:
            terminalreporter.write_line(terminalreporter.config.stash[recording.UNSAVED], red=True)
    if "proofline.single_run" in sys.modules:
        from proofline import single_run

        single_run.print_summary(terminalreporter)
