"""The hooks by which other plugins and conftests change the fingerprint."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookspec(firstresult=True)
def pytest_gate_fingerprint(config: pytest.Config) -> dict[str, Any] | None:
    """Everything that must be equal for two runs' timings to be comparable.

    Replaces what the plugin finds by itself.

    def pytest_gate_fingerprint(config):
        return {"name": "rack 7", "firmware": open("/etc/firmware").read()}
    """


@pytest.hookspec
def pytest_gate_update_fingerprint(config: pytest.Config, fingerprint: dict[str, Any]) -> None:
    """Adds to the fingerprint, or removes from it.

    def pytest_gate_update_fingerprint(fingerprint):
        fingerprint["library"] = blas_library()
    """
