"""Exact quantities are compared by equality."""

import pytest

from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.exact import exact_rows

NAN = float("nan")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (24, 24, "SAME"),
        (24, 25, "CHANGED"),
        (24, None, "MISSING"),
        (None, 24, "NEW"),
        (1, True, "CHANGED"),
        (0.5, 0.5, "SAME"),
        (NAN, NAN, "SAME"),
        (NAN, 0.5, "CHANGED"),
    ],
)
def test_an_exact_quantity_is_compared_by_equality(before, after, verdict):
    old = {} if before is None else {"flops": before}
    new = {} if after is None else {"flops": after}
    (row,) = exact_rows({"a": ([Timed(1.0, old)], [Timed(1.0, new)])})
    assert (row.name, row.quantity, row.verdict) == ("a", "flops", verdict)
    assert (row.before, row.after) == (before, after)


def test_a_quantity_that_differs_within_a_side_is_not_exact():
    before, after = [Timed(1.0, {"bytes": 1}), Timed(1.0, {"bytes": 2})], [Timed(1.0, {"bytes": 2})]
    (row,) = exact_rows({"a": (before, after)})
    assert row.verdict == "SAME"
    assert "not an exact quantity" in row.note
