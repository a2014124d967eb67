"""Counts the FLOPs and bytes of the operators that a block of code dispatches."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accounting.attention import attention_flops, attention_step
from accounting.checks import validated_choice
from prooflops.counted.attention import UnfusedMasks, UnreadableError, attentions
from prooflops.counted.result import (
    PRODUCTS,
    READ,
    UNKNOWN,
    WRITTEN,
    CountedWork,
    Tally,
)
from prooflops.counted.rules import Rule, nothing, rule_of
from prooflops.counted.sparse import sparse_flops, stored_bytes
from prooflops.counted.tensors import NotStridedError, bytes_of
from prooflops.trace import RECOMPUTED, Operation, Trace, tensors_in

# One complex multiply-add is four real multiplications and four real additions.
COMPLEX_FACTOR = 4

PAIRS = ("full", "causal")
# The first checkpoint or optimizer imports torch._dynamo, which then multiplies tensors. Where
# modes have this, their first operator imports it, unseen by them.
IMPORTS_DYNAMO_UNSEEN = hasattr(TorchDispatchMode, "_should_skip_dynamo")


@contextmanager
def flops(pairs: str = "full") -> Iterator[CountedWork]:
    """The FLOPs and bytes of the operations dispatched within the block.

    It works on any device, `meta` included. Applies torch's own FLOP formulas to the operators that
    autograd, modules and composite functions finally dispatch. So the backward pass is counted, not
    assumed to be twice the forward. `prooflops.counted.operators` adds or corrects what torch's
    FlopCounterMode lacks. These are mv, dot, addmv, addr, in-place, int8, scaled and sparse
    products, bilinear and recurrent layers, the CPU's fused attention, grouped convolutions, linear
    systems and complex numbers.

    Conventions:
    - A multiply-add is 2 FLOPs, a complex one 8; an integer product counts as one of floating-point
      numbers.
    - Attention counts all pairs of query and key, masked or not. With pairs="causal" it counts the
      pairs that the mask leaves, windows included. It sees `is_causal=True`, a BlockMask of
      FlexAttention, and a mask tensor given to scaled_dot_product_attention. Each call reads that
      tensor once, and waits for its device. Kernels execute more: all pairs under a tensor, whole
      blocks under a BlockMask. Masks that a model adds to the scores by itself are not seen. On the
      meta device the pairs that a mask leaves are `unknown`, as are packed sequences with offsets
      there.
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
    (custom kernels, sums of sparse tensors). A function under torch.compile runs and counts
    uncompiled within the block, and compiled after it. Blocks may be nested; each counts all that
    happens within it.

    Raises ValueError for another convention of `pairs`; NotImplementedError for FlexAttention on
    torch 2.6, which hands it to no mode.

    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> with flops() as count:
    ...     layer(torch.ones(2, 3)).sum().backward()
    >>> count.forward, count.backward, count.by_operator()["aten.mm"]
    (48, 48, Totals(products=96, elementwise=0, read_bytes=100, written_bytes=80))
    """
    masks = UnfusedMasks() if validated_choice("pairs", pairs, PAIRS) == "causal" else None
    count = Count(masks)
    if not IMPORTS_DYNAMO_UNSEEN:
        from torch import _dynamo  # noqa: F401
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(masks or nullcontext())
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


class Count:
    """A view of a trace: the sums of its FLOPs and bytes, in `work`."""

    def __init__(self, masks: UnfusedMasks | None = None) -> None:
        self._masks = masks
        self._pairs = "full" if masks is None else "causal"
        self._tally: Tally = Counter()
        self.work = CountedWork(self._tally)

    def add(self, operation: Operation) -> int:
        """Counts an operation; returns the FLOPs of its products."""
        rule = rule_of(operation.operator)
        if not rule.is_counted:
            return 0
        args, kwargs, out = operation.args, operation.kwargs, operation.out
        if rule.results:
            kwargs = {name: value for name, value in kwargs.items() if name not in rule.results}
        place = rule.operator, operation.phase
        if rule.moves:
            try:
                read, written = _moved_bytes(rule, out, args, kwargs)
            except NotStridedError:
                return self._add_sparse(place, rule, out, (*args, *kwargs.values()))
            self._tally[(*place, READ)] += read
            self._tally[(*place, WRITTEN)] += written
        try:
            flops, recomputed = self._flops(rule, out, args, kwargs)
        except UnreadableError:
            self._tally[(*place, UNKNOWN)] += 1
            return 0
        self._tally[(*place, rule.kind)] += flops
        if recomputed:
            self._tally[rule.operator, RECOMPUTED, PRODUCTS] += recomputed
        return flops + recomputed if rule.kind == PRODUCTS else 0

    def _flops(self, rule: Rule, out: Any, args: Any, kwargs: Any) -> tuple[int, int]:
        """The FLOPs of a call, and those of the scores that it computes for the second time."""
        if rule.attention:
            return self._attention(rule, args, kwargs)
        flops = rule.formula(out, *args, **kwargs)
        if rule.kind == PRODUCTS and flops:
            flops = self._adjusted(flops, out)
        return flops, 0

    def _add_sparse(self, place: tuple[str, int], rule: Rule, out: Any, args: Any) -> int:
        """Counts an operator that moves sparse tensors, or multiplies by one; another one is
        unknown.
        """
        try:
            read, written = stored_bytes(args), stored_bytes(out)
            flops = 0 if rule.formula is nothing else sparse_flops(rule.operator, out, args)
        except NotStridedError:
            flops = None
        if flops is None:
            self._tally[(*place, UNKNOWN)] += 1
            return 0
        flops = self._adjusted(flops, out)
        self._tally[(*place, PRODUCTS)] += flops
        self._tally[(*place, READ)] += read
        self._tally[(*place, WRITTEN)] += written
        return flops

    def _attention(self, rule: Rule, args: Any, kwargs: Any) -> tuple[int, int]:
        shapes = attentions(rule.attention, _arguments_of(rule, args, kwargs), self._pairs)
        if not rule.attention.endswith("backward"):
            return sum(map(attention_flops, shapes)), 0
        steps = [attention_step(shape, "flash") for shape in shapes]
        return sum(step.backward for step in steps), sum(step.recomputation for step in steps)

    def _adjusted(self, flops: int, out: Any) -> int:
        """The FLOPs of a product of complex numbers, or of one within masked attention."""
        if any(tensor.is_complex() for tensor in tensors_in(out)):
            flops *= COMPLEX_FACTOR
        if self._masks is not None:
            flops = int(flops * self._masks.share(torch._C._current_autograd_node()))
        return flops


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
    # FlexAttention: a mask, and the tensors that its function reads.
    mask = next(each for each in args[3:] if isinstance(each, tuple))
    names = dict(zip(("query", "key", "value"), args, strict=False))
    return {**names, "block_mask": (*mask, *args[-1])}


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
