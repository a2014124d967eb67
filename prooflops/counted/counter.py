"""Counts the FLOPs and bytes of the operators that a block of code dispatches."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.autograd import function
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from accounting.attention import attention_flops, attention_step
from accounting.checks import validated_choice
from prooflops.counted.attention import UnfusedMasks, UnreadableError, attentions
from prooflops.counted.result import (
    BACKWARD,
    FORWARD,
    PRODUCTS,
    READ,
    RECOMPUTED,
    UNKNOWN,
    WRITTEN,
    CountedWork,
    Tally,
)
from prooflops.counted.rules import Rule, nothing, rule_of, rule_of_kernel, rule_of_own_kernel
from prooflops.counted.sparse import sparse_flops, stored_bytes
from prooflops.counted.tensors import NotStridedError, bytes_of, tensors_in

# One complex multiply-add is four real multiplications and four real additions.
COMPLEX_FACTOR = 4

PAIRS = ("full", "causal")
# The first checkpoint or optimizer imports torch._dynamo, which then multiplies tensors. Where
# modes have this, their first operator imports it, unseen by them.
IMPORTS_DYNAMO_UNSEEN = hasattr(TorchDispatchMode, "_should_skip_dynamo")


@contextmanager
def flops(pairs: str = "full") -> Iterator[CountedWork]:
    """The FLOPs and bytes of the operations dispatched within the block, on any device, `meta`
    included.

    Applies torch's own FLOP formulas to the operators that autograd, modules and composite
    functions finally dispatch, so the backward pass is counted and not assumed to be twice the
    forward. `prooflops.counted.operators` adds or corrects what torch's FlopCounterMode lacks: mv,
    dot, addmv, addr, products in place, bilinear layers, int8 and scaled products, sparse ones, the
    CPU's fused attention, recurrent layers, grouped convolutions, linear systems, complex numbers.

    Conventions:
    - A multiply-add is 2 FLOPs, a complex one 8; an integer product counts as one of floating-point
      numbers.
    - Attention counts all pairs of query and key, masked or not. With pairs="causal" it counts the
      pairs that the mask leaves, windows included: `is_causal=True`, a mask given to
      scaled_dot_product_attention as a tensor (each call reads it once, and waits for its device),
      or a BlockMask of FlexAttention. Kernels execute more: all pairs under a tensor, whole blocks
      under a BlockMask. Masks that a model adds to the scores by itself are not seen. What a mask
      on the meta device leaves is `unknown`, as are packed sequences whose offsets are there.
    - The backward pass of a fused kernel is 5 products; one of them recomputes the scores. That of
      the unfused path is 4. Padding of a convolution is counted as data. A product's bias is
      ignored.
    - Elementwise operations and reductions are one FLOP per element of the largest tensor they read
      or write, whatever the function; a fused one (softmax, layer norm, GELU, SiLU, a fused
      optimizer) as many as it fuses: `accounting.roofline.FLOPS_PER_ELEMENT`. Those without a
      floating-point tensor are none. Copies, casts, views, gathers and random numbers are none.
    - Forward is everything outside a backward pass, the optimizer's step and a loss included.
      Recomputed is what Python code inside a backward pass computes with gradients enabled: torch's
      checkpointing of either kind, and other libraries'. With retain_graph=True only torch's is
      recognised.
    - An operator reads every tensor once (an expanded one by its own elements) and writes every
      result once: the traffic of memory if nothing is fused, cached or read twice.

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
    counter = _Counter(masks)
    if not IMPORTS_DYNAMO_UNSEEN:
        from torch import _dynamo  # noqa: F401
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(masks or nullcontext())
        stack.enter_context(counter)
        yield CountedWork(counter.tally)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs functions under torch.compile as they are written: modes and hooks cannot see into
    compiled ones.
    """
    if "torch._dynamo" not in sys.modules:  # imported by torch.compile; it takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"Using `torch.compile\(module\)` when there are global hooks"
        )
        yield


class _Counter(TorchDispatchMode):
    """Counts every operator that is dispatched beneath autograd."""

    supports_higher_order_operators = True

    def __init__(self, masks: UnfusedMasks | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._masks = masks
        self._pairs = "full" if masks is None else "causal"
        self.tally: Tally = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and any(issubclass(each, NestedTensor) for each in types):
            return NotImplemented  # jagged sequences dispatch the operators of their values
        rule = rule_of(func)
        if rule.treatment == "decompose" and (tensors := tensors_in((args, kwargs))):
            nested = any(
                tensor.is_nested for tensor in tensors
            )  # whose kernels compose it in a way of their own
            rule = (
                rule_of_kernel(func)
                if nested
                else rule_of_own_kernel(func, tensors[0].device.type) or rule
            )
        if rule.treatment != "count":
            if rule.treatment == "leave" or (rule.treatment == "refuse" and not types):
                return func(*args, **kwargs)
            if rule.treatment == "refuse":
                return NotImplemented
            with self:
                return (
                    func.decompose(*args, **kwargs)
                    if rule.treatment == "decompose"
                    else _branch(*args)
                )
        out = func(*args, **kwargs)
        if rule.results:
            kwargs = {name: value for name, value in kwargs.items() if name not in rule.results}
        self._count(rule, out, args, kwargs)
        return out

    def _count(self, rule: Rule, out: Any, args: Any, kwargs: Any) -> None:
        phase = _phase()
        figures = self.tally.setdefault((rule.operator, phase), [0] * 5)
        if rule.moves:
            try:
                written = bytes_of(out) or _updated_bytes(rule, args)
                read = bytes_of(args[1:] if rule.first_unread or rule.gathers else args)
                read += bytes_of(kwargs) if kwargs else 0
            except NotStridedError:
                self._count_sparse(figures, rule, out, (*args, *kwargs.values()))
                return
            figures[READ] += read + written if rule.gathers else read
            figures[WRITTEN] += written
        try:
            flops = self._flops(rule, out, args, kwargs)
        except UnreadableError:
            figures[UNKNOWN] += 1
            return
        figures[rule.kind] += flops

    def _flops(self, rule: Rule, out: Any, args: Any, kwargs: Any) -> int:
        if rule.attention:
            return self._attention(rule, args, kwargs)
        flops = rule.formula(out, *args, **kwargs)
        if rule.kind == PRODUCTS and flops:
            flops = self._adjusted(flops, out)
        return flops

    def _count_sparse(self, figures: list[int], rule: Rule, out: Any, args: Any) -> None:
        """Enters an operator that moves sparse tensors, or multiplies by one; another one is
        unknown.
        """
        try:
            read, written = stored_bytes(args), stored_bytes(out)
            flops = 0 if rule.formula is nothing else sparse_flops(rule.operator, out, args)
        except NotStridedError:
            flops = None
        if flops is None:
            figures[UNKNOWN] += 1
            return
        for figure, amount in (
            (PRODUCTS, self._adjusted(flops, out)),
            (READ, read),
            (WRITTEN, written),
        ):
            figures[figure] += amount

    def _attention(self, rule: Rule, args: Any, kwargs: Any) -> int:
        """The FLOPs of a fused kernel's call; the scores that its backward pass recomputes are
        entered as such.
        """
        if rule.schema is None:  # FlexAttention: a mask, and the tensors that its function reads
            mask = next(each for each in args[3:] if isinstance(each, tuple))
            arguments = {
                "query": args[0],
                "key": args[1],
                "value": args[2],
                "block_mask": (*mask, *args[-1]),
            }
        else:
            arguments = {
                each.name: value for each, value in zip(rule.schema.arguments, args, strict=False)
            } | kwargs
        shapes = attentions(rule.attention, arguments, self._pairs)
        if not rule.attention.endswith("backward"):
            return sum(map(attention_flops, shapes))
        steps = [attention_step(shape, "flash") for shape in shapes]
        recomputed = sum(step.recomputation for step in steps)
        self.tally.setdefault((rule.operator, RECOMPUTED), [0] * 5)[PRODUCTS] += recomputed
        return sum(step.backward for step in steps)

    def _adjusted(self, flops: int, out: Any) -> int:
        """The FLOPs of a product of complex numbers, or of one within masked attention."""
        if any(tensor.is_complex() for tensor in tensors_in(out)):
            flops *= COMPLEX_FACTOR
        if self._masks is not None:
            flops = int(flops * self._masks.share(torch._C._current_autograd_node()))
        return flops


def _branch(predicate: Any, true: Any, false: Any, operands: Any) -> Any:
    """torch.cond: only the branch that is taken is dispatched."""
    return (true if predicate else false)(*operands)


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


def _phase() -> int:
    """Whether an operator runs forward, in a backward pass, or there for the second time."""
    if torch._C._current_graph_task_id() == -1:
        return FORWARD
    if not torch.is_grad_enabled():
        return BACKWARD
    # A gradient is computed without a graph of its own, unless for a second derivative: that may
    # keep the first graph.
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return RECOMPUTED if _within_checkpoint() else BACKWARD
    return BACKWARD if _dispatched_by_node() else RECOMPUTED


_TORCH = str(Path(torch.__file__).parent)


def _dispatched_by_node() -> bool:
    """Whether a node of the graph dispatched this operator, and not Python code that the node
    called.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        file = frame.f_code.co_filename
        if file in (checkpoint.__file__, function.__file__) or not file.startswith(
            (_TORCH, __file__)
        ):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True


_RECOMPUTING = ("unpack_hook", "backward")  # functions of torch.utils.checkpoint


def _within_checkpoint() -> bool:
    """Whether torch's checkpointing is at work further up in this thread."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__ and frame.f_code.co_name in _RECOMPUTING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
