"""This code beside itself: what it prints and stores."""

import json
from pathlib import Path

from meta_tests.prooflops.gate.foreign_repo import run


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
