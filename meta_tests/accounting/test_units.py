"""Figures with units: written so that they read back, and read as people write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.units import amount, with_unit
from meta_tests.accounting.refusals import refuses


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


@pytest.mark.parametrize(
    ("figure", "number"),
    [("15T", 15 * 10**12), ("1.5k", 1500), ("80 GiB", 80 * 2**30), ("80GB", 80 * 10**9), ("70B", 70 * 10**9),
     ("1,000,000", 10**6), ("1_000", 1000), ("1.5e12", 15 * 10**11), ("12", 12), (7e10, 7 * 10**10), ("5 Ki", 5120)],
)  # fmt: skip
def test_a_figure_is_read_as_people_write_it(figure, number):
    got = amount(figure)
    assert (got, type(got)) == (number, int)


test_bad_input_is_named_with_its_value_and_what_is_valid = refuses(
    *((lambda each=each: amount(each, "tokens"), ValueError, ["tokens must be a number such as 15T", repr(each)])
      for each in ("", "x", "-5", "1.2.3", "15 tokens", "80 gb", "T", "1e1.5")),
    (lambda: amount(1.5, "tokens"), TypeError, "tokens must be an integer, got 1.5"),
    (lambda: amount(None), TypeError, "amount must be an integer, got None"),
    (lambda: with_unit("5", "B"), TypeError, "value must be a number, got '5'"),
    (lambda: with_unit(float("nan"), "B"), ValueError, "value must be finite, got nan"),
)  # fmt: skip
