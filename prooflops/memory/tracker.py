"""Enters the storages that each dispatched operation allocates into a ledger."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prooflops.memory.allocator import CUBLASLT_WORKSPACE_BYTES
from prooflops.memory.calls import call_of
from prooflops.memory.cuda.fake import DEVICE_OF, can_fake_cuda, reported_device
from prooflops.memory.cuda.scratch import PRODUCTS, scratch_sizes
from prooflops.memory.fake_outputs import with_outputs_of_kernel
from prooflops.memory.ledger import WORKSPACES, CallMade, Ledger
from prooflops.memory.places import Places
from prooflops.memory.scratch import known_scratch

# Autograd adds and scatters in place to a plain tensor that nothing else refers to; not to a fake
# one, which is a subclass. If the first argument is freed at once, the two are the same storage in
# a real run.
IN_PLACE_ON_PLAIN_TENSORS = frozenset(
    {"add", "index_add", "index_put", "put", "scatter", "scatter_add"}
)

# The backward formula of this loss writes in place for plain tensors, throughout its own storages.
IN_PLACE_IN_NODE = {"BinaryCrossEntropyWithLogitsBackward0": frozenset({"sub", "mul"})}

# The gradients of a whole tensor's maximum, minimum and median go to all elements that equal it.
# The formula on the CPU fills zeros by one mask; that for fake tensors multiplies by one of three.
SPREADS_EVENLY = frozenset(
    {"MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"}
)
MASKS_OF_FAKE_TENSORS = frozenset({"isnan", "logical_and"})

# These save their second factor for the gradient of the first; a Python number becomes a tensor of
# its own, a boxed number, which no dispatch mode sees.
_aten = torch.ops.aten
SAVES_ITS_NUMBER = frozenset(
    {
        _aten.mul.Tensor,
        _aten.mul_.Tensor,
        _aten.div.Tensor,
        _aten.div_.Tensor,
        _aten.div.Tensor_mode,
    }
)
BOXED_BYTES = {bool: 1, int: 8, float: 8, complex: 16}


@dataclass
class Workspaces:
    """What cuBLAS and cuBLASLt keep on a card from the first product of a thread's handle on."""

    # None where the card is not known.
    cublas_bytes: int | None
    entered: set[tuple[str, bool]] = field(default_factory=set)
    unknown_calls: int = 0

    def enter(self, ledger: Ledger, func: Any, args: Any, in_backward: bool) -> None:
        """Enters what this product is the first to need: autograd's thread has a handle of its own.

        Source: CublasHandlePool.cpp and addmm_out_cuda_impl in Blas.cpp (torch 2.11); on one H200
        33,554,432 bytes for each of two handles, and 1,048,576 at the first biased linear layer.
        """
        if self.cublas_bytes is None:
            self.unknown_calls += 1
            return
        needed = {"cublas": self.cublas_bytes}
        if func._opname == "addmm" and args[0].dim() == 1:
            needed["cublaslt"] = CUBLASLT_WORKSPACE_BYTES
        for name, size in needed.items():
            if (name, in_backward) not in self.entered:
                self.entered.add((name, in_backward))
                ledger.lend(size, WORKSPACES)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Enters the storages that each operation allocates into the ledger."""

    def __init__(self, ledger: Ledger, measures: bool, workspaces: Workspaces | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self._measures = measures
        self.workspaces = workspaces
        self._places = Places()
        self._fakes_cuda = ledger.device == "cuda" and not can_fake_cuda()
        self._multiplied: tuple[weakref.ref[Tensor], int] | None = None
        # Autograd's node that runs: its number, and the number of storages before it.
        self._node = (-1, 0)
        self._in_linear = False

    @contextmanager
    def biases_in_place(self) -> Iterator[None]:
        """Notes when a linear layer runs, which adds its bias in place to a plain product, but not
        to a fake one.
        """
        linear = _aten.linear.default

        def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
            self._in_linear = True
            try:
                return linear.decompose(x, weight, bias)
            finally:
                self._in_linear = False

        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("linear", noted, f"Autograd{self.ledger.device.upper()}")
            yield

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in a block, so no wrapper is needed that keeps the compiler out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE_OF and self._fakes_cuda:
            return reported_device(args[0])
        kwargs = kwargs or {}
        if func.namespace in (
            "prim",
            "profiler",
        ):  # only asks for a device, perhaps within an operation
            return func(*args, **kwargs)
        self.enter_boxed_number()
        ledger, on_cpu = self.ledger, self.ledger.device == "cpu"
        ledger.moment += 1
        ledger.operator = func
        ledger.place = self._places.current()
        in_backward = torch._C._current_graph_task_id() != -1
        spreads = on_cpu and in_backward and _spreads_evenly()
        if spreads and func._opname in MASKS_OF_FAKE_TENSORS:
            return func(*args, **kwargs)
        end_of_zeros = self._lend_zeros(args[0]) if spreads and func is _aten.sum.default else None
        successor_of = self._successor(func, args, in_backward)
        before = len(ledger.storages)
        if in_backward and self._writes_in_place(func, args):
            func = getattr(_aten, f"{func._opname}_").Tensor
        is_scale = func is _aten._local_scalar_dense.default and _called_by_adafactor()
        out: Any = 1.0 if is_scale else func(*args, **kwargs)
        out = with_outputs_of_kernel(func, args, kwargs, out, self._measures, ledger.device)
        for tensor in _tensors_in(out):
            _refuse_sparse(func, tensor)
            if on_cpu:
                _refuse_unfakeable(tensor)
            ledger.see(tensor, in_backward and torch.is_grad_enabled(), successor_of)
        if self.workspaces is not None and func._opname in PRODUCTS:
            self.workspaces.enter(ledger, func, args, in_backward)
        self._enter_scratch(func, args, kwargs, out, before)
        if end_of_zeros is not None:
            end_of_zeros()
        saves = func in SAVES_ITS_NUMBER and torch.is_grad_enabled()
        if on_cpu and saves and type(args[1]) in BOXED_BYTES:
            self._multiplied = weakref.ref(out), BOXED_BYTES[type(args[1])]
        return out

    def _successor(self, func: Any, args: Any, in_backward: bool) -> int | None:
        """The storage that this operation would write to if its tensors were plain."""
        # A view keeps its base, so its storage has another reference.
        if func._opname not in IN_PLACE_ON_PLAIN_TENSORS or args[0]._is_view():
            return None
        if self._in_linear or (in_backward and _called_by_autograd()):
            return self.ledger.number_of(args[0])
        return None

    def _lend_zeros(self, mask: Tensor) -> Callable[[], None]:
        """Enters the gradient that the mask will be filled into; the formula for fake tensors makes
        it later.
        """
        (of_result,) = torch._C._current_autograd_node()._input_metadata
        return self.ledger.lend(mask.numel() * of_result.dtype.itemsize)

    def _enter_scratch(self, func: Any, args: Any, kwargs: Any, out: Any, before: int) -> None:
        """Enters the scratch of the kernel where it is known, else the call, to be measured."""
        ledger = self.ledger
        sizes: Sequence[int] | None
        if ledger.device == "cuda":
            sizes = scratch_sizes(func, args, kwargs, out) if _is_on("cuda", out, args) else ()
        else:
            held = known_scratch(func, args, ledger.device, out)
            sizes = None if held is None else (held,)
        if sizes is not None:
            ledger.lend_together([size for size in sizes if size])
            return
        outputs = tuple(range(before, len(ledger.storages)))
        call = call_of(func, args, kwargs)
        ledger.calls.append(CallMade(call, len(ledger.ends), len(ledger.events), outputs))

    def _writes_in_place(self, func: Any, args: Any) -> bool:
        """Whether a plain tensor's backward formula writes this result to its first operand, which
        it allocated.
        """
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() != self._node[0]:
            self._node = node._sequence_nr(), len(self.ledger.storages)
        if node is None or func._opname not in IN_PLACE_IN_NODE.get(node.name(), ()):
            return False
        return (self.ledger.number_of(args[0]) or 0) >= self._node[1]

    def enter_boxed_number(self) -> None:
        """Enters the number that the last product saved, once autograd has created the node that
        keeps it.
        """
        if self._multiplied is None:
            return
        product, size = self._multiplied
        self._multiplied = None
        tensor = product()
        if tensor is not None and tensor.grad_fn is not None:
            end = self.ledger.lend(size)

            def hook(_: Any) -> None:  # the number ends when its node runs, or is freed itself
                end()

            weakref.finalize(hook, end)
            tensor.grad_fn.register_prehook(hook)


def _is_on(device: str, *leaves: Any) -> bool:
    """Whether a tensor among these is on the device; the optimizer's step counts are not."""
    return any(tensor.device.type == device for tensor in _tensors_in(leaves))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an operation's arguments or outputs, which are in lists at most."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)


def _called_by_adafactor() -> bool:
    """Whether Adafactor asks for a norm or a step count, which scale its update and decide on no
    tensor.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("torch/optim/_adafactor.py"):
        frame = frame.f_back
    return frame is not None


def _spreads_evenly() -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in SPREADS_EVENLY


def _called_by_autograd() -> bool:
    """Whether autograd's engine or a derivative formula in C++ made this call, not Python code."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


# Files whose frames lie between an operation and the code that called it.
_BETWEEN = (__file__, "_dynamo/eval_frame.py", "torch/_compile.py")


def _refuse_unfakeable(tensor: Tensor) -> None:
    if tensor.device.type == "cuda" and not can_fake_cuda():
        raise RuntimeError(
            f"the block makes a tensor on {str(tensor.device)!r}, which is not here, "
            "and torch would abort: predict "
            'the block for device="cuda"'
        )


def _refuse_sparse(func: Any, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise RuntimeError(
            f"{func} makes a sparse tensor ({tensor.layout}), whose bytes follow from its values: "
            "predict the step with dense ones (Embedding and EmbeddingBag with sparse=False), or "
            "measure it"
        )
