"""The dispatch mode that enters the storages of each operation into a ledger."""

from __future__ import annotations

import sys
from functools import cache
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from prooflops.memory.boxed_numbers import BoxedNumbers
from prooflops.memory.copies import Copies
from prooflops.memory.cuda.fake import DEVICE_OF, can_fake_cuda, reported_device
from prooflops.memory.cuda.scratch import PRODUCTS, scratch_sizes
from prooflops.memory.cuda.workspaces import Workspaces
from prooflops.memory.fake_outputs import with_outputs_of_kernel
from prooflops.memory.known_outputs import KnownOutputs
from prooflops.memory.known_values import KnownValues
from prooflops.memory.ledger import Ledger
from prooflops.memory.plain_tensors import PlainTensors
from prooflops.trace import FORWARD, RECOMPUTED, Operation, Trace, phase, tensors_in

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
        if not any(each.device.type == "cuda" for each in chain(operation.made, operation.given)):
            return
        if self._workspaces is not None and func._opname in PRODUCTS:
            self._workspaces.enter(self._ledger, operation)
        sizes = scratch_sizes(func, operation.args, operation.kwargs, operation.out)
        if sizes is None:
            self._ledger.unknown[str(func)] = None
        else:
            self._ledger.borrow([size for size in sizes if size])

    def end_operation(self) -> None:
        pass


class Tracker(Trace):  # type: ignore[no-untyped-call]
    """Enters the storages that each operation allocates into the ledger.

    It then passes the operation to the `view`, if there is one.
    """

    def __init__(
        self,
        ledger: Ledger,
        kernels: Kernels,
        plain_tensors: PlainTensors,
        known_outputs: KnownOutputs,
        known_values: KnownValues,
        copies: Copies | None = None,
    ) -> None:
        super().__init__(lambda _: None)
        self.ledger = ledger
        self.kernels = kernels
        self._copies = copies
        self._plain_tensors = plain_tensors
        self._known_outputs = known_outputs
        self._known_values = known_values
        self._reports_meta = ledger.device == "cuda" and not can_fake_cuda()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE_OF and isinstance(args[0], FakeTensor):
            # Torch's mode answers the same, slower; C++ asks more often than it runs anything.
            return reported_device(args[0]) if self._reports_meta else args[0].fake_device
        if func.namespace in QUERIES:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.kernels.end_operation()
        self.ledger.begin(func)
        when = phase()
        in_backward = when != FORWARD
        if in_backward and self._copies and self._copies.has(tensors_in((args, kwargs))):
            # Torch has no function modes on in a backward pass, which may run layers again.
            args, kwargs = tree_map_only(Tensor, self._copies.known, (args, kwargs))
        operand = self._plain_tensors.operand_written(func, args, in_backward)
        out, alike = self._output(func, args, kwargs, in_backward)
        operation = Operation(func, args, kwargs, out, when, alike=alike)
        for tensor in operation.made:
            self._refuse_unpredictable(func, tensor)
            self.ledger.see(tensor, recomputed=when == RECOMPUTED, operand=operand)
        self.kernels.enter(operation)
        self.view(operation)
        return out

    def _output(self, func: Any, args: Any, kwargs: Any, in_backward: bool) -> Any:
        """Runs an operation on fake tensors; returns its outputs, and those alike."""
        if in_backward and self._plain_tensors.writes_its_operand(func, args):
            func = getattr(torch.ops.aten, f"{func._opname}_").Tensor
        if func is torch.ops.aten._local_scalar_dense.default:
            constant = args[0].constant
            if constant is None:
                constant = self._known_values.of(args[0])
            if constant is not None:
                with torch._C._DisableTorchDispatch():
                    return constant.item(), None
            if _called_by_adafactor():
                return 1.0, None
        if _only_writes(func, args):
            return args[0], None
        out, alike = self._known_outputs.run(func, args, kwargs)
        self._known_values.follow(func, args, kwargs, out)
        return with_outputs_of_kernel(func, args, out, self.ledger.device), alike

    def _refuse_unpredictable(self, func: Any, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise RuntimeError(
                f"{func} makes a sparse tensor ({tensor.layout}), whose bytes follow from its "
                "values: predict the step with dense ones (Embedding and EmbeddingBag with "
                "sparse=False), or measure it"
            )
        if self.ledger.device == "cpu" and tensor.device.type == "cuda" and not can_fake_cuda():
            raise RuntimeError(
                f"the block makes a tensor on {str(tensor.device)!r}, which is not here, "
                'and torch would abort: predict the block for device="cuda"'
            )


def _only_writes(func: Any, args: Any) -> bool:
    """True if an operation does nothing but change the values of its first operand, as an
    optimizer's do: tensors of one shape make no other tensor.
    """
    if not _is_pointwise_in_place(func):
        return False
    written, *others = (each for each in args if isinstance(each, Tensor))
    # A number that the code may read has a value.
    return getattr(written, "constant", None) is None and all(
        each.shape == written.shape for each in others
    )


@cache
def _is_pointwise_in_place(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags and func._opname.endswith("_")


def _called_by_adafactor() -> bool:
    """True if Adafactor reads a norm, which only scales its update."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("torch/optim/_adafactor.py"):
        frame = frame.f_back
    return frame is not None
