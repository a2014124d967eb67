"""Counts the FLOPs and bytes of the operators that a block of code dispatches."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accounting.attention import attention_flops, attention_step
from prooflops.counted.attention import UnreadableError, attentions
from prooflops.counted.result import (
    PRODUCTS,
    READ,
    UNKNOWN,
    WRITTEN,
    CountedWork,
    Tally,
)
from prooflops.counted.rules import Rule, nothing, rule_of
from prooflops.counted.tensors import NotStridedError, bytes_of
from prooflops.trace import RECOMPUTED, Operation, Trace, tensors_in

# One complex multiply-add is four real multiplications and four real additions.
COMPLEX_FACTOR = 4

# The first checkpoint or optimizer imports torch._dynamo, which then multiplies tensors. Where
# modes have this, their first operator imports it, unseen by them.
IMPORTS_DYNAMO_UNSEEN = hasattr(TorchDispatchMode, "_should_skip_dynamo")


@contextmanager
def flops() -> Iterator[CountedWork]:
    """The FLOPs and bytes of the operations dispatched within the block.

    It works on any device, `meta` included. Applies torch's own FLOP formulas to the operators that
    autograd, modules and composite functions finally dispatch. So the backward pass is counted, not
    assumed to be twice the forward. `prooflops.counted.operators` adds or corrects what torch's
    FlopCounterMode lacks. These are mv, dot, addmv, addr, in-place, int8 and scaled products,
    bilinear and recurrent layers, the CPU's fused attention, grouped convolutions, linear systems
    and complex numbers.

    Conventions:
    - A multiply-add is 2 FLOPs, a complex one 8; an integer product counts as one of floating-point
      numbers.
    - Attention counts all pairs of query and key, masked or not; `accounting.attention` has those
      that a causal mask or a window leaves. Packed sequences whose offsets are on the meta device
      are `unknown`.
    - The backward pass of a fused kernel is 5 products; one of them recomputes the scores. That of
      the unfused path is 4. Padding of a convolution is counted as data. A product's bias is
      ignored.
    - Elementwise operations and reductions are one FLOP per element of the largest tensor they read
      or write, whatever the function. A fused one (softmax, layer norm, GELU, SiLU, a fused
      optimizer) has as many as it fuses: `accounting.roofline.FLOPS_PER_ELEMENT`. Those without a
      floating-point tensor are none. Copies, casts, views, gathers and random numbers are none.
    - Forward is everything outside a backward pass, the optimizer's step and a loss included.
      Recomputed is what Python code inside a backward pass computes with gradients enabled: torch's
      checkpointing of either kind, and other libraries'. With retain_graph=True only torch's is
      recognised.
    - An operator reads every tensor once (an expanded one by its own elements) and writes every
      result once. That is the memory traffic if nothing is fused, cached or read twice.

    Domain of validity: shape formulas of the operators dispatched in this thread and the autograd
    threads it starts. That catches a wrong formula of a model, not a wrong formula of an operator.
    Not seen: other threads, other processes, numpy, and elementwise work inside a fused product
    (softmax in fused attention, gates of an LSTM). `unknown` lists the operators without a formula
    (custom kernels, products and sums of sparse tensors). A function under torch.compile runs and
    counts uncompiled within the block, and compiled after it. Blocks may be nested; each counts all
    that happens within it.

    Raises NotImplementedError for FlexAttention on torch 2.6, which hands it to no mode.

    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> with flops() as count:
    ...     layer(torch.ones(2, 3)).sum().backward()
    >>> count.forward, count.backward, count.by_operator()["aten.mm"]
    (48, 48, Totals(products=96, elementwise=0, read_bytes=100, written_bytes=80))
    """
    count = Count()
    if not IMPORTS_DYNAMO_UNSEEN:
        from torch import _dynamo  # noqa: F401
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(Trace(count.add))
        yield count.work


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs functions under torch.compile as they are written.

    Modes and hooks cannot see into compiled ones.
    """
    if "torch._dynamo.utils" not in sys.modules:  # imported by torch.compile; it takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"Using `torch.compile\(module\)` when there are global hooks"
        )
        yield


class _Work(NamedTuple):
    """The FLOPs and bytes of a call; those of an unknown kind are the number of calls."""

    kind: int
    moves: bool = False
    read: int = 0
    written: int = 0
    flops: int = 0
    recomputed: int = 0


class Count:
    """A view of a trace: the sums of its FLOPs and bytes, in `work`."""

    def __init__(self) -> None:
        self._tally: Tally = Counter()
        self.work = CountedWork(self._tally)

    def add(self, operation: Operation) -> int:
        """Counts an operation; returns the FLOPs of its products."""
        rule = rule_of(operation.operator)
        if not rule.is_counted:
            return 0
        alike = operation.alike
        work = alike.work if alike else None
        if work is None:
            work = self._work(rule, operation)
            if alike and work.kind != UNKNOWN:
                alike.work = work
        operator, phase = rule.operator, operation.phase
        if work.moves:
            self._tally[operator, phase, READ] += work.read
            self._tally[operator, phase, WRITTEN] += work.written
        self._tally[operator, phase, work.kind] += work.flops
        if work.recomputed:
            self._tally[operator, RECOMPUTED, PRODUCTS] += work.recomputed
        return work.flops + work.recomputed if work.kind == PRODUCTS else 0

    def _work(self, rule: Rule, operation: Operation) -> _Work:
        args, kwargs, out = operation.args, operation.kwargs, operation.out
        if rule.results:
            kwargs = {name: value for name, value in kwargs.items() if name not in rule.results}
        read = written = 0
        if rule.moves:
            try:
                read, written = _moved_bytes(rule, out, args, kwargs)
            except NotStridedError:
                may_compute = rule.attention or rule.formula is not nothing
                return _Work(UNKNOWN, flops=int(bool(may_compute)))
        try:
            flops, recomputed = self._flops(rule, out, args, kwargs)
        except UnreadableError:
            return _Work(UNKNOWN, rule.moves, read, written, 1)
        return _Work(rule.kind, rule.moves, read, written, flops, recomputed)

    def _flops(self, rule: Rule, out: Any, args: Any, kwargs: Any) -> tuple[int, int]:
        """The FLOPs of a call, and those of the scores that it computes for the second time."""
        if rule.attention:
            return self._attention(rule, args, kwargs)
        flops = rule.formula(out, *args, **kwargs)
        if rule.kind == PRODUCTS and any(tensor.is_complex() for tensor in tensors_in(out)):
            flops *= COMPLEX_FACTOR
        return flops, 0

    def _attention(self, rule: Rule, args: Any, kwargs: Any) -> tuple[int, int]:
        shapes = attentions(rule.attention, _arguments_of(rule, args, kwargs))
        if not rule.attention.endswith("backward"):
            return sum(map(attention_flops, shapes)), 0
        steps = [attention_step(shape, "flash") for shape in shapes]
        return sum(step.backward for step in steps), sum(step.recomputation for step in steps)


def _moved_bytes(rule: Rule, out: Any, args: Any, kwargs: Any) -> tuple[int, int]:
    """Bytes that an operator reads and writes."""
    written = bytes_of(out) or _updated_bytes(rule, args)
    if rule.gathers:
        return bytes_of(args[1:]) + bytes_of(kwargs) + written, written
    return bytes_of(args[1:] if rule.first_unread else args) + bytes_of(kwargs), written


def _arguments_of(rule: Rule, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a kernel of attention by their names."""
    if rule.schema is not None:
        arguments = zip(rule.schema.arguments, args, strict=False)
        return {**{each.name: value for each, value in arguments}, **kwargs}
    return dict(zip(("query", "key", "value"), args, strict=False))


def _updated_bytes(rule: Rule, args: Any) -> int:
    """Bytes of the arguments that an operator without a result writes to (foreach in place, fused
    optimizers).
    """
    if rule.schema is None:
        return 0
    arguments = zip(args, rule.schema.arguments, strict=False)
    # The gradients of a fused optimizer are marked as written because it may unscale them; it
    # hardly ever does.
    return bytes_of([value for value, of in arguments if of.is_write and of.name != "grads"])
