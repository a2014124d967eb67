"""The plugin of a process with its parent's command line: resets what concerns the parent alone."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from prooflops_gate.child.codspeed import replace_codspeed

# Attributes of `config.option`: files of reports, selection by the last run, early ends,
# debuggers; and switched-off benchmarks, as projects' `addopts` often have them for plain runs.
PARENTS: dict[str, Any] = {
    "xmlpath": None,
    "report_log": None,
    "htmlpath": None,
    "json_report": False,
    "allure_report_dir": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "cacheclear": False,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
    "maxfail": 0,
    "usepdb": False,
    "trace": False,
    "basetemp": None,
    "benchmark_autosave": None,
    "benchmark_save": None,
    "benchmark_save_data": False,
    "benchmark_compare": [],
    "benchmark_compare_fail": None,
    "benchmark_json": None,
    "benchmark_histogram": [],
    "benchmark_storage": "file://./.benchmarks",
    "benchmark_disable": False,
    "benchmark_skip": False,
}
# Other plugins that disturb benchmarks, by name: an option that is theirs alone, and what switches
# each off. xdist shares the cores among workers, coverage slows every call, a forked test leaves no
# times, and a shuffled order differs between the sides.
DISTURBING: dict[str, tuple[str, dict[str, Any]]] = {
    "xdist": (
        "numprocesses",
        {"numprocesses": None, "dist": "no", "distload": False, "tx": [], "looponfail": False},
    ),
    "pytest-randomly": (
        "randomly_reorganize",
        {"randomly_reorganize": False, "randomly_reset_seed": False},
    ),
    "pytest-random-order": ("random_order_bucket", {"random_order_bucket": "none"}),
    "pytest-cov": ("no_cov", {"no_cov": True}),
    "pytest-rerunfailures": ("only_rerun", {"reruns": 0}),
    "pytest-timeout": ("timeout_method", {"timeout": 0}),
    "pytest-repeat": ("repeat_scope", {"count": 1}),
    "pytest-forked": ("forked", {"forked": False}),
}


def leave_out_tag() -> None:
    """Keeps pytest-benchmark from asking git, in six processes, for the name of a file to save.

    That took a tenth of a process's start, and git opens files that may have changed.
    """
    with suppress(ImportError):
        from pytest_benchmark import utils

        utils.get_tag = plain_tag


def plain_tag(_: Any = None) -> str:
    return "gate"


leave_out_tag()


def switch_off(option: Any) -> list[str]:
    """Switches off the plugins that disturb benchmarks, and returns the requested ones."""
    found = []
    for name, (own, values) in DISTURBING.items():
        if not hasattr(option, own):
            continue
        if is_asked_for(name, option):
            found.append(name)
        for key in values.keys() & vars(option).keys():
            setattr(option, key, values[key])
    return found


def is_asked_for(name: str, option: Any) -> bool:
    """True if the options of a run request this plugin.

    Pytest-randomly shuffles wherever it is installed.
    """
    asked = {
        "xdist": ("numprocesses", "tx"),
        "pytest-cov": ("cov_source",),
        "pytest-rerunfailures": ("reruns",),
        "pytest-timeout": ("timeout",),
        "pytest-forked": ("forked",),
        "pytest-randomly": ("randomly_reorganize",),
    }
    if name == "pytest-repeat":
        return int(getattr(option, "count", 1)) > 1
    if name == "pytest-cov" and option.no_cov:
        return False
    return any(getattr(option, key, None) for key in asked.get(name, ()))


def _take_back(option: Any) -> None:
    for name in PARENTS.keys() & vars(option).keys():
        setattr(option, name, PARENTS[name])
    switch_off(option)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    # pytest-cov starts from these.
    _take_back(early_config.known_args_namespace)
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, None, None]:
    _take_back(config.option)
    replace_codspeed(config)
    yield
