"""What really crosses from one device to another: counted in the dispatched operations, and in the profiler's trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Crossing:
    """One dispatched copy of a tensor from a device to another."""

    operation: str
    source: torch.device
    target: torch.device
    nbytes: int


# What reads values on one device and writes them on another; `empty_like(x, device=...)` only looks at the shape.
COPYING = {torch.ops.aten._to_copy, torch.ops.aten.copy, torch.ops.aten.copy_}


class Crossings(TorchDispatchMode):
    """Records each copy whose result lies on another device than its operand."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Crossing] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if operation.overloadpacket in COPYING:
            for made in _tensors(result):
                for read in _tensors((args, kwargs)):
                    if read.device != made.device:
                        self.found.append(Crossing(str(operation), read.device, made.device, read.nbytes))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def crossings(function: Callable[[], Any]) -> list[Crossing]:
    """The copies between devices that a call dispatches."""
    with Crossings() as recorded:
        function()
    return recorded.found


def host_to_device_copies(function: Callable[[], Any]) -> int:
    """The copies from host to device in the CUDA trace of a call. Skips where the trace lacks even a kernel."""
    cuda = torch.profiler.ProfilerActivity.CUDA
    untraced = "torch's profiler traces no kernel here: CUPTI is absent, or another profiler has it"
    if cuda not in torch.profiler.supported_activities():
        pytest.skip(untraced)
    function()  # the first use of an operation may load constants onto the device
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[cuda], acc_events=True) as profile:
        function()
        torch.cuda._sleep(1000)  # a kernel
        torch.cuda.synchronize()
    events = profile.events()
    if not any(event.device_type == torch.autograd.DeviceType.CUDA for event in events):
        pytest.skip(untraced)
    return sum("HtoD" in event.name or "HostToDevice" in event.name for event in events)


def empty_host_cache() -> None:
    """Gives back the pinned blocks that torch keeps for later tensors and that no copy is using any more."""
    public = getattr(torch.accelerator, "empty_host_cache", None)  # newer than the oldest torch here
    (public or torch._C._host_emptyCache)()


def timed_copy(target: torch.Tensor, source: torch.Tensor) -> tuple[float, float, bool]:
    """Seconds until a non_blocking copy returned, seconds it took on the device, and whether it then still ran."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start = time.perf_counter()
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    returned_s = time.perf_counter() - start
    still_running = not end.query()
    end.synchronize()
    return returned_s, begin.elapsed_time(end) / 1e3, still_running


def has_bf16_unit(device: torch.device, isa: list[str]) -> bool:
    if device.type == "cuda":
        return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(isa))
