"""Reads what other tools have stored of a project: asv, pytest-benchmark and pytest-codspeed.

Nothing is written.

    .asv/results/<machine>/<commit>-<environment>.json, and benchmarks.json beside the machines
    .benchmarks/<machine>/<number>_<commit>_<moment>.json
    .codspeed/results_<milliseconds>.json

Each file becomes a summary, whose fingerprint and pace are its tool's: no series mixes two tools. A
figure is the fastest round where a tool keeps it; asv keeps the median. Truncated and foreign files
are passed over.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prooflops_gate.history import records
from prooflops_gate.history.records import LARGEST, SMALLEST, Summary, Timed

ASV, BENCHMARK, CODSPEED = "asv", "pytest-benchmark", "pytest-codspeed"
# asv's own names of the columns of a result, where a file has none.
ASV_COLUMNS = ("result", "params", "version")


def stored_elsewhere(root: Path) -> dict[str, list[Summary]]:
    """What each tool has stored below this folder, the oldest first."""
    readers: dict[str, Callable[[Path], Iterator[Summary]]] = {
        ASV: asv_results,
        BENCHMARK: benchmark_files,
        CODSPEED: codspeed_results,
    }
    found = {}
    for tool, read in readers.items():
        results = sorted(read(root), key=lambda each: each.moment)
        if results:
            found[tool] = results
    return found


def asv_results(root: Path) -> Iterator[Summary]:
    """The results of asv's timing benchmarks, one a commit, machine and environment."""
    folder = root / ".asv" / "results"
    kinds = _json(folder / "benchmarks.json")
    for path in sorted(folder.glob("*/*.json")):
        if path.name == "machine.json":
            continue
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            content = _json(path)
            machine = path.parent.name
            name = content["params"].get("cpu") or machine
            conditions = {"name": name, "machine": machine, "environment": content["env_name"]}
            yield _summary(
                path,
                tool=ASV,
                moment=content["date"] / 1000,
                conditions=conditions,
                commit=content["commit_hash"],
                times=dict(_asv_times(content, kinds)),
            )


def _asv_times(content: Mapping[str, Any], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Timed]]:
    columns = content.get("result_columns", ASV_COLUMNS)
    for name, row in content["results"].items():
        if kinds.get(name, {}).get("type", "time") != "time":
            continue
        # Columns at a row's end may be left out.
        known = dict(zip(columns, row, strict=False))
        parameters = known.get("params") or []
        for values, time_s in zip(itertools.product(*parameters), known["result"], strict=False):
            full = f"{name}({', '.join(values)})" if values else name
            if _is_time(time_s):
                yield full, Timed(time_s, {}, method=f"asv {known.get('version', '')}", test=full)


def benchmark_files(root: Path) -> Iterator[Summary]:
    """The files of pytest-benchmark's own storage."""
    for path in sorted((root / ".benchmarks").glob("*/*.json")):
        with suppress(records.UnreadableRecord, KeyError, TypeError, ValueError, AttributeError):
            content = _json(path)
            machine = content["machine_info"]
            name = machine.get("cpu", {}).get("brand_raw") or machine.get("node", "")
            python = machine.get("python_version", "")
            fingerprint = {"name": name, "python": python, "tool": BENCHMARK}
            found = records.summary_of({**content, "prooflops": {}}, path, ())
            identity = records.fingerprint_id(fingerprint)
            yield replace(found, fingerprint_id=identity, name=name, pace=BENCHMARK)


def codspeed_results(root: Path) -> Iterator[Summary]:
    """The results of pytest-codspeed in wall time, which name neither commit nor machine."""
    for path in sorted((root / ".codspeed").glob("results_*.json")):
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            times = {}
            for bench in _json(path)["benchmarks"]:
                time_s = bench["stats"]["min_ns"] / 1e9
                if _is_time(time_s):
                    times[str(bench["uri"])] = Timed(time_s, {}, test=str(bench["uri"]))
            milliseconds = int(path.stem.partition("_")[2])
            conditions = {"name": "unknown machine"}
            yield _summary(
                path,
                tool=CODSPEED,
                moment=milliseconds / 1000,
                conditions=conditions,
                commit="",
                times=times,
            )


def _summary(
    path: Path,
    *,
    tool: str,
    moment: float,
    conditions: Mapping[str, str],
    commit: str,
    times: Mapping[str, Timed],
) -> Summary:
    when = datetime.fromtimestamp(moment, timezone.utc).isoformat()
    identity = records.fingerprint_id({**conditions, "tool": tool})
    name = conditions["name"]
    return Summary(path, when, identity, name, "", str(commit), times, {}, pace=tool)


def _is_time(value: Any) -> bool:
    """Whether a figure is a time: failed benchmarks have none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and SMALLEST < value < LARGEST


def _json(path: Path) -> Any:
    """The content of a file; nothing for one that is truncated, or not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
