"""Fused kernels of attention, whose arguments' shapes say what they multiply.

All pairs of query and key count, masked or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from accounting.attention import Attention

_SCALED = """
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_efficient_attention
_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable
""".split()
_FORWARD = (*_SCALED, "_flash_attention_forward", "_efficient_attention_forward")
_BACKWARD = (
    *(f"{name}_backward" for name in _SCALED),
    "_flash_attention_backward",
    "_efficient_attention_backward",
)
FLEX = ("flex_attention", "flex_attention_backward")  # operators of higher order, without a schema
# Operators of torch.nn.attention.varlen, which call a fused kernel.
VARLEN = ("_varlen_attn", "_varlen_attn_out", "_varlen_attn_backward")
ATTENTION = frozenset((*_FORWARD, *_BACKWARD, *FLEX, *VARLEN))


def attentions(name: str, arguments: Mapping[str, Any]) -> list[Attention]:
    """The shapes that a call of the kernel `name` (in `ATTENTION`) attends over.

    `arguments` are named as in its schema. There are several where sequences of different lengths
    lie one after the other. Raises UnreadableError where their lengths have no values.
    """
    query, key, value = (arguments[each] for each in ("query", "key", "value"))
    widths: dict[str, Any] = {"head_dim": int(query.shape[-1]), "value_dim": int(value.shape[-1])}
    if name.startswith("_scaled_dot_product") or name in FLEX:  # (..., head, position, width)
        rows = int(prod(query.shape[:-2]))
        return [Attention(rows, 1, int(query.shape[-2]), key_length=int(key.shape[-2]), **widths)]
    # (batch, position, head, width), or (position, head, width) of sequences in a row
    lengths = zip(_lengths(arguments, "q", query), _lengths(arguments, "k", key), strict=True)
    return [
        Attention(1, int(query.shape[-2]), queries, key_length=keys, **widths)
        for queries, keys in lengths
    ]


class UnreadableError(ValueError):
    """The pairs that attend are unknown: the sequences' ends have no values."""


def _lengths(arguments: Mapping[str, Any], side: str, operand: Any) -> list[int]:
    """The lengths of the sequences of queries ("q") or keys ("k")."""
    if side == "k" and arguments.get("seqused_k") is not None:
        return _values(arguments["seqused_k"])
    names = f"cum_seq_{side}", f"cu_seqlens_{side}", f"cu_seq_{side}"
    bounds = next((arguments[name] for name in names if name in arguments), None)
    if bounds is None:
        return [int(operand.shape[1])] * int(operand.shape[0])
    places = _values(bounds)
    return [end - start for start, end in pairwise(places)]


def _values(tensor: Any) -> list[int]:
    if tensor.device.type == "meta" or isinstance(tensor, FakeTensor):
        raise UnreadableError
    return [int(each) for each in tensor]
