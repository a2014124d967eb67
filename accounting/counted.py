"""FLOPs counted from the operations that a program really dispatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from accounting import operators

# One complex multiply-add is four real multiplications and four real additions.
COMPLEX_FACTOR = 4


class _Key(NamedTuple):
    """What a figure of the table is about; the table itself is torch's: module name -> key -> figure."""

    operator: str
    kind: str  # "product" and "elementwise": FLOPs; "unknown": calls; "moved": bytes
    backward: bool


class Count:
    """The FLOPs of a block of code; grows while the block runs, and may be read at any time.

    `total`, `forward`, `backward`, `by_operator` and `by_module` are the products alone (sums of multiply-adds:
    comparable to 2mkn and 6ND). `elementwise` is the separate sum of elementwise operations and reductions.
    `unknown` lists the operators that have no formula here, with the number of their calls: a total is complete only
    where it is empty.
    """

    def __init__(self, table: dict[str, dict[_Key, int]]) -> None:
        self._table = table

    def _sums(self, kind: str, backward: bool | None = None) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for key, figure in self._table.get("Global", {}).items():
            if key.kind == kind and backward in (None, key.backward):
                sums[key.operator] += figure
        return dict(sums)

    def _module_sums(self, kind: str, backward: bool | None = None) -> dict[str, int]:
        return {
            module: sum(n for key, n in figures.items() if key.kind == kind and backward in (None, key.backward))
            for module, figures in list(self._table.items())
        }

    @property
    def total(self) -> int:
        """FLOPs of all products."""
        return self.forward + self.backward

    @property
    def forward(self) -> int:
        """FLOPs of the products outside a backward pass (an optimizer's step included)."""
        return sum(self.forward_by_operator.values())

    @property
    def backward(self) -> int:
        """FLOPs of the products inside a backward pass; recomputation by activation checkpointing happens there too."""
        return sum(self.backward_by_operator.values())

    @property
    def by_operator(self) -> dict[str, int]:
        """FLOPs of the products per operator, such as {"aten.mm": 48}."""
        return self._sums("product")

    @property
    def forward_by_operator(self) -> dict[str, int]:
        return self._sums("product", backward=False)

    @property
    def backward_by_operator(self) -> dict[str, int]:
        return self._sums("product", backward=True)

    @property
    def by_module(self) -> dict[str, int]:
        """FLOPs of the products per module, submodules included; "Global" is everything."""
        return self._module_sums("product")

    @property
    def forward_by_module(self) -> dict[str, int]:
        return self._module_sums("product", backward=False)

    @property
    def backward_by_module(self) -> dict[str, int]:
        return self._module_sums("product", backward=True)

    @property
    def elementwise(self) -> int:
        """FLOPs of elementwise operations and reductions, one per element; in no other figure."""
        return sum(self.elementwise_by_operator.values())

    @property
    def elementwise_by_operator(self) -> dict[str, int]:
        return self._sums("elementwise")

    @property
    def elementwise_by_module(self) -> dict[str, int]:
        return self._module_sums("elementwise")

    @property
    def unknown(self) -> dict[str, int]:
        """Operators without a formula which are not known to be free, with the number of their calls."""
        return self._sums("unknown")

    @property
    def moved_bytes(self) -> int:
        """Bytes that the operators read and write, each tensor once; total / moved_bytes is the unfused intensity."""
        return sum(self.moved_bytes_by_operator.values())

    @property
    def moved_bytes_by_operator(self) -> dict[str, int]:
        return self._sums("moved")

    def __repr__(self) -> str:
        unknown = f", unknown={self.unknown}" if self.unknown else ""
        return f"Count(forward={self.forward}, backward={self.backward}, elementwise={self.elementwise}{unknown})"


@contextmanager
def flops() -> Iterator[Count]:
    """The FLOPs of the operations dispatched within the block, on any device, `meta` included.

    Built on torch's FlopCounterMode: its shape formulas, applied to the operators that autograd, modules and
    composite functions finally dispatch, so the backward pass is counted and not taken for twice the forward. What it
    leaves out or gets wrong comes from `accounting.operators`: mv, dot, addmv, addr, the in-place products, int8 and
    scaled products, the CPU's fused attention, recurrent layers, the backward of grouped convolutions, complex numbers.

    Conventions:
    - A multiply-add is 2 FLOPs, a complex one 8; an integer product counts as one of floating-point numbers.
    - Attention is counted in full, masked or not. A fused kernel's backward is 5 products (it recomputes the scores),
      that of the unfused path 4. Padding of a convolution is counted as data. A product's bias is ignored.
    - Elementwise operations and reductions are one FLOP per element of the largest tensor they read or write, whatever
      the function; a fused one (softmax, layer norm, a fused optimizer) as many as it fuses. Those without a
      floating-point tensor are none. Copies, casts, views, gathers and random numbers are none.
    - Forward is everything outside a backward pass, the optimizer's step and a loss included.
    - Modules are named as torch's ModuleTracker names them: the class of the outermost, then attributes. In a backward
      pass it knows a module by the gradients of its inputs and outputs, so a module whose input needs no gradient
      stays open until the pass ends.
    - Bytes moved are those of every tensor that an operator reads, once, and of every result, once (a scalar argument
      is none): what the memory sees if nothing is fused, cached or read twice.

    Domain of validity: shape formulas applied to what was really dispatched, in this thread and the autograd threads
    it starts. That catches a wrong formula of a model, not a wrong formula of an operator. Not seen: other threads,
    other processes, numpy, arithmetic inside a custom kernel (listed in `unknown` if torch dispatches it), and
    elementwise work inside a fused product (softmax in fused attention, gates of an LSTM). A function under
    torch.compile is counted as it runs uncompiled: torch does not compile beneath a counter; flex_attention does not
    run beneath one. Blocks may be nested; each counts all that happens within it.

    >>> layer = torch.nn.Linear(3, 4, bias=False)
    >>> with flops() as count:
    ...     layer(torch.ones(2, 3)).sum().backward()
    >>> count.forward, count.backward, count.by_operator
    (48, 48, {'aten.mm': 96})
    """
    counter = _Counter(display=False, custom_mapping=_products())
    with counter:
        yield Count(counter.flop_counts)


class _Counter(FlopCounterMode):
    """Torch's counter, with a finer key and with the operators that it passes over."""

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        kind, figure = "product", 0
        if func_packet in self.flop_registry:
            figure = self.flop_registry[func_packet](*args, **kwargs, out_val=out)
            if any(leaf.is_complex() for leaf in _tensors(out)):
                figure *= COMPLEX_FACTOR
        else:
            kind, formula = _classified(func_packet)
            figure = formula(out, *args, **_without_out(kwargs))
        self._add(func_packet, kind, figure)
        self._add(func_packet, "moved", _moved_bytes(func_packet, out, args, kwargs))
        return out

    def _add(self, packet: Any, kind: str, figure: int) -> None:
        if figure:
            key = _Key(_name(packet), kind, self.mod_tracker.is_bw)
            for module in set(self.mod_tracker.parents):
                self.flop_counts[module][key] += figure


# FlopCounterMode has no public hook for operators without a formula. This one is the same in 2.6 to 2.13; were it
# renamed, every count would silently lack what it adds.
if not hasattr(FlopCounterMode, "_count_flops"):
    raise ImportError(
        f"accounting.counted does not know torch {torch.__version__}: FlopCounterMode._count_flops is gone"
    )


@cache
def _products() -> dict[Any, Callable[..., int]]:
    """The formulas of `operators.PRODUCTS` that this torch has operators for, in the form torch's registry takes."""

    def raw(formula: operators.Formula) -> Callable[..., int]:
        def flop_formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
            return formula(out_val, *args, **_without_out(kwargs))

        flop_formula._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
        return flop_formula

    return {
        getattr(torch.ops.aten, name): raw(formula)
        for name, formula in operators.PRODUCTS.items()
        if hasattr(torch.ops.aten, name)
    }


@cache
def _classified(packet: Any) -> tuple[str, operators.Formula]:
    """The kind and the formula of an operator that is no product."""
    namespace, _, _ = _name(packet).rpartition(".")
    if namespace not in ("aten", "prim", "prims") or not isinstance(packet, torch._ops.OpOverloadPacket):
        return "unknown", _one_call_if_it_reads_a_tensor
    name = _plain_name(packet)
    if name in operators.FUSED_ELEMENTWISE:
        return "elementwise", operators.FUSED_ELEMENTWISE[name]
    each = name.removeprefix("_foreach_")
    if _is_view(packet) or name.endswith("_copy") or each in operators.DATA_MOVEMENT:
        return "elementwise", _nothing
    if each != name:
        return "elementwise", lambda out, tensors, *args, **kwargs: operators.elements(tensors)
    plain = getattr(torch.ops.aten, name, packet)  # has tags that its form in place may lack
    pointwise = any(torch.Tag.pointwise in each.tags for each in _overloads(packet) + _overloads(plain))
    if pointwise or name in operators.REDUCTIONS | operators.POINTWISE:
        return "elementwise", _largest
    return "unknown", _one_call_if_it_reads_a_tensor


def _plain_name(packet: Any) -> str:
    """The name without the namespace and the mark of an operator in place."""
    return _name(packet).rpartition(".")[2].removesuffix("_")


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, overload) for overload in packet.overloads()]


@cache
def _is_view(packet: Any) -> bool:
    return isinstance(packet, torch._ops.OpOverloadPacket) and any(
        each.is_view or torch.Tag.inplace_view in each.tags for each in _overloads(packet)
    )


def _moved_bytes(packet: Any, out: Any, args: Any, kwargs: Any) -> int:
    """Bytes of the tensors that an operator reads and of those it writes; one that it updates is both."""
    name = _plain_name(packet).removeprefix("_foreach_")
    if name in operators.UNTOUCHED or _is_view(packet):
        return 0
    read = _tensors((args[1:] if name in operators.FIRST_UNREAD else args, _without_out(kwargs)))
    written = _tensors(out) or _updated(packet, args)
    if name in operators.GATHERS:
        read = read[1:] + written
    return sum(tensor.numel() * tensor.element_size() for tensor in read + written)


def _updated(packet: Any, args: Any) -> list[torch.Tensor]:
    """The arguments that an operator without a result writes to (foreach in place, fused optimizers)."""
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return []
    arguments = zip(args, _overloads(packet)[0]._schema.arguments, strict=False)
    # The gradients of a fused optimizer are marked as written because it may unscale them; it hardly ever does.
    return _tensors([value for value, of in arguments if of.is_write and of.name != "grads"])


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


def _without_out(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that matter: what `out=` receives is the result, too."""
    return {name: value for name, value in kwargs.items() if name != "out"}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _name(packet: Any) -> str:
    return str(packet) if isinstance(packet, torch._ops.OpOverloadPacket) else getattr(packet, "__name__", str(packet))
