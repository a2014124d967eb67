"""This code beside itself: what it prints and stores."""

import contextlib
import json
import math
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.prooflops.gate.foreign_repo import run
from prooflops.gate.noise_floor import store_noise_floor
from prooflops.history import records
from prooflops.history.rows import Row
from prooflops.statistics.effects import paired
from prooflops.statistics.plan import Plan, smallest_effect


def session(folder: Path, *rows: Row, directions: int = 1) -> tuple[Any, dict[str, Any]]:
    """One session stored: the measurement with its table and lines, and what is stored of each benchmark."""
    measurement = SimpleNamespace(
        settings=SimpleNamespace(folder=folder), rows=list(rows), lines=[], table=[], directions=lambda: directions,
        smallest=lambda name: {"a": 0.05}.get(name, 0.03), storing=contextlib.nullcontext,
    )  # fmt: skip
    store_noise_floor(measurement, "mine")  # type: ignore[arg-type]
    return measurement, records.noise_floors(folder, "mine")


def test_the_table_says_what_is_known_of_each_benchmark_and_what_is_not(tmp_path: Path) -> None:
    effect = paired([1.0] * 8, [1.0, 1.01] * 4, level=0.01)
    single = paired([1.0], [1.0], level=0.01)
    others = Row("c", "time", None, 1.0, "NEW"), Row("a", "mfu", 0.5, 0.5, "SAME", effect)
    for number in range(52):
        rows = Row("a", "time", 1.0, 1.0 + number / 100, "SAME", effect), Row("b", "time", 1.0, 2e-3, "SAME", single)
        found, stored = session(tmp_path, *rows, *others, directions=1 + number % 2)
        one = number == 0
        assert found.table[2][5] == ("known from 2 sessions on" if one else f"0.0% ({min(number + 1, 50)} sessions)")
    assert found.table[0] == ["benchmark", "time", "pairs", "noise", "slowdowns are found from", "between sessions"]
    expected = smallest_effect(effect.noise, Plan(benchmarks=2, directions=2), 0.05)
    floor = stored["a"]["floor"]
    assert found.table[1:] == [
        ["a", "1.51 s", "8", f"{effect.noise:.1%}", f"{expected:.1%}", f"{floor:.1%} (50 sessions)"],
        ["b", "2.00 ms", "1", "unknown", "unknown: too few pairs", "0.0% (50 sessions)"],
    ]
    assert stored["a"]["sessions_s"] == [1.0 + number / 100 for number in range(2, 52)], "the newest 50 are kept"
    assert (stored["a"]["smallest_effect"], stored["b"]["noise"]) == (expected, None)
    deviation = stdev(math.log(time_s) for time_s in stored["a"]["sessions_s"])
    assert floor == pytest.approx(math.expm1(1.6766 * deviation * math.sqrt(1 + 1 / 50)), rel=1e-4), "t(49) is 1.6766"
    assert found.lines[0] == "at most 1% of whole gate runs alarm without a change"
    assert found.lines[1].startswith("stored in ")


def test_code_beside_itself_passes_says_what_can_be_found_and_stores_it(foreign: Path) -> None:
    for session, pairs in ((1, 2), (2, 1)):
        done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor", f"--gate-replicates={pairs}", "-q")
        assert done.code == 0
        assert "1 passed" in done.output
        assert "slowdowns are found from" in done.output
        (stored,) = foreign.glob(".prooflops/history/*/noise-floor.json")
        row = json.loads(stored.read_text())["benchmarks"]["test_foreign.py::test_busy_loop"]
        assert row["pairs"] == pairs, row
        assert len(row["sessions_s"]) == session, row
        assert (row["floor"] is not None) == (session == 2), row
