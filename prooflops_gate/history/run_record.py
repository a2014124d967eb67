"""The record of one run of pytest.

Pytest-benchmark's JSON with the machine's fingerprint, and where it is kept.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate import __version__
from prooflops_gate.history import records
from prooflops_gate.machine import cpu, limits, nvml
from prooflops_gate.run_state import (
    CONTENTION,
    MARKERS,
    PARTIAL,
    RECORD,
    RECORD_PATH,
    RECORD_TO,
    STORAGE_ERROR,
    is_replicate,
)

SETTING_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "PYTHONHASHSEED",
)
PACKAGES = ("torch", "numpy", "scipy", "pytest-benchmark")


def benchmark_json(config: pytest.Config) -> dict[str, Any]:
    """The run in pytest-benchmark's own JSON form, made by its own hooks.

    No benchmarks where it is switched off.
    """
    # No hook of pytest-benchmark hands out its session.
    session = getattr(config, "_benchmarksession", None)
    if session is None:
        return {"benchmarks": [], "machine_info": {}, "commit_info": {}}
    hook = config.hook
    benchmarks = [bench for bench in session.benchmarks if bench]
    machine: dict[str, Any] = {"node": platform.node()}
    commit: dict[str, Any] = {}
    # The processor and the commit are each described by processes of their own, which take as long
    # as the start of a process of the gate; its parent knows both.
    if not is_replicate():
        if benchmarks:
            machine = hook.pytest_benchmark_generate_machine_info(config=config)
            hook.pytest_benchmark_update_machine_info(config=config, machine_info=machine)
        commit = hook.pytest_benchmark_generate_commit_info(config=config)
        hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit)
    content: dict[str, Any] = hook.pytest_benchmark_generate_json(
        config=config,
        benchmarks=benchmarks,
        # A benchmark of a microsecond has a hundred thousand rounds a second, which nothing
        # compares.
        include_data=config.option.benchmark_save_data
        or config.pluginmanager.hasplugin("prooflops.run"),
        machine_info=machine,
        commit_info=commit,
    )
    contention, settings = config.stash.get(CONTENTION, {}), config.stash.get(MARKERS, {})
    for bench in content["benchmarks"]:
        extra = bench.setdefault("extra_info", {})
        if bench["fullname"] in contention:
            extra["contention"] = contention[bench["fullname"]]
        if bench["fullname"] in settings:
            extra["gate"] = settings[bench["fullname"]]
    return content


def save(config: pytest.Config, content: dict[str, Any], folder: Path) -> None:
    """Writes the record into the history, and keeps its path.

    That of a replicate goes to the file that its parent reads.

    In a process of the gate, the child's plugin writes it, once. Where it cannot be written (a full
    disk, say), the run says so at its end, and fails.
    """
    target = os.environ.get(RECORD_TO)
    try:
        if config.pluginmanager.hasplugin("prooflops_gate.replicate"):
            path = Path(str(target))
            config.stash[RECORD] = content
        elif target:
            path = Path(target)
            records.write_atomically(path, records.as_text(content))
        else:
            path = records.append_record(folder, content, content["prooflops"]["fingerprint"])
    except OSError as error:
        config.stash[STORAGE_ERROR] = (
            f"the record of this run could not be stored in {target or folder}: {error}"
        )
    else:
        config.stash[RECORD_PATH] = path


def record_of(config: pytest.Config, **facts: Any) -> dict[str, Any]:
    """The record of a run.

    It is pytest-benchmark's JSON, and this project's section with `facts` in it.
    """
    content = benchmark_json(config)
    content["prooflops"] = {
        "schema": records.SCHEMA,
        "version": __version__,
        "arguments": list(config.invocation_params.args),
        "fingerprint": fingerprint(config),
        "verdicts": [],
        "partial": config.stash.get(PARTIAL, ""),
        **facts,
    }
    return content


def fingerprint(config: pytest.Config) -> dict[str, Any]:
    """Everything that must be equal for two runs' timings to be comparable.

    Plugins and conftests may add to it.
    """
    facts: dict[str, Any] = dict(
        config.hook.pytest_gate_fingerprint(config=config) or plain_fingerprint()
    )
    config.hook.pytest_gate_update_fingerprint(config=config, fingerprint=facts)
    return facts


@cache
def plain_fingerprint() -> Mapping[str, Any]:
    """Facts about machine and software, without importing torch or waking a GPU.

    Cached at the first call, after collection: by then the tests have imported their packages.
    """
    return {
        "name": cpu.name(),
        "cores": os.cpu_count(),
        "usable_cores": limits.usable_cores(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "accelerators": [driver, *nvml.gpu_names()] if (driver := nvml.driver_version()) else [],
        # torch matters to the times where the tests have imported it.
        "packages": {
            name: version
            for name in PACKAGES
            if (name != "torch" or name in sys.modules) and (version := _version(name))
        },
        "environment": {name: os.environ[name] for name in SETTING_VARIABLES if name in os.environ},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
