"""Reads NVML, NVIDIA's management library, without opening a context on a GPU.

This file uses the standard library, and pynvml if it is installed. A question that the driver
refuses returns None, and is no error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

# Names of NVML's bits (nvml.h, nvmlClocksEventReasons). Nobody requested reasons that are not in
# REQUESTED.
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
REQUESTED = ("idle", "application clocks", "sync boost", "display clocks")


@cache
def library() -> Any:
    """The module pynvml, started for the whole process; None without it or without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        # The package, the library, the driver or the permission is missing, each with another
        # error.
        return None
    return pynvml


def ask(question: Callable[[Any], T]) -> T | None:
    """The answer to `question(pynvml)`; None without NVML, or if the driver refuses."""
    nvml = library()
    if nvml is None:
        return None
    try:
        return question(nvml)
    except (nvml.NVMLError, AttributeError):
        # An older pynvml lacks some of the functions.
        return None


def driver_version() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    version = ask(lambda nvml: nvml.nvmlSystemGetDriverVersion())
    return None if version is None else str(version)


def gpu_names() -> list[str]:
    """The product names of the NVIDIA GPUs."""
    names = ask(
        lambda nvml: [
            str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)))
            for index in range(nvml.nvmlDeviceGetCount())
        ]
    )
    return names or []


def gpu(uuid: object) -> Any:
    """NVML's handle of the GPU or MIG slice with this UUID, as torch names it; None if unknown."""
    found = ask(lambda nvml: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    if found is not None:
        return found
    return ask(lambda nvml: nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}"))


def card(uuid: object) -> Any:
    """The GPU, or the whole card of a MIG slice, which alone has clocks, power and temperature.

    None if the driver knows none.
    """
    handle = gpu(uuid)
    if handle is None:
        return None
    whole = ask(lambda nvml: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    return handle if whole is None else whole


def clock_hz(card: Any) -> float | None:
    """The clock of a card now; None if unknown."""
    if card is None:
        return None
    return _hertz(ask(lambda nvml: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)))


def highest_clock_hz(card: Any) -> float | None:
    """The highest clock that the driver allows a card; None if unknown."""
    if card is None:
        return None
    return _hertz(ask(lambda nvml: nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM)))


def _hertz(megahertz: Any) -> float | None:
    return 1e6 * megahertz if megahertz else None


def state(uuid: object) -> dict[str, Any]:
    """Clocks, power limits, temperature, reasons and processes, keyed as in `conditions.state`.

    A MIG slice has its own processes; the rest is its card's. Readings that the driver refuses are
    omitted.
    """
    if library() is None:
        return {"unread": "no NVML"}
    handle = gpu(uuid)
    if handle is None:
        return {"unread": f"NVML knows no device with UUID {uuid}"}
    whole = card(uuid)
    readings: dict[str, Callable[[Any], Any]] = {
        "highest_clock_mhz": lambda nvml: nvml.nvmlDeviceGetMaxClockInfo(whole, nvml.NVML_CLOCK_SM),
        "power_limit_w": lambda nvml: nvml.nvmlDeviceGetEnforcedPowerLimit(whole) / 1e3,
        "default_power_w": lambda nvml: nvml.nvmlDeviceGetPowerManagementDefaultLimit(whole) / 1e3,
        "processes": lambda nvml: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    return {**moment(whole), **answers(readings)}


def energy_j(card: Any) -> float | None:
    """The energy that a card has used since its driver was loaded; None if it does not count."""
    millijoules = ask(lambda nvml: nvml.nvmlDeviceGetTotalEnergyConsumption(card))
    return None if millijoules is None else float(millijoules) / 1e3


def moment(card: Any) -> dict[str, Any]:
    """The readings of a card that change while it works: clock, temperature, reasons."""
    readings: dict[str, Callable[[Any], Any]] = {
        "clock_mhz": lambda nvml: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
        "temperature_c": lambda nvml: nvml.nvmlDeviceGetTemperature(
            card, nvml.NVML_TEMPERATURE_GPU
        ),
        "reasons": lambda nvml: named_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(card)),
    }
    found = answers(readings)
    if "reasons" not in found:
        # A driver before 535 knows only this older name, whichever nvidia-ml-py is installed.
        older = {"reasons": lambda nvml: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)}
        found |= {key: named_reasons(bits) for key, bits in answers(older).items()}
    return found


def answers(questions: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """The answers to those questions that the driver does not refuse."""
    found = {name: ask(question) for name, question in questions.items()}
    return {name: answer for name, answer in found.items() if answer is not None}


def named_reasons(bits: int) -> list[str]:
    """The names of NVML's reasons for not clocking higher.

    >>> named_reasons(0x24), named_reasons(0), named_reasons(0x1000)
    (['power cap', 'temperature (driver)'], [], ['reason 0x1000'])
    """
    names = [name for bit, name in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    if unknown:
        names.append(f"reason {unknown:#x}")
    return names
