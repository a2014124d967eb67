"""The plugin of a process with its parent's command line: takes back what concerns the parent alone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

# By attribute of `config.option`: files of reports, selection by the last run, early ends, debuggers, coverage; and
# switched-off benchmarks, as projects' `addopts` often have them for plain runs.
PARENTS: dict[str, Any] = {
    "xmlpath": None, "report_log": None, "htmlpath": None, "json_report": False, "allure_report_dir": None,
    "lf": False, "failedfirst": False, "newfirst": False,
    "cacheclear": False, "stepwise": False, "stepwise_skip": False, "stepwise_reset": False, "maxfail": 0,
    "usepdb": False, "trace": False, "basetemp": None, "no_cov": True, "benchmark_autosave": None,
    "benchmark_save": None, "benchmark_save_data": False, "benchmark_compare": [], "benchmark_compare_fail": None,
    "benchmark_json": None, "benchmark_histogram": [], "benchmark_storage": "file://./.benchmarks",
    "benchmark_disable": False, "benchmark_skip": False,
}  # fmt: skip


def _take_back(option: Any) -> None:
    for name in PARENTS.keys() & vars(option).keys():
        setattr(option, name, PARENTS[name])


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    _take_back(early_config.known_args_namespace)  # pytest-cov starts from these
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, None, None]:
    _take_back(config.option)
    yield
