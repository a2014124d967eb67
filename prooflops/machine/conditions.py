"""The state of the device before and after a measurement, and whether it was throttled or shared meanwhile.

Nothing is dropped for it: the measurement is labelled. The branches for NVIDIA's and AMD's drivers are thin calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from prooflops.machine import cpu, nvml
from prooflops.machine.contention import Watch
from prooflops.machine.device import nvml_handle

SYSTEM = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.stat")
SAMPLED_CORES = 8  # on some kernels each clock takes 10 ms to read

# What NVML's bits mean (nvml.h, nvmlClocksEventReasons). The last three hold the clock down without being asked to.
REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x010: "sync boost",
    0x100: "display clocks",
    0x004: "power cap",
    0x020: "temperature (driver)",
    0x040: "temperature (hardware)",
    0x080: "power brake",
    0x008: "hardware slowdown",
}
ASKED_FOR = ("idle", "application clocks", "sync boost", "display clocks")


@contextmanager
def conditions(device: torch.device, watch: Watch | None = None) -> Iterator[dict[str, Any]]:
    """The conditions of what is measured in the block: a dictionary that is complete when the block has ended.

    `before` and `after` (see `state`), `contention` (see `prooflops.machine.contention`), `throttled`, `contended`, and
    `labels`: for each of the two that applies, what it was in words. `watch`: of the whole benchmark, where one runs.
    """
    record: dict[str, Any] = {"before": state(device)}
    watch = watch or Watch()
    yield record
    record["contention"] = watch.stop()
    record["after"] = state(device)
    record |= label_conditions(record["before"], record["after"], record["contention"])


def label_conditions(before: dict[str, Any], after: dict[str, Any], contention: dict[str, Any]) -> dict[str, Any]:
    """Whether a measurement between two states was throttled or contended, and the labels that say so.

    Reasons that the driver gives at either end count; what it or the system adds up (`throttled_s`, `throttle_count`)
    counts where it grew in between.
    """
    reasons = [reason for moment in (before, after) for reason in moment.get("reasons", ()) if reason not in ASKED_FOR]
    for key, totals in after.get("totals", {}).items():
        if totals > before.get("totals", {}).get(key, totals):
            reasons.append(key)
    throttled = list(dict.fromkeys(reasons))
    rivals = [str(contention.get("why") or "other work")] if contention.get("contended") else []
    if (others := max(moment.get("processes", 1) for moment in (before, after)) - 1) > 0:
        rivals.append(f"{others} other process{'es' * (others > 1)} on the GPU")
    found = (("throttled", throttled), ("contended", rivals))
    labels = [f"{word}: {', '.join(why)}" for word, why in found if why]
    return {"throttled": bool(throttled), "contended": bool(rivals), "labels": labels}


def state(device: torch.device) -> dict[str, Any]:
    """What decides the speed of `device` at this moment, as far as it can be read without privileges.

    A CPU: `threads` of torch, `affinity` (the cores it may run on), `governor`, `clock_mhz`. A GPU: `clock_mhz`,
    `memory_clock_mhz`, `power_w` (which NVIDIA averages over up to a second), `power_limit_w`, `temperature_c`,
    `reasons` (why the clock is not higher, by name), `processes` that use it. `totals`: counters that grow while the
    device is throttled. `unread`: what was not asked for, and why, so that its absence is not taken for a quiet device.
    """
    found = _cpu_state(SYSTEM, cpu.CPUINFO, QUOTA)
    if device.type == "cuda":
        of_gpu = _amd_state(device) if torch.version.hip else _nvidia_state(device)
        # The host's clock is no GPU's.
        found |= {"clock_mhz": None, **of_gpu, "totals": found["totals"] | of_gpu.get("totals", {})}
    return found


# ---- CPU ---------------------------------------------------------------------------------------------------------


def _cpu_state(system: Path, cpuinfo: Path, quota: Path) -> dict[str, Any]:
    cores = cpu.allowed_cores()
    sampled = cores[:: max(1, len(cores) // SAMPLED_CORES)][:SAMPLED_CORES]
    frequencies = [system / f"cpu{core}" / "cpufreq" for core in sampled]
    governors = sorted({text for folder in frequencies if (text := cpu.text(folder / "scaling_governor"))})
    clocks = [int(text) / 1e3 for folder in frequencies if (text := cpu.text(folder / "scaling_cur_freq")).isdigit()]
    return {
        "threads": torch.get_num_threads(),
        "affinity": ranges(cores),
        "governor": ", ".join(governors) or None,
        "clock_mhz": _mean(clocks or _clocks_mhz(cpuinfo, cores)),
        "totals": _throttle_totals(system, sampled, quota),
    }


def ranges(cores: Sequence[int]) -> str:
    """Core numbers as Linux writes them.

    >>> ranges([0, 1, 2, 3, 8, 10, 11])
    '0-3,8,10-11'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _clocks_mhz(cpuinfo: Path, cores: Sequence[int]) -> list[float]:
    """The cores' clocks in /proc/cpuinfo; in a virtual machine that is the nominal one."""
    found, core = [], -1
    for line in cpu.text(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "processor" and value.strip().isdigit():
            core = int(value)
        elif key.strip() == "cpu MHz" and core in cores:
            found.append(float(value))
    return found


def _throttle_totals(system: Path, cores: Sequence[int], quota: Path) -> dict[str, float]:
    """Counters that grow while the CPU is slowed down: by its temperature (Intel), by the quota of a container."""
    totals: dict[str, float] = {}
    hot = [cpu.text(system / f"cpu{core}" / "thermal_throttle" / "core_throttle_count") for core in cores]
    if counts := [int(text) for text in hot if text.isdigit()]:
        totals["temperature"] = sum(counts)
    for line in cpu.text(quota).splitlines():
        key, _, value = line.partition(" ")
        if key in ("throttled_usec", "throttled_time") and value.strip().isdigit():
            totals["quota of the container"] = int(value)
    return totals


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


# ---- GPU ---------------------------------------------------------------------------------------------------------


def _nvidia_state(device: torch.device) -> dict[str, Any]:
    """By NVML; of a MIG slice its own processes, else what its whole card does. What the driver refuses is left out."""
    if nvml.library() is None:
        return {"unread": "no NVML"}
    handle = nvml_handle(device)
    if handle is None:
        return {"unread": f"NVML knows no such device: {device}"}

    card = nvml.card_of(handle)
    readings: dict[str, Callable[[Any], Any]] = {
        "clock_mhz": lambda nvml: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda nvml: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM),
        "power_w": lambda nvml: nvml.nvmlDeviceGetPowerUsage(card) / 1e3,
        "power_limit_w": lambda nvml: nvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3,
        "temperature_c": lambda nvml: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
        "reasons": lambda nvml: named_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(card)),
        "processes": lambda nvml: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    totals: dict[str, Callable[[Any], Any]] = {
        "power cap": lambda nvml: nvml.nvmlDeviceGetViolationStatus(card, nvml.NVML_PERF_POLICY_POWER).violationTime,
        "temperature (driver)": lambda nvml: (
            nvml.nvmlDeviceGetViolationStatus(card, nvml.NVML_PERF_POLICY_THERMAL).violationTime
        ),
    }
    # A driver before 535 knows the reasons by this name alone, whatever nvidia-ml-py has.
    older = {"reasons": lambda nvml: named_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card))}
    return {**_answered(older), **_answered(readings), "totals": _answered(totals)}


def _answered(questions: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """The answers to those questions that the driver answers for this device."""
    answers = {name: nvml.ask(question) for name, question in questions.items()}
    return {name: answer for name, answer in answers.items() if answer is not None}


def named_reasons(bits: int) -> list[str]:
    """The names of NVML's reasons for not clocking higher.

    >>> named_reasons(0x24), named_reasons(0), named_reasons(0x1000)
    (['power cap', 'temperature (driver)'], [], ['reason 0x1000'])
    """
    names = [name for bit, name in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    return names + ([f"reason {unknown:#x}"] if unknown else [])


def _amd_state(device: torch.device) -> dict[str, Any]:
    """By torch's own calls into amdsmi, which gives watts; only NVML, asked for the same, gives milliwatts. Unrun."""
    found: dict[str, Any] = {}
    for name, call in (("clock_mhz", "clock_rate"), ("power_w", "power_draw"), ("temperature_c", "temperature")):
        try:
            found[name] = getattr(torch.cuda, call)(device)
        except Exception:  # AmdSmiException is no RuntimeError; without amdsmi it is a ModuleNotFoundError
            continue
    return {**found, "unread": "reasons: torch does not ask amdsmi for them"}
