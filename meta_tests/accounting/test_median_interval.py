"""The interval of a median: that of SciPy."""

import math
import random

import pytest
from scipy import stats

from prooflops.timing import median_interval


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99, 0.999])
def test_the_interval_is_that_of_scipys_quantile_test(confidence):
    generator = random.Random(7)
    for size in (*range(2, 40), 61, 100, 101, 999, 1000):
        values = [generator.lognormvariate(0, 1) for _ in range(size)]
        expected = stats.quantile_test(values, q=0, p=0.5).confidence_interval(confidence)
        found = median_interval(values, confidence)
        assert found == (None if math.isnan(expected.low) else (expected.low, expected.high)), (
            f"{size=}"
        )
