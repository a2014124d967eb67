"""Two processes at the same time run their tests in turn: one of the first, two of the second, ...

Sides that measure the same benchmark within a second are disturbed alike by other guests
(results/gate-study.md). While one process has its turn, the other waits for a message.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prooflops_gate.machine import cpu
from prooflops_gate.unpatched import resource, time

# "my next test", "my end", and the answer.
NEXT, LAST, GO = b"n", b"l", b"g"
# So often a silent process is checked to be alive.
CHECK_S = 0.5
MAPPED = Path("/proc/self/maps")
# An accelerator's free memory sizes the benchmarks, and a waiting process uses some of it.
DRIVERS = ("libcuda.so", "libamdhip64.so", "libze_loader.so", "libhsa-runtime64.so")
LARGEST_SHARE_OF_FREE_MEMORY = 0.5


class Turn:
    """The turns of this process.

    `channel` is the descriptor of a socket; None, where the process runs alone.
    """

    def __init__(self, channel: int | None) -> None:
        self.waited_s = 0.0
        self._channel = None if channel is None else socket.socket(fileno=channel)
        if self._channel:
            # Processes that the tests start would keep it open.
            self._channel.set_inheritable(False)

    def wait(self, for_what: bytes) -> None:
        """Ends the previous turn, and waits for the next: `for_what` is NEXT, a test, or LAST."""
        if not self._channel:
            return
        began = time.monotonic()
        # The parent is gone: nobody else waits for a turn.
        with suppress(OSError):
            self._channel.sendall(for_what)
            self._channel.recv(1)
        self.waited_s += time.monotonic() - began


def alternate(channels: Sequence[socket.socket], runs: Callable[[int], bool], until: float) -> None:
    """Lets one of the processes behind these channels run at a time, each test in ABBA order.

    A process that has run all of its tests waits until the others have, too. `runs` says whether a
    process is alive. Returns at `until` on the clock of `time.monotonic`, whatever still runs.
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
        for channel in select.select([*busy], [], [], CHECK_S)[0]:
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
    # The process has ended: the next check notices.
    with suppress(OSError):
        channel.sendall(GO)


def mapped() -> list[str]:
    """The files in this process's memory; none where the system does not say."""
    lines = cpu.text(MAPPED).splitlines()
    words = (line.split(maxsplit=5) for line in lines)
    return sorted({each[5] for each in words if len(each) > 5})


def footprint() -> dict[str, Any]:
    """The needs of this process: `peak_bytes`, and an accelerator's `driver`.

    The driver is empty where none is loaded, and None where the system does not say.
    """
    files = " ".join(mapped())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "peak_bytes": peak * (1 if sys.platform == "darwin" else 1024),
        "driver": next((name for name in DRIVERS if name in files), "" if files else None),
    }


def why_not(footprints: Sequence[Mapping[str, Any]], free_bytes: int | None) -> str:
    """Why processes with these footprints cannot run at the same time; empty where they can.

    >>> why_not([{"peak_bytes": 2**30, "driver": ""}] * 2, 8 * 2**30)
    ''
    >>> why_not([{"peak_bytes": 3 * 2**30, "driver": ""}] * 2, 8 * 2**30)
    'two processes need 6.0 GiB, and 8.0 GiB are free'
    >>> why_not([{"peak_bytes": 2**30, "driver": "libcuda.so"}] * 2, 8 * 2**30)
    'they share the memory of an accelerator (libcuda.so)'
    """
    drivers = [each["driver"] for each in footprints]
    if None in drivers or free_bytes is None:
        return "this system does not say how much memory they use"
    if any(drivers):
        return f"they share the memory of an accelerator ({next(filter(None, drivers))})"
    taken = sum(each["peak_bytes"] for each in footprints)
    if taken > LARGEST_SHARE_OF_FREE_MEMORY * free_bytes:
        free = f"{free_bytes / 2**30:.1f} GiB are free"
        return f"two processes need {taken / 2**30:.1f} GiB, and {free}"
    return ""
