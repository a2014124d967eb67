"""The installed pytest plugin: the history of anybody's pytest-benchmark runs. Imports no torch at start."""

from __future__ import annotations

from pathlib import Path

import pytest

HISTORY = ".proofline/history"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "gate_history", f"folder of the run records, relative to the rootdir (default: {HISTORY})", default=HISTORY
    )
    parser.getgroup("proofline gate").addoption(
        "--gate-history", action="store_true", help="list the run records of the history, oldest first, and exit"
    )


def history_folder(config: pytest.Config) -> Path:
    """Where this run's record goes: the ini setting `gate_history`, relative to the rootdir."""
    return config.rootpath / str(config.getini("gate_history"))


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.getoption("gate_history"):
        return None
    from proofline import history

    folder = history_folder(config)
    listed = list(history.records(folder))
    print(f"{len(listed)} records in {folder}")
    for path, record in listed:
        if isinstance(record, history.UnreadableRecord):
            print(f"  unreadable, skipped: {record}")
            continue
        device, claims = record["proofline"].get("fingerprint", {}), record["proofline"].get("verdicts", [])
        print(
            f"  {path.name}  {len(record['benchmarks']):3d} benchmarks  {len(claims):3d} claims"
            f"  {device.get('name')}, torch {device.get('torch')}"
        )
    return 0
