"""Loads this suite's plugin, and the installed one where it is not installed; lends the claims the runnable models."""

from types import ModuleType

import pytest

pytest_plugins = ["prooflops.plugin", "prooflops.suite.hooks", "prooflops.model.model_option"]


@pytest.fixture(scope="session")
def workloads() -> ModuleType:
    """The runnable models of `bench.models`, for claims that need a whole model."""
    import bench.models

    return bench.models
