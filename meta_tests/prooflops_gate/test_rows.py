"""Exact quantities, claims and memory give the right rows, and nothing passes silently."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from prooflops_gate.first_pair import too_long
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.exact import exact_rows
from prooflops_gate.instruments.memory import memory_rows
from prooflops_gate.report.files import SCHEMA_FILE
from prooflops_gate.report.sentences import sentence
from prooflops_gate.rows import VERDICTS
from prooflops_gate.task import TOOK_TOO_LONG, Pair

NAN = float("nan")
A, B = "bench/test_x.py::test_a", "bench/test_x.py::test_b"


def timed(time_s=1.0, **exact):
    return Timed(time_s, exact)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (24, 24, "SAME"),
        (24, 25, "CHANGED"),
        (24, None, "MISSING"),
        (None, 24, "NEW"),
        (1, True, "CHANGED"),
        (NAN, NAN, "SAME"),
    ],
)
def test_an_exact_quantity_is_compared_by_equality(before, after, verdict):
    old = {} if before is None else {"flops": before}
    new = {} if after is None else {"flops": after}
    (row,) = exact_rows({A: ([timed(**old)], [timed(**new)])})
    assert (row.verdict, row.before, row.after) == (verdict, before, after)


def test_a_quantity_that_differs_within_a_side_is_not_exact():
    before, after = [timed(bytes=1), timed(bytes=2)], [timed(bytes=2)]
    (row,) = exact_rows({A: (before, after)})
    assert row.verdict == "SAME"
    assert "not an exact quantity" in row.note


def group(key, values):
    return [Timed(1.0, {}, resources={key: value}) for value in values]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([12_600] * 5, [25_200] * 5, "MORE MEMORY"),
        ([25_200] * 5, [12_600] * 5, "LESS MEMORY"),
        ([12_600] * 5, [12_600] * 5, None),
        # Too few processes to know that it is always so.
        ([12_600] * 4, [25_200] * 8, None),
        # 5 times as much, and less than 4 KiB more.
        ([1000] * 8, [5095] * 8, None),
        # 49 KB more, and less than 5 %.
        ([1_000_000] * 8, [1_049_999] * 8, None),
        # Both sides have had 24,000.
        ([*[10_000] * 4, 24_000], [24_000, *[90_000] * 4], None),
    ],
)
def test_memory_is_reported_where_every_process_of_a_side_held_more(before, after, verdict):
    found = memory_rows({"a": (group("memory", before), group("memory", after))}, 0.05)
    assert [row.verdict for row in found] == ([verdict] if verdict else [])


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

    timed_before = {A: replace(timed(1.0), test=A)} if before_s else {}
    (row,) = too_long(Pair(side(before_s), side(after_s)), timed_before, 38.0)
    assert (row.name, row.verdict, row.note) == (A, verdict, why)
    said = "its time was 1.00 s before" if before_s == 5.0 else "is not decided"
    assert said in sentence(row)
