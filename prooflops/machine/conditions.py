"""The state of the device around a measurement, and whether it was throttled or shared meanwhile.

A throttled or contended measurement is labelled, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prooflops.machine.device import uuid_of
from prooflops_gate.machine import cpu, nvml
from prooflops_gate.machine.contention import Watch


@contextmanager
def conditions(device: torch.device, watch: Watch | None = None) -> Iterator[dict[str, Any]]:
    """The conditions of the measurements in the block: a dictionary that is complete when the block has ended.

    `before` and `after` (see `state`), `contention` (see `prooflops_gate.machine.contention`), `throttled`,
    `contended`, and `labels`: a sentence for each of the two that applies. `watch`: the one of the whole benchmark, if
    one runs.
    """
    record: dict[str, Any] = {"before": state(device)}
    watch = watch or Watch()
    yield record
    record["contention"] = watch.stop()
    record["after"] = state(device)
    record |= label_conditions(record["before"], record["after"], record["contention"])


def label_conditions(
    before: dict[str, Any], after: dict[str, Any], contention: dict[str, Any]
) -> dict[str, Any]:
    """Whether a measurement between two states was throttled or contended, and the labels that say so.

    A reason that the driver gives at either end counts, and a total that grew in between.
    """
    reasons = [
        reason
        for moment in (before, after)
        for reason in moment.get("reasons", ())
        if reason not in nvml.ASKED_FOR
    ]
    for key, total in after.get("totals", {}).items():
        if total > before.get("totals", {}).get(key, total):
            reasons.append(key)
    throttled = list(dict.fromkeys(reasons))
    rivals = [str(contention.get("why") or "other work")] if contention.get("contended") else []
    if (others := max(moment.get("processes", 1) for moment in (before, after)) - 1) > 0:
        rivals.append(f"{others} other process{'es' * (others > 1)} on the GPU")
    found = (("throttled", throttled), ("contended", rivals))
    labels = [f"{word}: {', '.join(why)}" for word, why in found if why]
    return {"throttled": bool(throttled), "contended": bool(rivals), "labels": labels}


def state(device: torch.device) -> dict[str, Any]:
    """The settings and readings that decide the speed of `device` now, as far as they need no privileges.

    A CPU: `threads` of torch, `affinity` (the cores it may run on), `governor`, `clock_mhz`. A GPU: `clock_mhz`,
    `memory_clock_mhz`, `power_w` (which NVIDIA averages over up to a second), `power_limit_w`, `temperature_c`,
    `reasons` (why the clock is not higher, by name), `processes` that use it. `totals`: counters that grow while the
    device is throttled. `unread`: readings that were not asked for, and why: none is no sign of a quiet device.
    """
    found = {"threads": torch.get_num_threads(), **cpu.state()}
    if device.type == "cuda":
        of_gpu = _amd_state(device) if torch.version.hip else nvml.state(uuid_of(device))
        found |= {"clock_mhz": None, **of_gpu, "totals": found["totals"] | of_gpu.get("totals", {})}
    return found


def _amd_state(device: torch.device) -> dict[str, Any]:
    """By torch's own calls into amdsmi, in which power is in watts (NVML's is in milliwatts). Unrun."""
    found: dict[str, Any] = {}
    for name, call in (
        ("clock_mhz", "clock_rate"),
        ("power_w", "power_draw"),
        ("temperature_c", "temperature"),
    ):
        try:
            found[name] = getattr(torch.cuda, call)(device)
        except (
            Exception
        ):  # AmdSmiException is no RuntimeError; without amdsmi it is a ModuleNotFoundError
            continue
    return {**found, "unread": "reasons: torch does not ask amdsmi for them"}
