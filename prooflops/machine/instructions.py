"""The instructions that a call retires in user space, by Linux's perf_event_open. Standard library only.

The counter follows the calling thread and the threads and processes that it starts meanwhile, not older ones such as
the workers of a thread pool. Many containers, virtual machines and kernels don't permit it; then there is no figure.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
# struct perf_event_attr, version 0: type (hardware), its size, config (instructions), sample_period, sample_type,
# read_format (with the times enabled and running), flags (inherit, exclude_kernel, exclude_hv), the rest.
ATTRIBUTES = struct.pack("=IIQQQQQIIQ", 0, 64, 1, 0, 0, 1 | 2, 1 << 1 | 1 << 5 | 1 << 6, 0, 0, 0)
CLOSE_ON_EXEC = 8
COUNT = struct.Struct("=QQQ")  # instructions, time enabled, time running
EMPTY_CALLS = 5


def call_counted(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, int | None]:
    """The result of `function`, and the instructions of this one call less those of an empty one; None if uncounted."""
    counter = open_counter()
    if counter is None:
        return function(*args, **kwargs), None
    try:
        empty = [_counted(counter, _empty)[1] for _ in range(EMPTY_CALLS)]
        result, found = _counted(counter, function, *args, **kwargs)
        known = [each for each in empty if each is not None]
        return result, max(found - min(known), 0) if found is not None and known else None
    finally:
        os.close(counter)


def is_permitted() -> bool:
    """Whether the system lets this process count instructions."""
    counter = open_counter()
    if counter is not None:
        os.close(counter)
    return counter is not None


def open_counter() -> int | None:
    """The descriptor of a running counter of this thread; None where the system gives none."""
    number = SYSTEM_CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return None
    with suppress(OSError, AttributeError):  # without a C library to load, or without the call in it
        descriptor = _system_call(number, ATTRIBUTES, 0, -1, -1, CLOSE_ON_EXEC)
        return descriptor if descriptor >= 0 else None
    return None


def _system_call(number: int, attributes: bytes, *numbers: int) -> int:
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(number), attributes, *map(ctypes.c_long, numbers)))


def _counted(counter: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, int | None]:
    before = _read(counter)
    result = function(*args, **kwargs)
    after = _read(counter)
    return result, None if before is None or after is None else after - before


def _read(counter: int) -> int | None:
    """The count so far; None where other counters had the hardware for part of the time, or it can't be read."""
    with suppress(OSError, struct.error):
        count, enabled, running = COUNT.unpack(os.read(counter, COUNT.size))
        return int(count) if enabled == running else None
    return None


def _empty() -> None:
    pass
