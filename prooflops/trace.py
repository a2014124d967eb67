"""The trace of a block of code: each dispatched operation, and where it runs.

One dispatch mode passes every operation to a view once it has run. The count of FLOPs and the
breakdown of a model's step are such views.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd import function
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

# When an operation runs. Recomputed is what a backward pass runs for the second time.
FORWARD, BACKWARD, RECOMPUTED = range(3)
# Queries of a tensor's layout, which a subclass (nested tensors) answers itself.
LAYOUT_QUERIES = frozenset(
    "aten.dim aten.is_contiguous aten.is_non_overlapping_and_dense aten.is_strides_like_format "
    "aten.numel aten.size aten.storage_offset aten.stride aten.sym_is_contiguous aten.sym_numel "
    "aten.sym_size aten.sym_storage_offset aten.sym_stride prim.layout".split()
)
# Functions of torch.utils.checkpoint that run code again.
RECOMPUTING = ("unpack_hook", "backward")
TORCH = str(Path(torch.__file__).parent)

# Only these two private calls assign the operations of a backward pass to those of the forward
# pass.
if not hasattr(torch._C, "_current_autograd_node") or not hasattr(
    torch._C._autograd, "_get_sequence_nr"
):
    raise ImportError(
        f"prooflops does not know torch {torch.__version__}: its autograd names no node"
    )


@dataclass(slots=True)
class Alike:
    """All operations that are alike in operator, settings and layouts, and the work that each does.

    The work is None until a count has found it.
    """

    work: Any = None


@dataclass(slots=True)
class Operation:
    """One operation that has run, with the tensors that it was given and has made.

    `seconds` are 0 without a clock. `alike` is None where operations are not compared.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    phase: int
    seconds: float = 0.0
    alike: Alike | None = None
    given: list[Tensor] = field(init=False)
    made: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.given = tensors_in(self.args)
        if self.kwargs:
            self.given += tensors_in(self.kwargs)
        self.made = tensors_in(self.out)


class Trace(TorchDispatchMode):
    """Passes every operation that is dispatched beneath autograd to a view.

    Composed operators are taken apart, unless the device has a kernel of its own for them. `clock`
    returns moments, whose difference is in seconds.
    """

    supports_higher_order_operators = True

    def __init__(
        self, view: Callable[[Operation], object], clock: Callable[[], Any] = lambda: 0.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.view = view
        self._clock = clock

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in a trace, so no wrapper is needed that keeps the compiler out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if NestedTensor in types:
            # Jagged sequences dispatch the operators of their values.
            return NotImplemented
        if func is torch.ops.prim.device.default:
            # A fake tensor answers for its device.
            return func(*args)
        if _is_query(func):
            return NotImplemented if types else func(*args, **kwargs)
        if _is_composed(func) and not _has_kernel(func, tensors_in((args, kwargs))):
            with self:
                return func.decompose(*args, **kwargs)
        if func is torch.ops.higher_order.cond:
            predicate, if_true, if_false, operands = args
            with self:
                # Only the branch that is chosen is dispatched.
                return (if_true if predicate else if_false)(*operands)
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation, and passes it to the view."""
        start = self._clock()
        out = func(*args, **kwargs)
        seconds = self._clock() - start
        self.view(Operation(func, args, kwargs, out, phase(), seconds))
        return out


T = TypeVar("T")


class StorageNotes(Generic[T]):
    """A note for each storage that has one, until the storage is gone."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[Any], T]] = {}

    def of(self, tensor: Tensor) -> T | None:
        """The note of the tensor's storage."""
        entry = self._notes.get(tensor.untyped_storage()._cdata)
        # Another storage may have the number of one that is gone.
        return None if entry is None or entry[0]() is None else entry[1]

    def put(self, tensor: Tensor, note: T) -> None:
        """Replaces the note of the tensor's storage."""
        storage = tensor.untyped_storage()
        self._notes[storage._cdata] = weakref.ref(storage), note

    def alive(self) -> Iterator[tuple[Any, T]]:
        """Each storage that is not gone, and its note."""
        for reference, note in self._notes.values():
            storage = reference()
            if storage is not None:
                yield storage, note


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of an operation, in lists, tuples and dicts of them."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    found: list[Tensor] = []
    for each in tree:
        # Most arguments are tensors or numbers, and a call for each would be slow.
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple, dict)):
            found += tensors_in(each)
    return found


def newest_node() -> int:
    """The number of autograd's newest node.

    It is that of the operation that is dispatched, if it has one.
    """
    return int(torch._C._autograd._get_sequence_nr()) - 1


def running_node() -> int | None:
    """The number of the node that a backward pass is running; None outside of one."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def phase() -> int:
    """The phase of the current operation: forward, backward, or recomputed in a backward pass."""
    if torch._C._current_graph_task_id() == -1:
        return FORWARD
    if not torch.is_grad_enabled():
        return BACKWARD
    # A gradient is computed without a graph of its own, unless for a second derivative: that may
    # keep the first graph.
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return RECOMPUTED if _within_checkpoint() else BACKWARD
    return BACKWARD if _dispatched_by_node() else RECOMPUTED


def _dispatched_by_node() -> bool:
    """True if a node of the graph dispatched this operation, and not Python code that it called."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        file = frame.f_code.co_filename
        if file in (checkpoint.__file__, function.__file__):
            return False
        if not file.startswith((TORCH, __file__)):
            return False
        frame = frame.f_back
    return True


def _within_checkpoint() -> bool:
    """True if torch's checkpointing is at work further up in this thread."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__ and frame.f_code.co_name in RECOMPUTING:
            return True
        frame = frame.f_back
    return False


@cache
def _is_query(func: Any) -> bool:
    return str(getattr(func, "_overloadpacket", func)) in LAYOUT_QUERIES


@cache
def _is_composed(func: Any) -> bool:
    """True if torch composes an operator of others."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return False
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), key
    )


def _has_kernel(func: Any, tensors: list[Tensor]) -> bool:
    """True if a kernel of its own runs a composed operator: for nested tensors, or on a device."""
    if not tensors:
        return False
    if any(tensor.is_nested for tensor in tensors):
        return True
    key = torch._C._dispatch_key_for_device(tensors[0].device.type)
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
