"""The gate on simulated noise: drift, two clocks, outliers, contention, slow warm-up. All parameters are here.

Every process's figure for a kernel is exp(normal, sd 2 %) times what its scenario adds: pairs have a noise of 2.8 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meta_tests.gate_study.replay import GateRun, abba, gate_run, most_pairs
from prooflops.statistics.plan import Plan

Logs = NDArray[np.float64]

KERNELS = 20
NOISE = 0.02


def calm(draw: np.random.Generator, processes: int) -> Logs:
    """nothing else"""
    del draw
    return np.zeros((processes, KERNELS))


def drift(draw: np.random.Generator, processes: int) -> Logs:
    """the machine slows by 10 % over a run, and wanders by a random walk of 0.5 % per process, all kernels together"""
    return (np.linspace(0, 0.10, processes) + np.cumsum(draw.normal(0, 0.005, processes)))[:, None] + np.zeros(KERNELS)


def two_clocks(draw: np.random.Generator, processes: int) -> Logs:
    """the machine switches between two speeds 15 % apart, each kept for 8 processes on average (geometric)"""
    switches = draw.random(processes) < 1 / 8
    return 0.15 * ((np.cumsum(switches) + draw.integers(2)) % 2)[:, None] + np.zeros(KERNELS)


def two_modes(draw: np.random.Generator, processes: int) -> Logs:
    """each process of each kernel falls into a mode 20 % slower with a chance of 30 % (memory layout)"""
    return 0.20 * (draw.random((processes, KERNELS)) < 0.3)


def outliers(draw: np.random.Generator, processes: int) -> Logs:
    """5 % of the figures are longer by a factor of 1 + an exponential of mean 1"""
    return (draw.random((processes, KERNELS)) < 0.05) * np.log1p(draw.exponential(1.0, (processes, KERNELS)))


def contention(draw: np.random.Generator, processes: int) -> Logs:
    """a competitor comes for 5 processes on average, is there for a quarter of the time, and slows by 1x to 4x"""
    busy, state = np.zeros(processes), draw.random() < 0.25
    for i in range(processes):
        state = draw.random() >= 1 / 5 if state else draw.random() < 1 / 15
        busy[i] = state
    return busy[:, None] * np.log(draw.uniform(1, 4, (processes, KERNELS)))


def warm_up(draw: np.random.Generator, processes: int) -> Logs:
    """the first processes are slower by 30 %, which halves with every 3 processes, all kernels together"""
    del draw
    return 0.3 * 0.5 ** (np.arange(processes) / 3)[:, None] + np.zeros(KERNELS)


Scenario = Callable[[np.random.Generator, int], Logs]
SCENARIOS: tuple[Scenario, ...] = (calm, drift, two_clocks, two_modes, outliers, contention, warm_up)


@dataclass(frozen=True)
class Outcome:
    """Gate runs of a scenario without a change, and with slowdowns of 5 % and 10 % in every kernel."""

    unchanged: list[GateRun]
    slower_5: list[GateRun]
    slower_10: list[GateRun]
    threshold_alarms: int  # of --benchmark-compare-fail=min:5%, one process against the next, in as many runs


def outcome(scenario: Scenario, runs: int, seed: int = 0) -> Outcome:
    """The gate's runs under a scenario; slowdowns are planted into the same draws."""
    draw, plan = np.random.default_rng(seed), Plan(benchmarks=KERNELS)
    pairs = most_pairs(plan)
    before, after = abba(0, pairs)
    result = Outcome([], [], [], 0)
    alarms = 0
    for run in range(runs):
        times = np.exp(draw.normal(0, NOISE, (2 * pairs, KERNELS)) + scenario(draw, 2 * pairs))
        for factor, kept in ((1.0, result.unchanged), (1.05, result.slower_5), (1.10, result.slower_10)):
            kept.append(gate_run(times[before], times[after] * factor, plan, run))
        alarms += bool((times[1] > 1.05 * times[0]).any())
    return Outcome(result.unchanged, result.slower_5, result.slower_10, alarms)
