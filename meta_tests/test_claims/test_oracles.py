"""The number of the claims' oracles that counts its operations."""

import math

import torch

from test_claims.oracles.scalars import Operations


def test_the_oracle_counts_what_it_did():
    """Every operator of the counting number: no claim rests on one that forgot to count."""
    tally = Operations()
    a, b = tally.array(torch.tensor([2.0, 3.0]))
    results = [a * b, a * 2.0, 2.0 * a, a + b, 1.0 + a, a - b, a.through(math.exp)]
    assert [float(result) for result in results] == [6, 4, 4, 5, 3, -1, math.exp(2)]
    assert (tally.multiplications, tally.additions, tally.others, tally.flops) == (3, 3, 1, 7)
