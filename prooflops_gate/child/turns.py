"""Two processes that live at the same time and run their tests in turn.

One of the first, two of the second, and so on.

Sides that measure the same benchmark within a second are disturbed alike by other guests
(docs/gate-study.md). While one process has its turn, the other waits for a message.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:
    # Windows.
    resource = None  # type: ignore[assignment]

# "my next test", "my end", and the answer.
NEXT, LAST, GO = b"n", b"l", b"g"
# Between two looks whether a silent process still runs.
LOOK_S = 0.5
MAPPED = Path("/proc/self/maps")
# An accelerator's free memory sizes the benchmarks, and a waiting process holds some of it.
DRIVERS = ("libcuda.so", "libamdhip64.so", "libze_loader.so", "libhsa-runtime64.so")
# Loaded: they choose kernels by the features of the processor.
BY_FEATURES = ("numpy", "numba", "torch", "jax")
# Of the free memory, for both processes.
MOST_MEMORY = 0.5


class Turn:
    """In a process: waits until it is its turn.

    `channel`: the descriptor of a socket; None, where it runs alone.
    """

    def __init__(self, channel: int | None) -> None:
        self.waited_s = 0.0
        self._channel = None if channel is None else socket.socket(fileno=channel)
        if self._channel:
            # Processes that the tests start would keep it open.
            self._channel.set_inheritable(False)

    def wait(self, for_what: bytes) -> None:
        """Ends the turn before, and waits for one for the next test, or for the end."""
        if not self._channel:
            return
        began = time.monotonic()
        # The parent is gone: nobody else waits for a turn.
        with suppress(OSError):
            self._channel.sendall(for_what)
            self._channel.recv(1)
        self.waited_s += time.monotonic() - began


def alternate(channels: Sequence[socket.socket], runs: Callable[[int], bool], until: float) -> None:
    """Gives the processes behind these channels a turn each until all are at their end, then lets
    all end.

    The first begins with its first test, the next with its second, and so on: ABBA. `runs`: whether
    a process still runs. `until`: when to stop, on the clock of `time.monotonic`.
    """
    turns_of = dict.fromkeys(range(len(channels)), 0)
    waiting, ending = set[int](), list[int]()
    while turns_of and time.monotonic() < until:
        if waiting == turns_of.keys():
            least = min(turns_of.values())
            behind = [each for each in turns_of if turns_of[each] == least]
            begins = least % len(channels)
            turn = begins if begins in behind else behind[0]
            turns_of[turn] += 1
            waiting.discard(turn)
            _let_go(channels[turn])
        busy = {channels[each]: each for each in turns_of.keys() - waiting}
        for channel in select.select([*busy], [], [], LOOK_S)[0]:
            # Empty where the process has ended.
            each, message = busy[channel], b""
            with suppress(OSError):
                message = channel.recv(1)
            if message == NEXT:
                waiting.add(each)
            else:
                del turns_of[each]
                ending += [each] if message == LAST else []
        for each in [each for each in turns_of.keys() - waiting if not runs(each)]:
            del turns_of[each]
    for each in ending:
        _let_go(channels[each])


def _let_go(channel: socket.socket) -> None:
    # The process has ended: the next look says so.
    with suppress(OSError):
        channel.sendall(GO)


def footprint() -> dict[str, Any]:
    """This process's peak memory, the accelerator's driver that it has loaded (None.

    Unknown), and BY_FEATURES.
    """
    try:
        mapped = MAPPED.read_text(encoding="utf-8", errors="replace")
    except OSError:
        mapped = ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource else 0
    return {
        "peak_bytes": peak * (1 if sys.platform == "darwin" else 1024),
        "driver": next((name for name in DRIVERS if name in mapped), "" if mapped else None),
        "by_features": [name for name in BY_FEATURES if name in sys.modules],
    }


def why_not(footprints: Sequence[Mapping[str, Any]], free_bytes: int | None) -> str:
    """Why processes with these footprints should not live at the same time; empty where they may.

    >>> why_not([{"peak_bytes": 2**30, "driver": ""}] * 2, 8 * 2**30)
    ''
    >>> why_not([{"peak_bytes": 3 * 2**30, "driver": ""}] * 2, 8 * 2**30)
    'two take 6.0 GiB, of 8.0 GiB that are free'
    >>> why_not([{"peak_bytes": 2**30, "driver": "libcuda.so"}] * 2, 8 * 2**30)
    'they share the memory of an accelerator (libcuda.so)'
    """
    drivers = [each["driver"] for each in footprints]
    if None in drivers or free_bytes is None:
        return "this system does not tell what they hold"
    if any(drivers):
        return f"they share the memory of an accelerator ({next(filter(None, drivers))})"
    taken = sum(each["peak_bytes"] for each in footprints)
    if taken > MOST_MEMORY * free_bytes:
        return f"two take {taken / 2**30:.1f} GiB, of {free_bytes / 2**30:.1f} GiB that are free"
    return ""
