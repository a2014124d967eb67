"""Loads the plugins of the suite and the gate; gives the claims the runnable models."""

import gc
import os
from types import ModuleType

import pytest

from prooflops import copies
from prooflops_gate import needs

# Imports and collection make a million objects that live to the end: none of them is garbage.
gc.disable()

pytest_plugins = ["prooflops_gate.plugin", "prooflops.plugin"]
# The runner sets it for xdist's controller, whose workers inherit its environment.
if os.environ.pop("PROOFLOPS_CONTROLLER", ""):
    pytest_plugins += ["prooflops.suite.controller"]
else:
    pytest_plugins += ["prooflops.suite.hooks", "prooflops.model.model_option"]


def pytest_addoption() -> None:
    """Runs before the plugins above are imported."""
    needs.check("the suite ('make setup' makes a .venv with its packages) needs", needs.SUITE)
    try:
        copies.refuse_another_accounting()
    except ImportError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def workloads() -> ModuleType:
    """The runnable models of `bench.models`, for claims that need a whole model."""
    import bench.models

    return bench.models
