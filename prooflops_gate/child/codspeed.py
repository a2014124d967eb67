"""Measures suites that are written for pytest-codspeed with pytest-benchmark.

pytest-codspeed would replace the fixture `benchmark` by its own, which leaves no record. The suite
still sees that it was asked for: in `sys.argv`, by `config.getoption` and in the environment.
"""

from __future__ import annotations

import sys

import pytest

from prooflops_gate.unpatched import os

VARIABLE = "CODSPEED_ENV"
NAME = "prooflops_gate.codspeed"


class AskedFor:
    """Pytest plugin: hides from pytest-codspeed that it was asked for, until it is configured."""

    def __init__(self, config: pytest.Config) -> None:
        self.option: bool = config.option.codspeed
        self.variable = os.environ.pop(VARIABLE, None)
        config.option.codspeed = False

    # pytest-codspeed's own comes first.
    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.codspeed = self.option
        if self.variable is not None:
            os.environ[VARIABLE] = self.variable


def replace_codspeed(config: pytest.Config) -> None:
    """Has pytest-benchmark measure where pytest-codspeed would; called before it is configured."""
    is_loaded = "pytest_codspeed.plugin" in sys.modules
    if is_loaded and (config.option.codspeed or VARIABLE in os.environ):
        config.pluginmanager.register(AskedFor(config), NAME)
