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
    sides = ([Timed(1.0, {"flops": each} if each else {})] for each in (before, after))
    (row,) = exact_rows({"a": tuple(sides)})
    assert (row.name, row.quantity, row.verdict) == ("a", "flops", verdict)
    assert (row.before, row.after) == (before, after)


def test_a_quantity_that_differs_within_a_side_is_not_exact():
    one, two = (Timed(1.0, {"bytes": each}) for each in (1, 2))
    (row,) = exact_rows({"a": ([one, two], [two])})
    assert row.verdict == "SAME"
    assert "not an exact quantity" in row.note
