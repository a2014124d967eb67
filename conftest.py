"""Loads this suite's plugin, and the installed one where it is not installed; lends the claims the runnable models."""

from types import ModuleType

import pytest

# pytester: what meta_tests run child pytests with; pytest loads plugins for the root conftest alone.
pytest_plugins = ["prooflops.plugin", "prooflops.suite.plugin", "prooflops.model.plugin", "pytester"]


@pytest.fixture(scope="session")
def workloads() -> ModuleType:
    """The runnable models of `bench.models`, for claims that need a whole model."""
    import bench.models

    return bench.models
