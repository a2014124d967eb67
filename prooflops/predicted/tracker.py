"""Enters the storages that each dispatched operation allocates into a ledger."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prooflops.predicted.fake_cuda import can_fake_cuda
from prooflops.predicted.ledger import CallMade, Ledger
from prooflops.predicted.scratch import (
    KEEPS_ITS_TERMS,
    NEARLY_FAKED,
    NORMS,
    WRONGLY_FAKED,
    call_of,
    known_scratch,
    with_real_sizes,
    with_storage_of_terms,
    with_strides_of_kernel,
    with_tensors_of_norm,
)

# Autograd adds and scatters in place to a plain tensor that nothing else refers to; not to a fake one, which is a
# subclass. If the first argument is freed at once, the two are the same storage in a real run.
IN_PLACE_ON_PLAIN_TENSORS = frozenset({"add", "index_put", "scatter", "scatter_add"})

# The backward formula of this loss writes in place for plain tensors, throughout its own storages.
IN_PLACE_IN_NODE = {"BinaryCrossEntropyWithLogitsBackward0": frozenset({"sub", "mul"})}

# These save their second factor for the gradient of the first; a Python number becomes a tensor of its own, a boxed
# number, which no dispatch mode sees.
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


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Enters the storages that each operation allocates into the ledger."""

    def __init__(self, ledger: Ledger, measures: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self._measures = measures
        self._multiplied: tuple[weakref.ref[Tensor], int] | None = None
        self._node = (-1, 0)  # of autograd that runs: its number, and that of storages before it
        self._in_linear = False

    @contextmanager
    def biases_in_place(self) -> Iterator[None]:
        """Notes when a linear layer runs, which adds its bias in place to a plain product, but not to a fake one."""
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in (
            "prim",
            "profiler",
        ):  # only asks for a device, perhaps within an operation
            return func(*args, **kwargs)
        ledger, on_cpu = self.ledger, self.ledger.device == "cpu"
        self.enter_boxed_number()
        ledger.moment += 1
        in_backward = torch._C._current_graph_task_id() != -1
        successor_of = None
        # A view keeps its base, so its storage has another reference.
        may_succeed = func._opname in IN_PLACE_ON_PLAIN_TENSORS and not args[0]._is_view()
        if may_succeed and (self._in_linear or (in_backward and _called_by_autograd())):
            successor_of = ledger.number_of(args[0])
        before = len(ledger.storages)
        if in_backward and self._writes_in_place(func, args):
            func = getattr(_aten, f"{func._opname}_").Tensor
        is_scale = func is _aten._local_scalar_dense.default and _called_by_adafactor()
        out: Any = 1.0 if is_scale else func(*args, **kwargs)
        if on_cpu:
            out = _with_outputs_of_kernel(func, args, kwargs, out, self._measures)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                if on_cpu:
                    _refuse_unfakeable(tensor)
                ledger.see(tensor, in_backward and torch.is_grad_enabled(), successor_of)
        held = known_scratch(func, args, ledger.device, out)
        if held:
            ledger.lend(held)()
        elif held is None:
            outputs = tuple(range(before, len(ledger.storages)))
            call = call_of(func, args, kwargs)
            ledger.calls.append(CallMade(call, len(ledger.ends), len(ledger.events), outputs))
        if on_cpu and func in SAVES_ITS_NUMBER and type(args[1]) in BOXED_BYTES:
            self._multiplied = weakref.ref(out), BOXED_BYTES[type(args[1])]
        return out

    def _writes_in_place(self, func: Any, args: Any) -> bool:
        """Whether a plain tensor's backward formula writes this result to its first operand, which it allocated."""
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() != self._node[0]:
            self._node = node._sequence_nr(), len(self.ledger.storages)
        if node is None or func._opname not in IN_PLACE_IN_NODE.get(node.name(), ()):
            return False
        return (self.ledger.number_of(args[0]) or 0) >= self._node[1]

    def enter_boxed_number(self) -> None:
        """Enters the number that the last product saved, once autograd has created the node that keeps it."""
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


def _called_by_adafactor() -> bool:
    """Whether Adafactor asks for a norm or a step count, which scale its update and decide on no tensor."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("torch/optim/_adafactor.py"):
        frame = frame.f_back
    return frame is not None


def _with_outputs_of_kernel(func: Any, args: Any, kwargs: Any, out: Any, measures: bool) -> Any:
    """`out` with the dtypes and sizes that the CPU's kernel returns, where fake tensors give others."""
    name = func._schema.name
    if name.startswith(NORMS):
        return with_tensors_of_norm(func, args, out)
    if name in KEEPS_ITS_TERMS:
        return with_storage_of_terms(args, out)
    if name in WRONGLY_FAKED or (measures and name in NEARLY_FAKED):
        return with_real_sizes(call_of(func, args, kwargs), out, measures)
    return with_strides_of_kernel(name, args, out) if "_backward" in name else out


def _called_by_autograd() -> bool:
    """Whether autograd's engine or a derivative formula in C++ made this call, and not Python code (a user's)."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_filename.endswith(
        ("_dynamo/eval_frame.py", "torch/_compile.py")
    ):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"


def _refuse_unfakeable(tensor: Tensor) -> None:
    if tensor.device.type == "cuda" and not can_fake_cuda():
        raise RuntimeError(
            f"the block makes a tensor on {str(tensor.device)!r}, which is not here, and torch would abort: predict "
            'the block for device="cuda"'
        )
