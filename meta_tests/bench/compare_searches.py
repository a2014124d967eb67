"""Holds the guided search against an exhaustive one over the same small space, then times both winners again in turn.

python -m meta_tests.bench.compare_searches --dtype fp32
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable
from itertools import islice
from time import perf_counter

import torch

from accounting import measured
from accounting.measured import alternating
from bench.products import DTYPES, Operands, product
from bench.search import Found, Rate, Shape, Space, guided, rate_on, ratio_interval, space_of, tiles_of, units_of

LEAST_SHARE = 0.99  # of the exhaustive sweep's rate, and
LARGEST_TIME_SHARE = 1 / 20  # of its time: what the guided search promises


def exhaustive(space: Space, rate: Rate, window_s: float, clock: Callable[[], float] = perf_counter) -> Found:
    """The shape that was fastest of all, each timed once for `window_s`."""
    began = clock()
    rates = {shape: rate(shape, window_s) for shape in space.shapes}
    best = max(rates, key=rates.__getitem__)
    return Found(best, rates[best], clock() - began)


def compared(rate: Rate, one: Shape, other: Shape, pairs: int, window_s: float) -> tuple[float, float, float]:
    """Ratio of the rates of `one` and `other`, timed in ABBA order, with its 95 % interval."""
    rates = islice(alternating(lambda: rate(one, window_s), lambda: rate(other, window_s)), pairs)
    return ratio_interval([first / second for first, second in rates])


def answer(low: float, high: float, time_share: float) -> str:
    """Whether the promise was kept: by the interval of the ratio, and the share of the time."""
    if time_share > LARGEST_TIME_SHARE:
        return f"NOT kept: it took {time_share:.1%} of the sweep's time, and should take {LARGEST_TIME_SHARE:.0%}"
    if low >= LEAST_SHARE:
        return "kept"
    if high < LEAST_SHARE:
        return f"NOT kept: the rate is below {LEAST_SHARE:.0%} of the sweep's"
    return f"not known: this machine's noise is wider than {1 - LEAST_SHARE:.0%}; more --pairs would tell"


def main() -> None:
    parser = ArgumentParser(prog="python -m meta_tests.bench.compare_searches", description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--window-s", type=float, default=0.05, help="of the sweep, for each shape")
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()

    space = space_of(given.device, 2 * 1024.0**3 if given.device.type == "cpu" else math.inf)
    operands = Operands(given.dtype, max(space.m), max(space.k), max(space.n), given.device)
    rate = rate_on(operands, measured.clock(given.device))
    rate(space.shapes[-1], given.window_s)  # imports, threads, clocks
    sweep_s = len(space.shapes) * given.window_s  # at least
    found = guided(space, rate, units=units_of(given.device), tiles=tiles_of(given.device),
                   budget_s=0.85 * LARGEST_TIME_SHARE * sweep_s)  # fmt: skip
    print(f"guided      {found.shape}  {found.flop_per_s / 1e9:8.1f} GFLOP/s  in {found.seconds:5.1f} s", flush=True)
    swept = exhaustive(space, rate, given.window_s)
    print(f"exhaustive  {swept.shape}  {swept.flop_per_s / 1e9:8.1f} GFLOP/s  in {swept.seconds:5.1f} s, "
          f"{len(space.shapes)} shapes", flush=True)  # fmt: skip
    for shape in {found.shape, swept.shape}:
        case = product(given.dtype, *shape, given.device)
        case.check(case.multiply())
    share = found.seconds / swept.seconds
    if found.shape == swept.shape:
        print(f"both found the same shape, the guided search in {share:.1%} of the time")
        ratio = low = high = 1.0
    else:
        ratio, low, high = compared(rate, found.shape, swept.shape, given.pairs, 2 * given.window_s)
        print(f"in turn     guided/exhaustive {ratio:.4f} [{low:.4f}, {high:.4f}] at 95 %, in {share:.1%} of the time")
    print(f"at least {LEAST_SHARE:.0%} of the rate in at most {LARGEST_TIME_SHARE:.0%} of the time: "
          f"{answer(low, high, share)}")  # fmt: skip


if __name__ == "__main__":
    main()
