"""How many rounds are run, and when a warm-up is over."""

from __future__ import annotations

import random

import pytest

from accounting.measured import median_interval
from bench.rounds import is_flat, rounds_for


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2])
def test_the_rounds_that_a_pilot_asks_for_make_the_interval_narrow(spread: float) -> None:
    """In three of four cases at least: a pilot of 30 rounds knows the spread to a fifth."""
    generator, narrow, width = random.Random(1), 0, 0.05
    for _ in range(200):
        pilot = [generator.lognormvariate(0, spread) for _ in range(30)]
        rounds = rounds_for(width, pilot, most=10_000)
        low, high = median_interval([generator.lognormvariate(0, spread) for _ in range(rounds)]) or (0.0, 9.0)
        narrow += high - low <= width
    assert narrow >= 150, f"{narrow} of 200 intervals were narrower than {width}, but at least 150 should be"


def test_a_quieter_machine_needs_fewer_rounds_and_time_limits_a_noisy_one() -> None:
    generator = random.Random(2)
    needed = [rounds_for(0.02, [generator.lognormvariate(0, s) for _ in range(60)], most=300) for s in (0.001, 0.02, 1)]
    assert needed[0] < needed[1] < needed[2] == 300, f"{needed} rounds for growing noise"


def test_a_drift_is_not_flat_and_noise_about_a_level_is() -> None:
    generator = random.Random(3)
    assert not is_flat([1 / (1 + i / 50) for i in range(30)]), "a clock that still rises was taken for a flat one"
    assert is_flat([generator.lognormvariate(0, 0.01) for _ in range(90)]), "noise of 1 % was taken for a drift"
