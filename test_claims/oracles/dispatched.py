"""Operators that torch really dispatched: their FLOPs, dtypes and copies; and compiled graphs."""

from __future__ import annotations

import secrets
import time
import types
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._triton import has_triton
from torch.utils.flop_counter import FlopCounterMode

from prooflops.trace import tensors_in


@contextmanager
def counting():
    """Counts with `get_total_flops()`.

    Attention runs as two products: fused CPU kernels are not counted.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def product_flops(function, *arguments):
    """FLOPs of the matrix products and convolutions in `function(*arguments)`."""
    with counting() as counter:
        function(*arguments)
    return int(counter.get_total_flops())


@contextmanager
def opt_einsum(*, enabled=True):
    """Lets numpy's search of all orders stand in for opt_einsum, which need not be installed."""

    def contract_path(equation, *operands, optimize):
        return np.einsum_path(
            equation, *(np.empty(tuple(of.shape)) for of in operands), optimize=optimize
        )[0][1:], ""

    path = types.SimpleNamespace(contract_path=contract_path)
    options = {
        "enabled": enabled,
        "strategy": "optimal",
        "is_available": lambda: True,
        "get_opt_einsum": lambda: path,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends, "opt_einsum", types.SimpleNamespace(**options))
        yield


def linear_net(widths, device="cpu"):
    """Linear layers without biases between these widths."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(m, n, bias=False, device=device) for m, n in pairwise(widths))
    )


def forward_and_backward(net, x):
    """Product FLOPs of net(x), and of its backward pass.

    That starts from a gradient of ones, so that no loss is counted.
    """
    with counting() as forward:
        y = net(x)
    with counting() as backward:
        y.backward(torch.ones_like(y))
    return int(forward.get_total_flops()), int(backward.get_total_flops())


PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
# These read values and write them elsewhere, all but the last on another device if asked to;
# `empty_like(x, device=...)` only looks at the shape.
COPIES = {
    torch.ops.aten._to_copy,
    torch.ops.aten.copy,
    torch.ops.aten.copy_,
    torch.ops.aten.clone,
}


class Recorded(TorchDispatchMode):
    """Records each dispatched operation, with the tensors that it reads and makes."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        read = tensors_in((args, kwargs))
        self.calls.append((operation.overloadpacket, read, tensors_in(result)))
        return result

    @property
    def product_dtypes(self):
        """The dtypes of both operands of each matrix product."""
        return [
            x.dtype for operation, read, _ in self.calls if operation in PRODUCTS for x in read[-2:]
        ]

    @property
    def copies(self):
        """What each copy reads and makes."""
        return [(read, made) for operation, read, made in self.calls if operation in COPIES]

    @property
    def casts(self):
        return sum(operation == torch.ops.aten._to_copy for operation, _, _ in self.calls)


def crossings(function):
    """The operands that a call copies to another device."""
    with Recorded() as recorded:
        function()
    return [x for read, made in recorded.copies for y in made for x in read if x.device != y.device]


def host_to_device_copies(function):
    """The copies from host to device in the CUDA trace of a call.

    Skips where the trace lacks even a kernel.
    """
    cuda = torch.profiler.ProfilerActivity.CUDA
    untraced = "torch's profiler traces no kernel here: CUPTI is absent, or another profiler has it"
    if cuda not in torch.profiler.supported_activities():
        pytest.skip(untraced)
    # The first use of an operation may load constants onto the device.
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[cuda], acc_events=True) as profile:
        function()
        # One kernel that the trace must have.
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
    events = profile.events()
    if not any(event.device_type == torch.autograd.DeviceType.CUDA for event in events):
        pytest.skip(untraced)
    return sum("HtoD" in event.name or "HostToDevice" in event.name for event in events)


def fresh(function):
    """The same function under a name that is new to torch.compile.

    It remembers shapes by file, line and name.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{secrets.token_hex(4)}")
    return types.FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )


class Graphs:
    """A backend of torch.compile that counts graphs and their runs.

    It generates no code: tracing, guards and reuse can be tested without a compiler.
    """

    def __init__(self):
        self.compiled = 0
        self.runs = 0

    def __call__(self, module, _examples):
        self.compiled += 1

        def run(*arguments):
            self.runs += 1
            return module.forward(*arguments)

        return run


@dataclass(frozen=True)
class Compiled:
    """A compiled function, and the seconds that its first call took."""

    function: Callable[..., Any]
    first_call_s: float

    def __call__(self, *arguments):
        return self.function(*arguments)


def compiled(function, *arguments, **options):
    """`function` compiled by torch.compile's own backend.

    Raises AssertionError where nothing was compiled.
    """
    # The import takes a second, and the other functions do not need it.
    from torch._dynamo.utils import counters

    # Not each test has the need `c++`, which asks for a compiler too: a CPU needs none for products
    # alone.
    if (
        any(argument.is_cuda for argument in arguments if isinstance(argument, torch.Tensor))
        and not has_triton()
    ):
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


def profiled_operators(function, *arguments):
    """The FLOPs that the profiler computes, by the operators that a call runs."""
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, record_shapes=True, with_flops=True, acc_events=True) as profiler:
        function(*arguments)
    flops = {}
    for event in profiler.events():
        if event.name.startswith("aten::"):
            flops[event.name] = flops.get(event.name, 0) + int(event.flops or 0)
    return flops


def profiled_product_flops(function, *arguments):
    """FLOPs of the matrix products that a call runs, compiled or not, by torch's profiler."""
    products = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
    return sum(
        flops
        for name, flops in profiled_operators(function, *arguments).items()
        if name in products
    )
