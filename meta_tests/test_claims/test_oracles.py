"""The oracles of the claims: the number that counts its operations, and the walker over names of amounts and rates."""

import math

import pytest
import torch

from accounting.flops import StepFlops, linear_step
from test_claims.oracles.names import Quantity, of_member, violations
from test_claims.oracles.scalars import Operations


def test_the_oracle_counts_what_it_did():
    """Every operator of the counting number, so that a claim cannot rest on one that forgot to count."""
    tally = Operations()
    a, b = tally.array(torch.tensor([2.0, 3.0]))
    results = [a * b, a * 2.0, 2.0 * a, a + b, 1.0 + a, a - b, a.through(math.exp)]
    assert [float(result) for result in results] == [6, 4, 4, 5, 3, -1, math.exp(2)]
    assert (tally.multiplications, tally.additions, tally.others, tally.flops) == (3, 3, 1, 7)


@pytest.mark.parametrize(
    ("quantity", "complaint"),
    [
        (Quantity("planning.peak_flops", "peak_flops", "float"), "is float, but a name in _flops is int"),
        (Quantity("roofline.peak_flop_per_s", "peak_flop_per_s", "int"), "is int, but a name in _flop_per_s is float"),
        (Quantity("memory.cache_bytes", "cache_bytes", "float | None"), "is float | None"),
        (Quantity("devices.peak", "peak", "float", "Peak in TFLOPS."), "says 'TFLOPS'"),
        (Quantity("devices.peak", "peak", "float", "Peak in FLOPs/s."), "says 'FLOPs/s'"),
        (Quantity("devices.peak_flops_per_s", "peak_flops_per_s", "float"), "says 'flops_per_s'"),
        (Quantity("devices.peak_tflops", "peak_tflops", "int"), "says 'tflops'"),
    ],
)
def test_a_name_that_mixes_amount_and_rate_is_found(quantity, complaint):
    assert any(complaint in problem for problem in violations(quantity)), f"{violations(quantity)}, not {complaint!r}"


def test_the_walker_sees_functions_arguments_fields_and_properties():
    seen = {quantity.where for member in (StepFlops, linear_step) for quantity in of_member(member.__name__, member)}
    assert seen >= {"StepFlops.forward", "StepFlops.hardware", "linear_step", "linear_step(in_features)"}, f"{seen}"
