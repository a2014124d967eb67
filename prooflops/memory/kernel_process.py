"""The process that calls kernels with made-up values: `python -m prooflops.memory.kernel_process
CONNECTION`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from prooflops.memory.allocations import MeasuredMemory, measured_memory
from prooflops.memory.calls import filled
from prooflops.memory.kernels import Kernel, Output, Refusal, Request

# Masks are made up of zeros, with which these need less than with others.
VALUES_DECIDE = frozenset({"aten.masked_scatter_backward.default"})


def serve(connection: Connection) -> None:
    """Answers until the other side is gone."""
    while True:
        try:
            device, threads, requests = connection.recv()
        except EOFError:
            return
        torch.set_num_threads(threads)
        connection.send(measured_kernels(requests, device))


def measured_kernels(requests: Sequence[Request], device: str) -> list[Kernel | Refusal]:
    found: list[Kernel | Refusal] = []
    with measured_memory(device) as held:
        for number, request in enumerate(requests):
            found.append(_called(request, number, held))
    return [
        _with_scratch(kernel, number, held) if isinstance(kernel, Kernel) else kernel
        for number, kernel in enumerate(found)
    ]


def _called(request: Request, number: int, held: MeasuredMemory) -> Kernel | Refusal:
    """The outputs of one call, marked as the phase `call N` of the measurement."""
    if request.operator in VALUES_DECIDE:
        return Refusal("how much its kernel holds depends on the values")
    try:
        operator: Any = reduce(getattr, request.operator.split("."), torch.ops)
        args, kwargs = filled(request.shapes)
        with torch.set_grad_enabled(request.grad_mode):
            # The first call may allocate what later ones use again.
            operator(*args, **kwargs)
            held.mark(f"inputs {number}")
            out = operator(*args, **kwargs)
        kernel = Kernel(
            0, _new_storages(out, (args, kwargs)), tuple(map(_output, tree_leaves(out)))
        )
        held.mark(f"call {number}")
    except Exception as error:
        return Refusal(f"{type(error).__name__}: {error}")
    return kernel


def _new_storages(out: Any, given: Any) -> tuple[int, ...]:
    """Bytes of the storages among the outputs that are none of the arguments'."""
    own = {_storage(leaf)._cdata for leaf in tree_leaves(given) if isinstance(leaf, Tensor)}
    storages = [_storage(leaf) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    sizes = {each._cdata: each.nbytes() for each in storages if each._cdata not in own}
    return tuple(sizes.values())


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _output(leaf: Any) -> Output | None:
    if not isinstance(leaf, Tensor):
        return None
    return Output(_storage(leaf).nbytes(), tuple(leaf.shape), leaf.stride())


def _with_scratch(kernel: Kernel, number: int, held: MeasuredMemory) -> Kernel:
    before = held.phases[f"inputs {number}"].live_bytes
    peak = held.phases[f"call {number}"].peak_bytes
    return kernel._replace(scratch_bytes=peak - before - sum(kernel.output_bytes))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
