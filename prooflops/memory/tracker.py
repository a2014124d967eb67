"""The dispatch mode that enters the storages of each operation into a ledger."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from prooflops.memory.boxed_numbers import BoxedNumbers
from prooflops.memory.copies import Copies
from prooflops.memory.cuda.fake import DEVICE_OF, can_fake_cuda, reported_device
from prooflops.memory.cuda.scratch import PRODUCTS, scratch_sizes
from prooflops.memory.cuda.workspaces import Workspaces
from prooflops.memory.fake_outputs import with_outputs_of_kernel
from prooflops.memory.ledger import Ledger
from prooflops.memory.plain_tensors import PlainTensors
from prooflops.trace import FORWARD, RECOMPUTED, Operation, phase, tensors_in

# These only query a tensor, perhaps within an operation.
QUERIES = ("prim", "profiler")


class Kernels(Protocol):
    """The memory that a device's kernels allocate beyond their outputs."""

    def enter(self, operation: Operation) -> None:
        """Enters what an operation that has run allocated or keeps."""

    def end_operation(self) -> None:
        """Enters what is known only when the next operation begins, or the phase ends."""


class CpuKernels:
    """Autograd's boxed numbers; scratch is not predicted on the CPU."""

    def __init__(self, ledger: Ledger) -> None:
        self._numbers = BoxedNumbers(ledger)

    def enter(self, operation: Operation) -> None:
        self._numbers.note(operation)

    def end_operation(self) -> None:
        self._numbers.enter()


class CudaKernels:
    """The scratch of each kernel, and the workspaces of cuBLAS unless they are there already."""

    def __init__(self, ledger: Ledger, workspaces: Workspaces | None) -> None:
        self._ledger = ledger
        self._workspaces = workspaces

    def enter(self, operation: Operation) -> None:
        func = operation.operator
        # An optimizer's step counts are on the CPU.
        if all(each.device.type != "cuda" for each in (*operation.made, *operation.given)):
            return
        if self._workspaces is not None and func._opname in PRODUCTS:
            self._workspaces.enter(self._ledger, operation)
        sizes = scratch_sizes(func, operation.args, operation.kwargs, operation.out)
        if sizes is None:
            self._ledger.unknown_calls[str(func)] += 1
        else:
            self._ledger.borrow([size for size in sizes if size])

    def end_operation(self) -> None:
        pass


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Enters the storages that each operation allocates into the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        kernels: Kernels,
        plain_tensors: PlainTensors,
        copies: Copies | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies = copies
        self._ledger = ledger
        self._kernels = kernels
        self._plain_tensors = plain_tensors
        self._reports_meta = ledger.device == "cuda" and not can_fake_cuda()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in a block, so no wrapper is needed that keeps the compiler out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is DEVICE_OF and isinstance(args[0], FakeTensor):
            # Torch's mode answers the same, slower; C++ asks more often than it runs anything.
            return reported_device(args[0]) if self._reports_meta else args[0].fake_device
        if func.namespace in QUERIES:
            return func(*args, **kwargs)
        self._kernels.end_operation()
        self._ledger.begin(func)
        when = phase()
        if when != FORWARD and self._copies is not None:
            # Torch has no function modes on in a backward pass, which may run layers again.
            args, kwargs = self._copies.known_in((args, kwargs))
        out = self._run(func, args, kwargs, when)
        self._kernels.enter(Operation(func, args, kwargs, out, when, seconds=0.0))
        return out

    def _run(self, func: Any, args: Any, kwargs: Any, when: int) -> Any:
        """Runs an operation on fake tensors and enters the storages of its outputs."""
        in_backward = when != FORWARD
        operand = self._plain_tensors.operand_written(func, args, in_backward)
        if in_backward and self._plain_tensors.writes_its_operand(func, args):
            func = getattr(torch.ops.aten, f"{func._opname}_").Tensor
        if func is torch.ops.aten._local_scalar_dense.default and _called_by_adafactor():
            return 1.0
        out = args[0] if _only_writes(func, args) else func(*args, **kwargs)
        out = with_outputs_of_kernel(func, args, out, self._ledger.device)
        for tensor in tensors_in(out):
            self._refuse_unpredictable(func, tensor)
            self._ledger.see(tensor, recomputed=when == RECOMPUTED, operand=operand)
        return out

    def _refuse_unpredictable(self, func: Any, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise RuntimeError(
                f"{func} makes a sparse tensor ({tensor.layout}), whose bytes follow from its "
                "values: predict the step with dense ones (Embedding and EmbeddingBag with "
                "sparse=False), or measure it"
            )
        if self._ledger.device == "cpu" and tensor.device.type == "cuda" and not can_fake_cuda():
            raise RuntimeError(
                f"the block makes a tensor on {str(tensor.device)!r}, which is not here, "
                'and torch would abort: predict the block for device="cuda"'
            )


def _only_writes(func: Any, args: Any) -> bool:
    """True if an operation does nothing but change the values of its first operand, as an
    optimizer's do: tensors of one shape and dtype make no other tensor and no error.
    """
    if not _is_pointwise_in_place(func):
        return False
    written, *others = (each for each in args if isinstance(each, Tensor))
    # A number that the code may read has a value.
    return getattr(written, "constant", None) is None and all(
        each.shape == written.shape and each.dtype == written.dtype for each in others
    )


@cache
def _is_pointwise_in_place(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags and func._opname.endswith("_")


def _called_by_adafactor() -> bool:
    """True if Adafactor reads a norm or a step count, which only scale its update."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("torch/optim/_adafactor.py"):
        frame = frame.f_back
    return frame is not None
