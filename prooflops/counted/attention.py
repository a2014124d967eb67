"""Attention, counted for all pairs of query and key, or for the pairs that the mask leaves.

The shapes of its arguments describe a fused kernel. Unfused attention is dispatched as plain
products, which `UnfusedMasks` recognises. The mask itself, a tensor or FlexAttention's blocks, is
read to count its pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from accounting.attention import Attention

# --- fused kernels --------------------------------------------------------------------------------

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


def attentions(name: str, arguments: Mapping[str, Any], pairs: str = "full") -> list[Attention]:
    """The shapes that a call of the kernel `name` (in `ATTENTION`) attends over.

    `arguments` are named as in its schema. There are several where sequences of different lengths
    lie one after the other, or where a causal mask splits one. Raises UnreadableError where their
    lengths, or the mask, have no values.
    """
    query, key, value = (arguments[each] for each in ("query", "key", "value"))
    dense = name.startswith("_scaled_dot_product") or name in FLEX
    widths: dict[str, Any] = {"head_dim": int(query.shape[-1]), "value_dim": int(value.shape[-1])}
    if dense:  # (..., head, position, width)
        rows = int(prod(query.shape[:-2]))
        shapes = [Attention(rows, 1, int(query.shape[-2]), key_length=int(key.shape[-2]), **widths)]
    else:
        # (batch, position, head, width), or (position, head, width) of sequences in a row
        lengths = zip(_lengths(arguments, "q", query), _lengths(arguments, "k", key), strict=True)
        shapes = [
            Attention(1, int(query.shape[-2]), queries, key_length=keys, **widths)
            for queries, keys in lengths
        ]
    if pairs == "full":
        return shapes
    mask = arguments.get("custom_mask_type")
    if not (mask or arguments.get("is_causal")):
        left = (
            flex_share(arguments["block_mask"])
            if name in FLEX
            else mask_share(_mask_tensor(arguments))
        )
        if left is None:
            raise UnreadableError
        return shapes if left == 1 else [_of_pairs(shape, left) for shape in shapes]
    # The dense kernels see torch's mask, which starts at the first key; the others end at the last
    # one.
    at_end = not dense if arguments.get("is_causal") else mask == 2
    return [part for shape in shapes for part in unmasked(shape, at_end)]


def unmasked(whole: Attention, at_end: bool = False) -> list[Attention]:
    """The pairs that a causal mask leaves.

    Query i sees the first i keys; with `at_end`, the last query sees all keys. The two differ where
    there are more keys than queries. Queries beyond the last key see all keys.
    """
    if at_end and whole.keys > whole.query_length:
        return [replace(whole, pairs="causal")]
    masked = min(whole.query_length, whole.keys)
    square = replace(whole, query_length=masked, key_length=masked, pairs="causal")
    return [square, replace(whole, query_length=whole.query_length - masked, key_length=whole.keys)]


def _of_pairs(whole: Attention, share: Fraction) -> Attention:
    """Attention over a share of pairs without the form of a window or triangle: queries with one
    key each.
    """
    return replace(whole, batch=1, heads=1, query_length=int(whole.scores * share), key_length=1)


def _mask_tensor(arguments: Mapping[str, Any]) -> Any:
    return next(
        (arguments[name] for name in ("attn_mask", "attn_bias", "bias") if name in arguments), None
    )


def mask_share(mask: Any) -> Fraction | None:
    """The share of pairs that a mask leaves; None if it cannot be read, as on the meta device.

    It leaves its true values, or those above the lowest number of its dtype. Reads the mask once,
    and waits for its device.
    """
    if mask is None or not mask.numel():
        return Fraction(1)
    if not _readable(mask):
        return None
    left = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    return Fraction(int(left.count_nonzero()), mask.numel())


@torch.no_grad()
def flex_share(blocks: Sequence[Any]) -> Fraction | None:
    """The share of pairs that FlexAttention's mask leaves; None if it cannot be read.

    Full blocks count whole, partial ones pair by pair. `blocks` is BlockMask.as_tuple(), followed
    by the tensors that the mask's function reads.
    """
    first = next(place for place, each in enumerate(blocks) if isinstance(each, torch.Tensor))
    last = next(place for place, each in enumerate(blocks) if callable(each))
    (queries, keys), (rows, columns) = blocks[:2], blocks[last - 2 : last]
    mask_mod, buffers, tables = blocks[last], blocks[last + 1 :], blocks[first : first + 4]
    if first != 2 or (queries, keys) == (1, 1):  # (1, 1): FlexAttention without a mask
        return Fraction(1)
    if not _readable(tables[0]):
        return None
    left = 0
    for counts, places, partial in ((*tables[:2], True), (*tables[2:], False)):
        where = product(*map(range, counts.shape)) if counts is not None else ()
        for batch, head, row in where:
            query = torch.arange(row * rows, min((row + 1) * rows, queries), device=counts.device)
            kept = places[batch, head, row, : counts[batch, head, row], None]
            key = torch.arange(columns, device=counts.device) + columns * kept
            key = key[key < keys]
            seen: Any = torch.ones((), dtype=torch.bool, device=counts.device)
            if partial:
                indices = (
                    torch.tensor(batch, device=counts.device),
                    torch.tensor(head, device=counts.device),
                )
                seen = mask_mod(*indices, query[:, None], key, *buffers)
            left += int(seen.expand(len(query), len(key)).count_nonzero())
    return Fraction(left, prod(tables[0].shape[:2]) * queries * keys)


def _readable(tensor: Any) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


class UnreadableError(ValueError):
    """The pairs that attend are unknown: the mask or the sequences' ends have no values."""


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
    if not _readable(tensor):
        raise UnreadableError
    return [int(each) for each in tensor]


# --- masked attention on the unfused path ---------------------------------------------------------

ATTEND = functional.scaled_dot_product_attention
UNMASKED_SHARE = "prooflops.counted: unmasked share"  # under this key a node of autograd keeps it
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class UnfusedMasks(TorchFunctionMode):
    """Finds the share of a product that a mask of attention leaves, forward and backward.

    Unfused attention multiplies all pairs, and the mask then discards some. A function mode does
    not reach into functions that it handles itself (nn.MultiheadAttention, backward()). Replacing
    the name in torch.nn.functional does not reach modules that imported the function before. So
    this does both.
    """

    def __init__(self) -> None:
        super().__init__()
        # None where the mask cannot be read, 1 where nothing is masked.
        self._share_of_running_call: Fraction | int | None = 1
        self._replaced = functional.scaled_dot_product_attention

    def __enter__(self) -> UnfusedMasks:
        functional.scaled_dot_product_attention = self.attend
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        functional.scaled_dot_product_attention = self._replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.attend(*args, **kwargs or {}) if func is ATTEND else func(*args, **kwargs or {})

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        """Runs scaled dot-product attention, and notes the share of products the mask leaves."""
        given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        share = _given_share(given) if self._share_of_running_call == 1 else Fraction(1)
        if share == 1:
            return self._replaced(*args, **kwargs)
        self._share_of_running_call = share
        try:
            out = self._replaced(*args, **kwargs)
        finally:
            self._share_of_running_call = 1
        _mark(out.grad_fn, {given[name].grad_fn for name in _ARGUMENTS[:3]}, share)
        return out

    def share(self, node: Any) -> Fraction | int:
        """The share of the product that is dispatched now, within autograd's `node` if any.

        Raises UnreadableError where the mask has no values.
        """
        share = self._share_of_running_call
        if share == 1 and node is not None:
            share = node.metadata.get(UNMASKED_SHARE, 1)
        if share is None:
            raise UnreadableError
        return share


def _given_share(given: Mapping[str, Any]) -> Fraction | None:
    """The share of pairs that the arguments of scaled dot-product attention leave."""
    if given["query"].is_nested:
        # Its own kernels are counted by the lengths of its sequences.
        return Fraction(1)
    if not given.get("is_causal"):
        return mask_share(given.get("attn_mask"))
    queries, keys = int(given["query"].shape[-2]), int(given["key"].shape[-2])
    whole = Attention(1, 1, queries, 1, key_length=keys)
    return Fraction(sum(part.scores for part in unmasked(whole)), whole.scores or 1)


def _mark(node: Any, inputs: set[Any], share: Fraction | None) -> None:
    """Notes the share at all nodes from `node` back to those of the inputs."""
    ahead, seen = [node], {None, *inputs}
    while ahead:
        here = ahead.pop()
        if here not in seen:
            seen.add(here)
            here.metadata[UNMASKED_SHARE] = share
            ahead += [before for before, _ in here.next_functions]
