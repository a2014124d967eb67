"""Samples a device at work: the clock; of a GPU also energy, temperature and throttle reasons."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from prooflops.machine import cpu_clock
from prooflops.machine.device import card_of
from prooflops_gate.machine import nvml

Moment = Mapping[str, Any]

PERIOD_S = 0.02
# The device works by then, even in rounds shorter than a period.
FIRST_S = 0.005


class Sampler:
    """Reads the device every 20 ms, in a thread that sleeps in between; `read` None reads nothing.

    NVML's calls leave Python's lock to the other threads, so they delay no launch. `energy_j`: the
    device's counter, read at the beginning and the end.
    """

    def __init__(
        self,
        read: Callable[[], Moment] | None,
        energy_j: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._read = read
        self._energy_j = energy_j
        self._first_j: float | None = None
        self._moments: list[Moment] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)

    def start(self) -> None:
        if self._read is not None:
            self._first_j = self._energy_j()
            self._thread.start()

    def restart(self) -> None:
        """Forgets the samples so far: they are of the warm-up."""
        self._first_j = self._energy_j()
        self._moments = []

    def stop(self) -> dict[str, Any]:
        """A summary of the samples, at least one; empty without a reader."""
        if self._read is None:
            return {}
        if not self._moments:
            self._moments.append(self._read())
        last_j = self._energy_j()
        self._ended.set()
        self._thread.join()
        found = summary(self._moments)
        if self._first_j is not None and last_j is not None:
            found["energy_j"] = last_j - self._first_j
        return found

    def _sample(self) -> None:
        assert self._read is not None
        wait_s = FIRST_S
        while not self._ended.wait(wait_s):
            self._moments.append(self._read())
            wait_s = PERIOD_S


class AfterWork(Sampler):
    """Reads the clock of a CPU once, right after the work: AVX-512 and AMX lower it for a while.

    A thread that reads it during the work would occupy one of its cores.
    """

    def __init__(self) -> None:
        super().__init__(None)

    def stop(self) -> dict[str, Any]:
        try:
            return {"samples": 1, "clock_mhz": round(cpu_clock.clock_hz() / 1e6, 1)}
        except cpu_clock.NoClock as error:
            return {"unread": f"clock: {error}"}


def sampler_of(device: torch.device) -> Sampler:
    """The sampler of `device`: NVIDIA's GPUs while they work, a CPU afterwards, no other device."""
    if device.type == "cpu":
        return AfterWork()
    card = card_of(device) if device.type == "cuda" else None
    if card is None:
        return Sampler(None)
    return Sampler(lambda: nvml.moment(card), lambda: nvml.energy_j(card))


def summary(moments: Sequence[Moment]) -> dict[str, Any]:
    """The mean clock, the highest temperature, and all reasons.

    >>> summary([{"clock_mhz": 1500, "reasons": ["power cap"]}, {"clock_mhz": 1600}])
    {'samples': 2, 'clock_mhz': 1550.0, 'reasons': ['power cap']}
    """
    clocks = [moment["clock_mhz"] for moment in moments if "clock_mhz" in moment]
    degrees = [moment["temperature_c"] for moment in moments if "temperature_c" in moment]
    reasons = [reason for moment in moments for reason in moment.get("reasons", ())]
    found: dict[str, Any] = {"samples": len(moments)}
    if clocks:
        found["clock_mhz"] = round(fmean(clocks), 1)
    if degrees:
        found["temperature_c"] = max(degrees)
    return found | {"reasons": list(dict.fromkeys(reasons))}
