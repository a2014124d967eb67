"""Copies between host and device: their overlap, their parts, and what arrives changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.roofline import Work
from bench import transfers
from bench.streams import assert_bytes
from meta_tests.bench.stand_ins import CPU


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(0, 1))
def test_the_overlap_is_the_share_of_the_shorter_that_is_hidden(first: float, second: float, hidden: float) -> None:
    together = first + second - hidden * min(first, second)
    tolerance = 1e-12 * max(first, second) / min(first, second)
    assert transfers.overlap_share(first, second, together) == pytest.approx(hidden, abs=1e-9 + tolerance)


def test_a_copy_in_parts_moves_the_same_bytes_and_what_arrives_changed_is_caught() -> None:
    whole = transfers.transfer("to-host", 1000, CPU, pinned=False, blocking=True)
    parts = transfers.in_parts(whole, 7)
    assert parts.work == whole.work == Work(0, 4000)
    parts.check(parts.run())
    seen = assert_bytes(Work(0, 8000), parts.run)  # read at one end, written at the other
    assert seen.by_operator()["aten.copy_"].written_bytes == whole.work.bytes
    whole.target[3] += 1
    with pytest.raises(AssertionError, match="1 of 1000 elements arrived changed"):
        whole.check(whole.target)
    with pytest.raises(ValueError, match="copies must be"):
        transfers.cost_of_a_copy(1.0, 2.0, 1)
