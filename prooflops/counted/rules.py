"""Rules that count an operator's calls: its formula, its kind of work and its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from prooflops.counted.attention import ATTENTION, FLEX, VARLEN
from prooflops.counted.operators import OPERATORS, Formula, elements
from prooflops.counted.result import ELEMENTWISE, PRODUCTS, UNKNOWN
from prooflops.trace import tensors_in

# Kinds of operators that need no formula of their own. "data movement" only creates, copies, casts,
# reorders or describes data (views and their copies are recognised by their schema). "untouched"
# ones allocate, resize or describe. Of "first unread" ones the first argument only gives shape and
# dtype, or is overwritten; "gathers" read only one element of it for each that they return.
KINDS: dict[str, frozenset[str]] = {
    kind: frozenset(names)
    for kind, names in json.loads(
        Path(__file__).with_name("operator_kinds.json").read_text(encoding="utf-8")
    ).items()
}


class Rule(NamedTuple):
    """The rule that counts the calls of one operator."""

    operator: str
    is_counted: bool
    kind: int = UNKNOWN
    formula: Formula = lambda *_, **__: 0
    attention: str = ""  # the name of a fused kernel of attention
    results: frozenset[str] = frozenset()  # keyword arguments that receive the result
    first_unread: bool = False
    gathers: bool = False
    moves: bool = True
    schema: Any = None


RULES: dict[Any, Rule] = {}


def rule_of(func: Any) -> Rule:
    """The rule that counts the calls of an operator, cached for each known operator."""
    rule = RULES.get(func)
    if rule is None:
        rule = _rule(func)
        if not rule.is_counted or rule.kind != UNKNOWN:
            RULES[func] = rule
    return rule


def _rule(func: Any) -> Rule:
    name = _name(func)
    if isinstance(func, torch._ops.HigherOrderOperator):
        if name in FLEX:
            return Rule(name, True, PRODUCTS, attention=name)
        if func not in flop_registry:
            return Rule(name, True, formula=_one_call_if_it_reads_a_tensor)
        return Rule(name, True, PRODUCTS, _with_result(flop_registry[func]))
    packet, schema = func._overloadpacket, func._schema
    kind, formula = _kind_and_formula(packet)
    plain = _plain_name(packet)
    each = plain.removeprefix("_foreach_")
    moves = not _is_view(packet) and each not in KINDS["untouched"]
    if formula is nothing and not moves:
        return Rule(name, False, kind)
    return Rule(
        name,
        True,
        kind,
        formula,
        attention=plain if _is_attention(packet) else "",
        results=frozenset(
            each.name for each in schema.arguments if each.kwarg_only and each.is_write
        ),
        first_unread=each in KINDS["first unread"],
        gathers=each in KINDS["gathers"],
        moves=moves,
        schema=schema,
    )


def _kind_and_formula(packet: Any) -> tuple[int, Formula]:
    """The kind and the formula of an operator that runs a kernel of its own."""
    plain, is_torchs = (
        _plain_name(packet),
        _name(packet).rpartition(".")[0] in ("aten", "prim", "prims"),
    )
    if _is_attention(packet):
        return PRODUCTS, nothing  # the counter computes it
    not_in_place = getattr(torch.ops.aten, plain, packet) if is_torchs else packet
    for each in (packet, not_in_place):
        if _name(each) in OPERATORS:
            return OPERATORS[_name(each)]
        if each in flop_registry:
            return PRODUCTS, _with_result(flop_registry[each])
    if not is_torchs:
        return UNKNOWN, _one_call_if_it_reads_a_tensor
    each = plain.removeprefix("_foreach_")
    if _is_view(packet) or plain.endswith("_copy") or each in KINDS["data movement"]:
        return ELEMENTWISE, nothing
    if each != plain:
        return ELEMENTWISE, lambda out, tensors, *args, **kwargs: elements(tensors)
    # An operator in place may lack the tags of its plain form.
    pointwise = any(
        torch.Tag.pointwise in each.tags for each in _overloads(packet) + _overloads(not_in_place)
    )
    if pointwise or plain in KINDS["reductions"] | KINDS["pointwise without the tag"]:
        return ELEMENTWISE, _largest
    return UNKNOWN, _one_call_if_it_reads_a_tensor


def _is_attention(packet: Any) -> bool:
    """True if an operator of torch runs a fused kernel of attention."""
    plain = _plain_name(packet)
    namespace = "torch_attn" if plain in VARLEN else "aten"
    return plain in ATTENTION and _name(packet) == f"{namespace}.{plain}"


def _with_result(formula: Callable[..., int]) -> Formula:
    return lambda out, *args, **kwargs: formula(*args, **kwargs, out_val=out)


def _name(func: Any) -> str:
    """Such as aten.mm, without the overload."""
    return str(getattr(func, "_overloadpacket", func))


def _plain_name(packet: Any) -> str:
    """The name without the namespace and the final _ of an operator in place."""
    return _name(packet).rpartition(".")[2].removesuffix("_")


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, overload) for overload in packet.overloads()]


@cache
def _is_view(packet: Any) -> bool:
    return any(each.is_view or torch.Tag.inplace_view in each.tags for each in _overloads(packet))


def nothing(_out: Any, *_: Any, **__: Any) -> int:
    return 0


def _one_call_if_it_reads_a_tensor(_out: Any, *args: Any, **kwargs: Any) -> int:
    return int(bool(tensors_in((args, kwargs))))


def _largest(out: Any, *args: Any, **kwargs: Any) -> int:
    """Elements of the largest tensor read or written: a reduction's input, the result of a
    broadcast.
    """
    tensors = tensors_in((out, args, kwargs))
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return 0
    return max(tensor.numel() for tensor in tensors)
