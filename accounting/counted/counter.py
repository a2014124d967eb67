"""Counts the FLOPs and bytes of the operators that a block of code dispatches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from accounting.attention import Attention, attention_flops, attention_step
from accounting.checks import validated_choice
from accounting.counted import operators
from accounting.counted.result import (
    BACKWARD,
    ELEMENTWISE,
    FORWARD,
    PRODUCTS,
    READ,
    RECOMPUTED,
    UNKNOWN,
    WRITTEN,
    CountedWork,
    Tally,
)

# One complex multiply-add is four real multiplications and four real additions.
COMPLEX_FACTOR = 4

# Torch's own formulas, by operator.
_TORCHS: dict[Any, Callable[..., int]] = flop_registry

PAIRS = ("full", "causal")


@contextmanager
def flops(pairs: str = "full") -> Iterator[CountedWork]:
    """The FLOPs and bytes of the operations dispatched within the block, on any device, `meta` included.

    Built on torch's own FLOP formulas, applied to the operators that autograd, modules and composite functions finally
    dispatch, so the backward pass is counted and not taken for twice the forward. What torch's FlopCounterMode leaves
    out or gets wrong comes from `accounting.operators`: mv, dot, addmv, addr, the in-place products, bilinear layers,
    int8 and scaled products, the CPU's fused attention, recurrent layers, grouped convolutions, complex numbers.

    Conventions:
    - A multiply-add is 2 FLOPs, a complex one 8; an integer product counts as one of floating-point numbers.
    - Attention is counted in full, masked or not; with pairs="causal", for the pairs of query and key that
      `is_causal=True` leaves, which is what a kernel that skips the others costs. A mask given as a tensor saves
      nothing. A fused kernel's backward is 5 products, of which 1 recomputes the scores; that of the unfused path 4.
      Padding of a convolution is counted as data. A product's bias is ignored.
    - Elementwise operations and reductions are one FLOP per element of the largest tensor they read or write, whatever
      the function; a fused one (softmax, layer norm, a fused optimizer) as many as it fuses. Those without a
      floating-point tensor are none. Copies, casts, views, gathers and random numbers are none.
    - Forward is everything outside a backward pass, the optimizer's step and a loss included. Recomputed is what runs
      inside a backward pass with gradients enabled: torch's checkpointing of either kind, and anybody else's. With
      create_graph=True gradients always are; there, and with retain_graph=True, only torch's is recognised.
    - Modules are named as torch's ModuleTracker names them: the class of the outermost, then attributes. In a backward
      pass it knows a module by the gradients of its inputs and outputs, so a module whose input needs no gradient
      stays open until the pass ends.
    - Bytes read are those of every tensor that an operator reads, once (an expanded one by its own elements), bytes
      written those of every result: what the memory sees if nothing is fused, cached or read twice.

    Domain of validity: shape formulas applied to what was really dispatched, in this thread and the autograd threads
    it starts. That catches a wrong formula of a model, not a wrong formula of an operator. Not seen: other threads,
    other processes, numpy, and elementwise work inside a fused product (softmax in fused attention, gates of an LSTM).
    What is seen and not known (arithmetic inside a custom kernel, operators of sparse tensors) is listed in `unknown`.
    A function under torch.compile runs and is counted uncompiled within the block, and compiled again after it; what
    its compiled form would fuse or recompute is not known here. Blocks may be nested; each counts all that happens
    within it.

    Raises ValueError for another convention of `pairs`.

    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> with flops() as count:
    ...     layer(torch.ones(2, 3)).sum().backward()
    >>> count.forward, count.backward, count.by_operator()["aten.mm"]
    (48, 48, Totals(products=96, elementwise=0, read_bytes=100, written_bytes=80))
    """
    modules = _Modules()
    counter = _Counter(modules, validated_choice("pairs", pairs, PAIRS))
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # imported by torch.compile; it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if pairs == "causal":
            scope = stack.enter_context(_CausalScope(counter))
            stack.callback(setattr, functional, _attend.__name__, functional.scaled_dot_product_attention)
            functional.scaled_dot_product_attention = scope.attend
        stack.enter_context(modules)
        stack.enter_context(counter)
        yield CountedWork(modules.tallies, counter.products)


# --- to which module --------------------------------------------------------------------------------------------------


class _Running(set[str]):
    """The names of the modules that are running; a change of them ends the tally that belongs to them."""

    tally: Tally | None = None

    def add(self, name: str) -> None:
        super().add(name)
        self.tally = None

    def remove(self, name: str) -> None:
        super().remove(name)
        self.tally = None


class _Modules(ModuleTracker):
    """Torch's tracker of the running modules, with a tally for each set of them: at any depth, one entry to update."""

    def __init__(self) -> None:
        self.tallies: dict[frozenset[str], Tally] = {}
        super().__init__()

    @property
    def parents(self) -> set[str]:
        return self.running

    @parents.setter
    def parents(self, names: set[str]) -> None:
        self.running = _Running(names)

    def _fw_pre_hook(self, mod: torch.nn.Module, inputs: Any) -> None:
        """Torch's own, but for leaves: for them it would refuse torch.autograd.grad by the input of a module."""
        name = self._get_mod_name(mod)  # type: ignore[no-untyped-call]
        self._get_append_fn(name, False)()  # type: ignore[no-untyped-call]
        tensors = [tensor for tensor in _tensors(inputs) if tensor.requires_grad]
        if tensors:
            leaves = any(tensor.grad_fn is None for tensor in tensors)
            leave = self._get_pop_fn(name, True)  # type: ignore[no-untyped-call]
            self._hooks.append(register_multi_grad_hook(tensors, leave, mode="any" if leaves else "all"))

    def tally(self) -> Tally:
        tally = self.running.tally
        if tally is None:
            tally = self.running.tally = self.tallies.setdefault(frozenset(self.running), {})
        return tally


# --- when -------------------------------------------------------------------------------------------------------------


def _when() -> int:
    """Whether an operator runs in a forward pass, in a backward pass, or there for the second time."""
    if torch._C._current_graph_task_id() == -1:
        return FORWARD
    if not torch.is_grad_enabled():
        return BACKWARD
    # A gradient is computed without a graph of its own, unless for a second derivative: that keeps the first graph.
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        return RECOMPUTED
    return RECOMPUTED if _within_checkpoint() else BACKWARD


_RECOMPUTING = ("recompute_fn", "unpack_hook", "backward")  # functions of torch.utils.checkpoint


def _within_checkpoint() -> bool:
    """Whether torch's checkpointing is at work further up in this thread."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__ and frame.f_code.co_name in _RECOMPUTING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


# --- what -------------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """How the calls of one operator are counted."""

    operator: str
    treatment: str  # "count", "decompose", "branch", "leave" (nothing to count), "refuse" (not ours to answer)
    kind: int = UNKNOWN
    formula: operators.Formula = lambda *_, **__: 0
    attention: str = ""  # the kernel's name
    results: frozenset[str] = frozenset()  # keyword arguments that receive the result
    first_unread: bool = False
    gathers: bool = False
    moves: bool = True
    schema: Any = None


_PLANS: dict[Any, _Plan] = {}


class _Counter(TorchDispatchMode):
    """Counts every operator that is dispatched beneath autograd."""

    supports_higher_order_operators = True

    def __init__(self, modules: _Modules, pairs: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules = modules
        self._pairs = pairs
        self.products = [0, 0, 0]  # of each phase
        self.causal_share: Fraction | None = None  # of the products of the attention that is running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plan = _PLANS.get(func) or _plan(func)
        if plan.treatment != "count":
            if plan.treatment == "leave":
                return func(*args, **kwargs)
            if plan.treatment == "refuse":
                return NotImplemented
            with self:
                return func.decompose(*args, **kwargs) if plan.treatment == "decompose" else _branch(*args)
        out = func(*args, **kwargs)
        if plan.results:
            kwargs = {name: value for name, value in kwargs.items() if name not in plan.results}
        when = _when()
        numbers = self._tally(plan, when)
        try:
            if plan.moves:
                written = _bytes(out) or _updated_bytes(plan, args)
                read = _bytes(args[1:] if plan.first_unread or plan.gathers else args)
                read += _bytes(kwargs) if kwargs else 0
                numbers[READ] += read + written if plan.gathers else read
                numbers[WRITTEN] += written
        except _NotStrided:
            numbers[UNKNOWN] += 1
            return out
        if plan.attention:
            figure, again = self._attention(plan, args, kwargs)
            if again:
                self._tally(plan, RECOMPUTED)[PRODUCTS] += again
                self.products[RECOMPUTED] += again
        else:
            figure = plan.formula(out, *args, **kwargs)
        if plan.kind == PRODUCTS and figure:
            figure = figure if plan.attention else self._adjusted(figure, out)
            self.products[when] += figure
        numbers[plan.kind] += figure
        return out

    def _tally(self, plan: _Plan, when: int) -> list[int]:
        tally = self._modules.tally()
        numbers = tally.get((plan.operator, when))
        if numbers is None:
            numbers = tally[plan.operator, when] = [0] * 5
        return numbers

    def _attention(self, plan: _Plan, args: Any, kwargs: Any) -> tuple[int, int]:
        """The FLOPs of a fused kernel's call, without and of what it recomputes."""
        arguments = {each.name: value for each, value in zip(plan.schema.arguments, args, strict=False)} | kwargs
        shapes = operators.attentions(plan.attention, arguments, self._pairs)
        if plan.attention.endswith("backward"):
            steps = [attention_step(shape, "flash") for shape in shapes]
            return sum(step.backward for step in steps), sum(step.recomputation for step in steps)
        return sum(attention_flops(shape) for shape in shapes), 0

    def _adjusted(self, figure: int, out: Any) -> int:
        """The FLOPs of a product of complex numbers, or of one within causal attention."""
        if any(tensor.is_complex() for tensor in _tensors(out)):
            figure *= COMPLEX_FACTOR
        if self._pairs == "causal":
            node: Any = torch._C._current_autograd_node()
            share = self.causal_share or (node.metadata.get(_CAUSAL_SHARE) if node is not None else None)
            figure = int(figure * (share or 1))
        return figure


def _plan(func: Any) -> _Plan:
    """How the calls of an operator are counted; found once for each but those that nobody knows."""
    name = _name(func)
    if isinstance(func, torch._ops.HigherOrderOperator):
        formula = _TORCHS.get(func)
        if name == "cond":
            plan = _Plan(name, "branch")
        elif formula is None:
            return _Plan(name, "count", formula=_one_call_if_it_reads_a_tensor)
        else:
            plan = _Plan(name, "count", PRODUCTS, _with_result(formula))
    elif name in _LAYOUT:
        plan = _Plan(name, "refuse")
    elif name != "prim.device" and _is_composite(func):
        plan = _Plan(name, "decompose")
    else:
        plan = _plan_of_kernel(func, name)
        if plan.kind == UNKNOWN:
            return plan
    _PLANS[func] = plan
    return plan


def _plan_of_kernel(func: Any, name: str) -> _Plan:
    packet, schema = func._overloadpacket, func._schema
    kind, formula = _classified(packet)
    plain, moves = _plain_name(packet), not _is_view(packet)
    each = plain.removeprefix("_foreach_")
    moves = moves and each not in operators.UNTOUCHED
    if formula is _nothing and not moves:
        return _Plan(name, "leave", kind)
    return _Plan(
        name,
        "count",
        kind,
        formula,
        plain if name == f"aten.{plain}" and plain in operators.ATTENTION else "",
        frozenset(each.name for each in schema.arguments if each.kwarg_only and each.is_write),
        each in operators.FIRST_UNREAD,
        each in operators.GATHERS,
        moves,
        schema,
    )


def _classified(packet: Any) -> tuple[int, operators.Formula]:
    """The kind and the formula of an operator that runs a kernel of its own."""
    namespace, _, in_place_name = _name(packet).rpartition(".")
    own = operators.PRODUCTS.get(in_place_name) if namespace == "aten" else None
    if own is not None:
        return PRODUCTS, own
    if packet in _TORCHS:
        return PRODUCTS, _with_result(_TORCHS[packet])
    if namespace not in ("aten", "prim", "prims"):
        return UNKNOWN, _one_call_if_it_reads_a_tensor
    name = _plain_name(packet)
    if name in operators.ATTENTION:
        return PRODUCTS, _nothing
    if name in operators.FUSED_ELEMENTWISE:
        return ELEMENTWISE, operators.FUSED_ELEMENTWISE[name]
    each = name.removeprefix("_foreach_")
    if _is_view(packet) or name.endswith("_copy") or each in operators.DATA_MOVEMENT:
        return ELEMENTWISE, _nothing
    if each != name:
        return ELEMENTWISE, lambda out, tensors, *args, **kwargs: operators.elements(tensors)
    plain = getattr(torch.ops.aten, name, packet)  # has tags that its form in place may lack
    pointwise = any(torch.Tag.pointwise in each.tags for each in _overloads(packet) + _overloads(plain))
    if pointwise or name in operators.REDUCTIONS | operators.POINTWISE:
        return ELEMENTWISE, _largest
    return UNKNOWN, _one_call_if_it_reads_a_tensor


# Questions about the layout of a tensor; a subclass (nested tensors) answers them itself.
_LAYOUT = {f"aten.{each}" for each in "dim is_non_overlapping_and_dense is_strides_like_format".split()}
_LAYOUT |= {
    f"aten.{sym}{each}" for each in "is_contiguous numel size storage_offset stride".split() for sym in ("", "sym_")
}
_LAYOUT |= {"prim.layout"}


def _is_composite(func: Any) -> bool:
    """Whether an operator is only a name for several others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _branch(predicate: Any, true: Any, false: Any, operands: Any) -> Any:
    """torch.cond: only the branch that is taken is dispatched."""
    return (true if predicate else false)(*operands)


def _with_result(formula: Callable[..., int]) -> operators.Formula:
    return lambda out, *args, **kwargs: formula(*args, **kwargs, out_val=out)


def _name(func: Any) -> str:
    """Such as aten.mm, without the overload."""
    return str(getattr(func, "_overloadpacket", func))


def _plain_name(packet: Any) -> str:
    """The name without the namespace and the mark of an operator in place."""
    return _name(packet).rpartition(".")[2].removesuffix("_")


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, overload) for overload in packet.overloads()]


@cache
def _is_view(packet: Any) -> bool:
    return any(each.is_view or torch.Tag.inplace_view in each.tags for each in _overloads(packet))


def _nothing(_out: Any, *_: Any, **__: Any) -> int:
    return 0


def _one_call_if_it_reads_a_tensor(_out: Any, *args: Any, **kwargs: Any) -> int:
    return int(bool(_tensors((args, kwargs))))


def _largest(out: Any, *args: Any, **kwargs: Any) -> int:
    """Elements of the largest tensor read or written: a reduction's input, the result of a broadcast."""
    tensors = _tensors((out, args, kwargs))
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return 0
    return max(tensor.numel() for tensor in tensors)


# --- tensors and their bytes ------------------------------------------------------------------------------------------


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in an argument, or in lists and tuples of them."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [tensor for each in tree for tensor in _tensors(each)]


class _NotStrided(Exception):
    """A sparse or nested tensor: neither its bytes nor its operators' FLOPs follow from its shape."""


def _bytes(tree: Any) -> int:
    """Bytes of the elements that these tensors have of their own."""
    if isinstance(tree, torch.Tensor):
        if tree.layout is not torch.strided or tree.is_nested:
            raise _NotStrided
        if 0 in tree.stride():  # expanded: the same element again and again
            own = prod(size for size, stride in zip(tree.shape, tree.stride(), strict=True) if stride or not size)
            return own * tree.element_size()
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return 0
    return sum(map(_bytes, tree))


def _updated_bytes(plan: _Plan, args: Any) -> int:
    """Bytes of the arguments that an operator without a result writes to (foreach in place, fused optimizers)."""
    if plan.schema is None:
        return 0
    arguments = zip(args, plan.schema.arguments, strict=False)
    # The gradients of a fused optimizer are marked as written because it may unscale them; it hardly ever does.
    return _bytes([value for value, of in arguments if of.is_write and of.name != "grads"])


# --- causal attention on the unfused path -----------------------------------------------------------------------------

_CAUSAL_SHARE = "accounting.counted: causal share"
_ATTEND_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_attend = functional.scaled_dot_product_attention


class _CausalScope(TorchFunctionMode):
    """Knows which products belong to a call of causal attention, when they run forward and when backward.

    Unfused, attention is dispatched as plain products of all pairs, half of which the mask then throws away. A function
    mode does not reach into functions that it was asked about (nn.MultiheadAttention, backward()); replacing the name
    in torch.nn.functional does not reach those who imported the function before. So both.
    """

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self._counter = counter
        self._replaced = functional.scaled_dot_product_attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.attend(*args, **kwargs or {}) if func is _attend else func(*args, **kwargs or {})

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        """Scaled dot-product attention whose products are known to be causal where they are."""
        given = dict(zip(_ATTEND_ARGUMENTS, args, strict=False)) | kwargs
        if not given.get("is_causal") or self._counter.causal_share is not None:
            return self._replaced(*args, **kwargs)
        queries, keys = int(given["query"].shape[-2]), int(given["key"].shape[-2])
        whole = Attention(1, 1, queries, 1, key_length=keys)
        left = sum(part.scores for part in operators.unmasked(whole))
        self._counter.causal_share = share = Fraction(left, whole.scores or 1)
        try:
            out = self._replaced(*args, **kwargs)
        finally:
            self._counter.causal_share = None
        _mark(out.grad_fn, {given[name].grad_fn for name in _ATTEND_ARGUMENTS[:3]}, share)
        return out


def _mark(node: Any, inputs: set[Any], share: Fraction) -> None:
    """Notes the share at all nodes from `node` back to those of the inputs."""
    ahead, seen = [node], {None, *inputs}
    while ahead:
        here = ahead.pop()
        if here not in seen:
            seen.add(here)
            here.metadata[_CAUSAL_SHARE] = share
            ahead += [before for before, _ in here.next_functions]
