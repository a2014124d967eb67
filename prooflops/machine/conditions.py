"""The conditions of a measurement: the device's state around it, and what disturbed it.

A throttled or contended measurement is labelled, never dropped. Work at the default power limit
is normal, so its lower clock is a fact and no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from prooflops.machine.device import uuid_of
from prooflops.machine.sampling import Sampler, sampler_of
from prooflops_gate.machine import cpu, nvml
from prooflops_gate.machine.contention import Watch, label_contention
from prooflops_gate.machine.core_speed import CoreSpeed, with_core_speed

POWER_CAP = "power cap"
# GPUs change their clock in steps of 15 MHz, below 1 %.
LEAST_FALL_OF_CLOCK = 0.03
# It slows the host, whatever the clock of its GPU.
REASON_OF_HOST = "temperature"
ANOTHER_PROCESS = "another process uses this GPU"
# In a whole run, the longest wait until the core runs at full speed.
PATIENCE_S = 10.0


class Conditions(dict[str, Any]):
    """The conditions of a measurement; complete when its block has ended.

    `core` is the speed of a CPU's core between the rounds.
    """

    def __init__(
        self, before: dict[str, Any], sampler: Sampler, core: CoreSpeed | None = None
    ) -> None:
        super().__init__(before=before)
        self.sampler, self.core = sampler, core

    @property
    def rival(self) -> str:
        """Says that another process used the GPU before the measurement; else empty."""
        return ANOTHER_PROCESS if self["before"].get("processes", 1) > 1 else ""

    def start_rounds(self) -> None:
        """Drops the samples taken so far from `during`."""
        self.sampler.restart()

    def before_round(self) -> None:
        """Measures the speed of a CPU's core."""
        if self.core is not None:
            self.core.look()


@contextmanager
def conditions(device: torch.device, watch: Watch | None = None) -> Iterator[Conditions]:
    """The conditions of the measurements in the block.

    They have the keys `before` and `after` (see `state`), `during` (see
    `prooflops.machine.sampling`; empty on a CPU), `contention` (see
    `prooflops_gate.machine.contention`), on a CPU `slowed_at_most`, and those of
    `label_conditions`. `watch` is that of the whole benchmark, if one runs.
    """
    core = core_speed() if device.type == "cpu" else None
    between = core and CoreSpeed(core.fastest_s, patience_s=0.0, sees_others=False)
    record = Conditions(state(device), sampler_of(device), between)
    watch = watch or Watch()
    if core is not None:
        core.begin()
        core.look()
    record.sampler.start()
    try:
        yield record
    finally:
        record["during"] = record.sampler.stop()
    record["contention"] = watch.stop()
    if core is not None:
        core.look(last=True)
        most = slowed_at_most(record["contention"], core.slowest_s / core.fastest_s)
        record["slowed_at_most"] = most
        record["contention"] = with_core_speed(record["contention"], core.stretch_s, core.fastest_s)
    record["after"] = state(device)
    record.update(label_conditions(record))


def slowed_at_most(contention: Mapping[str, Any], slowness: float) -> float | None:
    """The largest slowdown that contention can explain, as a factor; None if it has no bound.

    A slower core and time taken by the hypervisor explain only as much as they took. Processes that
    take turns with the work can explain any factor, because its threads wait for each other.

    >>> seen = {"others_cores": 0.0, "steal": 0.2, "involuntary_switches_per_s": 0.0}
    >>> slowed_at_most(seen, slowness=2.0)
    2.5
    >>> slowed_at_most({**seen, "others_cores": 1.0}, slowness=2.0)
    """
    if label_contention({**contention, "steal": 0.0})["contended"]:
        return None
    return max(slowness, 1.0) / (1 - (contention.get("steal") or 0.0))


@cache
def core_speed() -> CoreSpeed:
    """The core speed of this process, relative to the fastest work of all its benchmarks."""
    return CoreSpeed(patience_s=PATIENCE_S)


def label_conditions(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Labels of a measurement between two states: `throttled`, `contended`, `labels`, `facts`.

    A GPU counts as throttled if its clock fell by more than 3 %, or is unknown, for a reason that
    is not normal. Such reasons are heat, a hardware slowdown, a power brake, or a power limit below
    the default. A host is throttled by heat. See `reasons_of` for the reasons that count. Facts are
    the clock under the default power limit, and a lower limit that did not slow the work.

    >>> limited = {"clock_mhz": 1490, "reasons": ["power cap"]}
    >>> label_conditions({"before": {"highest_clock_mhz": 1980}, "during": limited})["facts"]
    ['power-limited: 1.49 of 1.98 GHz']
    """
    before, after, contention = (seen.get(key, {}) for key in ("before", "after", "contention"))
    reasons = reasons_of(seen)
    fell, ran = _clock(seen)
    slowing = reasons if fell else [reason for reason in reasons if reason == REASON_OF_HOST]
    throttled = [reason for reason in slowing if reason != POWER_CAP]
    facts: list[str] = []
    limit, default = before.get("power_limit_w"), before.get("default_power_w")
    lowered = f"power limit {limit:.0f} W, by default {default:.0f} W" if limit and default else ""
    if lowered and limit < default:
        slowed = POWER_CAP in reasons and fell
        (throttled if slowed else facts).append(lowered)
    elif POWER_CAP in reasons and fell:
        facts.append("power-limited" + (f": {ran}" if ran else ""))
    rivals = [str(contention.get("why") or "other work")] if contention.get("contended") else []
    others = max(moment.get("processes", 1) for moment in (before, after)) - 1
    if others > 0:
        rivals.append(f"{ANOTHER_PROCESS} ({others})")
    found = {"throttled": throttled, "contended": rivals}
    labels = [f"{word}: {', '.join(why)}" for word, why in found.items() if why]
    return {
        "throttled": bool(throttled),
        "contended": bool(rivals),
        "other_processes": max(others, 0),
        "labels": labels,
        "facts": facts,
    }


def reasons_of(seen: Mapping[str, Any]) -> list[str]:
    """The reasons why the clock was not higher, without requested ones.

    They come from the samples, or in a record without samples from both ends. The names of totals
    that grew are added.
    """
    before, during, after = (seen.get(key) or {} for key in ("before", "during", "after"))
    reasons = []
    for moment in (during,) if during else (before, after):
        reasons += moment.get("reasons", ())
    for key, total in after.get("totals", {}).items():
        if total > before.get("totals", {}).get(key, total):
            reasons.append(key)
    return [reason for reason in dict.fromkeys(reasons) if reason not in nvml.REQUESTED]


def _clock(seen: Mapping[str, Any]) -> tuple[bool, str]:
    """True if a GPU's clock fell or is unknown, and in words the clock beside the highest."""
    before, during, after = (seen.get(key) or {} for key in ("before", "during", "after"))
    highest = before.get("highest_clock_mhz")
    clocks = [moment.get("clock_mhz") for moment in ((during,) if during else (before, after))]
    known = [clock for clock in clocks if clock]
    if not known or not highest:
        return True, ""
    clock = sum(known) / len(known)
    return clock < (
        1 - LEAST_FALL_OF_CLOCK
    ) * highest, f"{clock / 1e3:.2f} of {highest / 1e3:.2f} GHz"


def state(device: torch.device) -> dict[str, Any]:
    """The settings and readings that decide the speed of `device` now, without privileges.

    - A CPU has `threads` of torch, `affinity` (the cores it may run on), `governor` and
      `clock_mhz`.
    - An NVIDIA GPU has `clock_mhz` and `highest_clock_mhz`, `power_limit_w` and `default_power_w`,
      and `temperature_c`. It also has `reasons` why the clock is not higher, and the number of
      `processes` that use it. `unread` says why a GPU was not read.
    - `totals` are counters that grow while the host is throttled.
    """
    found = {"threads": torch.get_num_threads(), **cpu.state()}
    if device.type == "cuda":
        found |= {"clock_mhz": None, **nvml.state(uuid_of(device))}
    return found
