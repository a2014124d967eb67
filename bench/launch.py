"""The cost of launching: whether a function's time is that of its kernels or of their launch."""

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
REPLAYED = 20


def figures(
    function: Callable[[], object], seconds: float, operators: int | None, device: torch.device
) -> dict[str, Any]:
    """The launch cost of a function that takes `seconds`: `launch_share`, `bound` where that is a
    half, and on CUDA `enqueue_s` and `graph_s`.

    On a CPU it is the time of as many empty operators as the function dispatches, over its own
    time. Without their number there is no figure. On CUDA it is the host's time to enqueue one
    call. If that dominates, the device waits for the host between kernels, and a replayed graph
    gives the time of the kernels alone. The function must neither wait for the device nor leave it
    idle: otherwise the host's time means nothing.
    """
    if device.type == "cpu":
        if not operators:
            return {}
        share = min(operators * empty_operator_s(device, torch.get_num_threads()) / seconds, 1.0)
        return {
            "operators": operators,
            "launch_share": share,
            **({"bound": "launch"} if share >= LARGEST_LAUNCH_SHARE else {}),
        }
    calls = max(1, min(MOST_ENQUEUED_CALLS, int(MOST_ENQUEUED_S / seconds)))
    timing.synchronise(device)
    start = perf_counter()
    for _ in range(calls):
        function()
    enqueue = (perf_counter() - start) / calls
    timing.synchronise(device)
    share = min(enqueue / seconds, 1.0)
    found: dict[str, Any] = {"operators": operators, "enqueue_s": enqueue, "launch_share": share}
    if share >= LARGEST_LAUNCH_SHARE:
        found |= {"bound": "launch", **(replay(function, device) if device.type == "cuda" else {})}
    return found


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


@cache
def stream_of_captures(device: torch.device) -> torch.cuda.Stream:
    """One stream for all graphs.

    cuBLAS keeps a workspace for each stream that calls it, 32 MiB on a Hopper.
    """
    return torch.cuda.Stream(device)


def replay(function: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """`graph_s`: time of one call in a replayed CUDA graph of 20; where that fails, the reason.

    Unrun.
    """
    current, aside = torch.cuda.current_stream(device), stream_of_captures(device)
    try:
        aside.wait_stream(current)
        # Lazy initialisation must precede the capture, in another stream.
        with torch.cuda.stream(aside):
            for _ in range(3):
                function()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins a loader's batches, may go on as they like.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            for _ in range(REPLAYED):
                function()
    except RuntimeError as error:
        # A capture that fails leaves its own stream the current one.
        torch.cuda.set_stream(current)
        return {"graph_s": None, "graph_failed": str(error).splitlines()[0]}
    return {"graph_s": timing.time(graph.replay, device, warmup=3, rounds=21).median_s / REPLAYED}
