"""The threshold beyond which a cast overflows."""

from __future__ import annotations

import pytest

from accounting.formats import format_of
from bench.test_numerics import overflow_threshold


@pytest.mark.parametrize(
    ("dtype", "threshold"), [("fp16", 65520), ("fp8_e5m2", 61440), ("fp8_e4m3", 464), ("bf16", 2**128 - 2**119)]
)
def test_the_overflow_threshold_is_half_a_step_beyond_the_largest_number(dtype: str, threshold: int) -> None:
    assert overflow_threshold(format_of(dtype)) == threshold  # type: ignore[arg-type]
