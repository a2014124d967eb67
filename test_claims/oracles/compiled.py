"""What torch.compile did: the graphs it compiled, and the operators that a compiled function runs.

Two traps. A compiled function called under torch's FlopCounterMode runs, from then on, as if it had not been compiled,
and `accounting.counted` counts it uncompiled: torch's profiler counts here instead. And it is compiled again where the
number of threads has changed: the suite runs a claim's test on one thread always.
"""

from __future__ import annotations

import secrets
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._triton import has_triton


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under a name that torch.compile has not seen: it remembers shapes by file, line and name."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{secrets.token_hex(4)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


class Graphs:
    """A backend of torch.compile that counts the graphs it is given and their runs, and runs them as they are.

    It generates no code, so that what torch.compile does before (tracing, guards, reuse) is seen without a compiler.
    """

    def __init__(self) -> None:
        self.compiled = 0
        self.runs = 0

    def __call__(self, module: torch.fx.GraphModule, _examples: list[torch.Tensor]) -> Callable[..., Any]:
        self.compiled += 1

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return module.forward(*arguments)

        return run


@dataclass(frozen=True)
class Compiled:
    """A function compiled for arguments like those it was first called with, and how long that call took."""

    function: Callable[..., Any]
    first_call_s: float

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> Compiled:
    """`function` compiled by torch.compile's own backend; AssertionError where nothing was compiled."""
    from torch._dynamo.utils import counters  # the import takes a second, and the other functions do not need it

    # Not each test has the need `c++`, which asks for a compiler too: a CPU needs none for products alone.
    if any(argument.is_cuda for argument in arguments if isinstance(argument, torch.Tensor)) and not has_triton():
        pytest.skip("torch.compile needs the package triton, for a GPU that it supports")
    before = counters["stats"]["unique_graphs"]
    result = torch.compile(function, **options)
    start = time.perf_counter()
    result(*arguments)
    took = time.perf_counter() - start
    graphs = counters["stats"]["unique_graphs"] - before
    name = getattr(function, "__name__", function)
    assert graphs == 1, f"torch.compile compiled {graphs} graphs of {name}, but should compile 1"
    return Compiled(result, took)


def operators(function: Callable[..., Any], *arguments: Any) -> dict[str, int]:
    """The operators of torch that a call runs, and the FLOPs that the profiler computes of each kind."""
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, record_shapes=True, with_flops=True, acc_events=True) as profiler:
        function(*arguments)
    flops: dict[str, int] = {}
    for event in profiler.events():
        if event.name.startswith("aten::"):
            flops[event.name] = flops.get(event.name, 0) + int(event.flops or 0)
    return flops


def product_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """FLOPs of the matrix products that a call runs, compiled or not, computed by torch's profiler."""
    products = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
    return sum(flops for name, flops in operators(function, *arguments).items() if name in products)
