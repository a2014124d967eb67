"""NVML, NVIDIA's management library: started once, and asked without opening a context on a GPU.

Standard library, and pynvml where it is installed: the installed part of the plugin asks here too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def library() -> Any:
    """The module pynvml, started for the whole process; None where it or a driver is absent."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package or another of that name, no library, driver or permission: each has its own error
        return None
    return pynvml


def ask(question: Callable[[Any], T]) -> T | None:
    """The answer to `question(pynvml)`; None without NVML, or where the driver refuses it."""
    nvml = library()
    if nvml is None:
        return None
    try:
        return question(nvml)
    except (nvml.NVMLError, AttributeError):  # an older pynvml lacks some of the functions
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


def handle(uuid: object) -> Any:
    """NVML's handle of the GPU or MIG slice with this UUID, as torch gives it; None where the driver knows none."""
    found = ask(lambda nvml: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    return ask(lambda nvml: nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")) if found is None else found


def card_of(handle: Any) -> Any:
    """The whole card, which alone has clocks, power and temperature, of a MIG slice; else the handle itself."""
    card = ask(lambda nvml: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    return handle if card is None else card
