"""How far a figure of random samples can lie from its expectation, and the truncated normal by integration.

Bounds are two-sided, and wrong once in a billion samples: a whole run draws some ten thousand.
"""

from __future__ import annotations

import math

import torch
from scipy import special, stats

from test_claims.strategies import in_fp64

FALSE_ALARM = 1e-9
SIGMAS = float(stats.norm.isf(FALSE_ALARM / 2))  # 6.1


def normal_values(device: torch.device, seed: int, *shape: int) -> torch.Tensor:
    """Independent N(0, 1) values from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def unit_features(device: torch.device, seed: int, width: int) -> torch.Tensor:
    """A random direction of `width` features whose root mean square is 1: its products with normal weights are normal,
    independent, and of a variance that is known and not itself random."""
    x = in_fp64(normal_values(device, seed, width))
    return (x / x.square().mean().sqrt()).float().to(device)


def root_mean_square(x: torch.Tensor) -> float:
    return in_fp64(x).square().mean().sqrt().item()


def deviation_bounds(deviation: float, samples: int) -> tuple[float, float]:
    """Where the root mean square of independent N(0, deviation²) values lies: `samples` of its squares are a χ²."""
    low, high = stats.chi2.ppf(FALSE_ALARM / 2, samples), stats.chi2.isf(FALSE_ALARM / 2, samples)
    return deviation * math.sqrt(low / samples), deviation * math.sqrt(high / samples)


def share_bounds(share: float, samples: int) -> tuple[float, float]:
    """Where the share of samples that have a property lies, if each has it with this probability: a binomial."""
    low, high = stats.binom.ppf(FALSE_ALARM / 2, samples, share), stats.binom.isf(FALSE_ALARM / 2, samples, share)
    return low / samples, high / samples


def growth_bounds(width: int, layers: int, deviation: float = 1.0) -> tuple[float, float]:
    """Where the growth of a vector's root mean square lies over `layers` square layers of normal weights.

    Each layer multiplies the squared length by deviation² times an independent χ² of `width` degrees of freedom. The
    bound is Chernoff's, of the sum of their logarithms: right for any tilt, and narrow for the tilt of a normal.
    """

    def cumulant(tilt: float) -> float:
        return layers * (tilt * math.log(2) + math.lgamma(width / 2 + tilt) - math.lgamma(width / 2))

    rarity = math.log(2 / FALSE_ALARM)
    up = math.sqrt(2 * rarity / (layers * special.polygamma(1, width / 2)))
    down = min(up, width / 4)  # the cumulant is finite above -width / 2
    low, high = -(cumulant(-down) + rarity) / down, (cumulant(up) + rarity) / up
    return deviation**layers * math.exp(low / 2), deviation**layers * math.exp(high / 2)


def truncated_moment(power: int, bound: float, steps: int = 2000) -> float:
    """The expectation of x^power for a standard normal x truncated at ±bound, by Simpson's rule."""

    def integral(of: int) -> float:
        width = 2 * bound / steps
        total = 0.0
        for step in range(steps + 1):
            x = -bound + step * width
            total += (1 if step in (0, steps) else 4 if step % 2 else 2) * x**of * math.exp(-x * x / 2)
        return total * width / 3

    return integral(power) / integral(0)


def truncated_deviation_bounds(bound: float, samples: int) -> tuple[float, float]:
    """Where the root mean square of so many truncated standard normal values lies: a mean of independent squares."""
    variance, fourth = truncated_moment(2, bound), truncated_moment(4, bound)
    spread = SIGMAS * math.sqrt((fourth - variance**2) / samples)
    return math.sqrt(variance - spread), math.sqrt(variance + spread)


def assert_within(got: float, bounds: tuple[float, float], what: str) -> None:
    __tracebackhide__ = True
    low, high = bounds
    assert low <= got <= high, f"{what} is {got:.6g}, but should be between {low:.6g} and {high:.6g}"
