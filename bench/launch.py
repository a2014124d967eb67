"""The cost of launching: does a function spend its time in its kernels or on their launch?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import torch

from prooflops import timing

# An operation whose launch takes more of its time is bound by the launch.
LARGEST_LAUNCH_SHARE = 0.5
# Well below the thousand launches that a CUDA stream queues before it makes the host wait.
MOST_ENQUEUED_CALLS = 50
MOST_ENQUEUED_S = 0.05


def figures(
    function: Callable[[], object], seconds: float, operators: int, device: torch.device
) -> dict[str, Any]:
    """The share of launches in the time of a function that takes `seconds`.

    `launch_share`, `bound` where that is a half, and on an accelerator `enqueue_s`.

    On a CPU it is the time of as many empty operators as the function dispatches, over its own
    time. On an accelerator it is the host's time to enqueue one call. If that dominates, the device
    waits for the host between kernels. The function must neither wait for the device nor leave it
    idle: otherwise the host's time means nothing.
    """
    if device.type == "cpu":
        launches_s = operators * empty_operator_s(device, torch.get_num_threads())
        return share_of_launches(launches_s, seconds) | {"operators": operators}
    calls = max(1, min(MOST_ENQUEUED_CALLS, int(MOST_ENQUEUED_S / seconds)))
    timing.synchronise(device)
    start = perf_counter()
    for _ in range(calls):
        function()
    enqueue = (perf_counter() - start) / calls
    timing.synchronise(device)
    return share_of_launches(enqueue, seconds) | {"operators": operators, "enqueue_s": enqueue}


def share_of_launches(launches_s: float, seconds: float) -> dict[str, Any]:
    """The share, and whether it is so large that the launch bounds the function.

    >>> share_of_launches(1.0, 2.5), share_of_launches(1.0, 2.0)
    ({'launch_share': 0.4}, {'launch_share': 0.5, 'bound': 'launch'})
    """
    share = min(launches_s / seconds, 1.0)
    bound = {"bound": "launch"} if share >= LARGEST_LAUNCH_SHARE else {}
    return {"launch_share": share, **bound}


@cache
def empty_operator_s(device: torch.device, threads: int) -> float:
    """Time of an operator that has nothing to do: the addition of one element to another.

    Nearly all of it is the dispatch.
    """
    x = torch.ones(1, device=device)
    out = torch.empty_like(x)

    def many() -> None:
        for _ in range(100):
            torch.add(x, x, out=out)

    return timing.time(many, device, warmup=2, rounds=9).median_s / 100
