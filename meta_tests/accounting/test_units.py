"""Figures with units: written so that they read back, and read as people write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.units import amount, with_unit


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.94e15, "FLOP", "3.94 PFLOP"),
        (16.2 * 2**30, "B", "16.2 GiB"),
        (999, "FLOP", "999 FLOP"),
        (999.7, "FLOP", "1.00 kFLOP"),
        (1023, "B", "1023 B"),
        (1536, "B", "1.50 KiB"),
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (-5e9, "FLOP", "-5.00 GFLOP"),
        (0.25, "FLOP/B", "0.25 FLOP/B"),
        (9.995, "FLOP/B", "10.0 FLOP/B"),
        (99.95, "FLOP/B", "100 FLOP/B"),
        (150.7, "FLOP/B", "151 FLOP/B"),
        (0, "B", "0 B"),
        (1e30, "FLOP", "1000000 YFLOP"),
    ],
)
def test_a_figure_has_three_digits_and_the_prefix_that_fits(value, unit, text):
    assert with_unit(value, unit) == text


@given(value=st.integers(1, 10**20), unit=st.sampled_from(["B", "FLOP"]))
def test_what_is_written_reads_back_to_three_digits(value, unit):
    text = with_unit(value, unit)
    assert amount(text.removesuffix("FLOP").removesuffix(" B")) == pytest.approx(value, rel=0.006), text
    digits = re.match(r"[\d.]+", text).group().replace(".", "")
    assert len(digits) <= 4, f"{text} has {len(digits)} digits"
