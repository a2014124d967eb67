"""The rows of a comparison as text, and what is missing in one."""

import json
from types import SimpleNamespace

import pytest

from meta_tests.prooflops_gate.report.test_transcripts import MIXED
from prooflops_gate.first_pair import too_long
from prooflops_gate.history.records import Timed
from prooflops_gate.report.files import SCHEMA_FILE
from prooflops_gate.report.sentences import sentence
from prooflops_gate.rows import VERDICTS, Row, table, with_skips
from prooflops_gate.task import TOOK_TOO_LONG, Pair

A, B = "bench/test_x.py::test_a", "bench/test_x.py::test_b"


def test_a_table_shows_the_times_and_what_changed(golden):
    others = ("dtype", "bf16", "fp32"), ("share", 0.25, 0.123456), ("time", 1.0, 1.1)
    rows = [*MIXED, *(Row("t.py::test_same", *each, "CHANGED") for each in others)]
    golden("comparison_rows", "\n".join(map(" | ".join, table(rows))), figures=True)


def test_a_benchmark_skipped_now_is_not_missing():
    rows = [Row("a", "flops", 1, 2, "CHANGED"), Row("b", "time", 1.0, None, "MISSING")]
    skipped = with_skips(rows, {"a": "no GPU", "b": "no GPU"})
    assert [row.verdict for row in skipped] == ["CHANGED", "INCONCLUSIVE"]


def test_the_schema_of_gate_json_lists_each_verdict():
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    assert tuple(schema["$defs"]["verdict"]["enum"]) == VERDICTS


# Seconds of its calls before and after, None where these are beyond 38 s.
@pytest.mark.parametrize(
    ("before_s", "after_s", "verdict"),
    [
        (None, None, "INCONCLUSIVE"),
        (30.0, None, "INCONCLUSIVE"),
        (None, 30.0, "INCONCLUSIVE"),
        (5.0, None, "MISSING"),
    ],
)
def test_a_benchmark_too_long_for_the_budget_is_missing_only_where_it_clearly_grew(
    before_s, after_s, verdict
):
    why = f"{TOOK_TOO_LONG} 39 s"
    skips = {A: why, B: "no network"}

    def side(seconds):
        reports = [
            {"nodeid": name, "outcome": "skipped", "longrepr": ["test_a.py", 1, f"Skipped: {why}"]}
            for name, why in skips.items()
            if name == B or seconds is None
        ]
        return SimpleNamespace(reports=reports, calls={A: {"seconds": seconds}})

    timed_before = {A: Timed(1.0, {}, test=A)} if before_s else {}
    (row,) = too_long(Pair(side(before_s), side(after_s)), timed_before, 38.0)
    assert (row.name, row.verdict, row.note) == (A, verdict, why)
    said = "its time was 1.00 s before" if before_s == 5.0 else "is not decided"
    assert said in sentence(row)
