"""Attention, counted by one of two conventions: all pairs of query and key, or the pairs that the mask leaves.

The shapes of its arguments describe a fused kernel. Unfused attention is dispatched as plain products, which
`UnfusedMasks` recognises. A mask that is a tensor is read to count its pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from accounting.attention import Attention

# --- fused kernels ----------------------------------------------------------------------------------------------------

_SCALED = """
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable
""".split()
ATTENTION = frozenset((*_SCALED, *(f"{name}_backward" for name in _SCALED)))


def attentions(arguments: Mapping[str, Any], pairs: str = "full") -> list[Attention]:
    """The shapes that a fused kernel attends over, given its arguments by their schema's names.

    There are two where a causal mask splits one.
    """
    query, key, value = (arguments[each].shape for each in ("query", "key", "value"))  # (..., head, position, width)
    rows, queries, width = int(prod(query[:-2])), int(query[-2]), int(query[-1])
    whole = Attention(rows, 1, queries, width, key_length=int(key[-2]), value_dim=int(value[-1]))
    if pairs == "full":
        return [whole]
    if arguments.get("is_causal"):
        return unmasked(whole)
    left = mask_share(next((arguments[name] for name in ("attn_mask", "attn_bias") if name in arguments), None))
    # A share of the pairs that no window or triangle describes counts as queries of one key each.
    scores = int(whole.scores * left)
    return [whole] if left == 1 else [replace(whole, batch=1, heads=1, query_length=scores, key_length=1)]


def unmasked(whole: Attention) -> list[Attention]:
    """The pairs that torch's causal mask leaves: query i sees the first i keys; beyond the last, all keys."""
    masked = min(whole.query_length, whole.keys)
    square = replace(whole, query_length=masked, key_length=masked, pairs="causal")
    return [square, replace(whole, query_length=whole.query_length - masked, key_length=whole.keys)]


def mask_share(mask: Any) -> Fraction:
    """The share of pairs that a mask leaves: its true values, or those above the lowest number of its dtype.

    Reads the mask once, and waits for its device. Where it cannot be read (on the meta device) all pairs count.
    """
    if mask is None or mask.device.type == "meta" or isinstance(mask, FakeTensor) or not mask.numel():
        return Fraction(1)
    left = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    return Fraction(int(left.count_nonzero()), mask.numel())


# --- masked attention on the unfused path -----------------------------------------------------------------------------

ATTEND = functional.scaled_dot_product_attention
UNMASKED_SHARE = "accounting.counted: unmasked share"  # under this key a node of autograd keeps it
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class UnfusedMasks(TorchFunctionMode):
    """Finds the share of a product that belongs to the pairs left by a mask of attention, forward and backward.

    Unfused attention multiplies all pairs, and the mask then discards some. A function mode does not reach into
    functions that it was asked about (nn.MultiheadAttention, backward()). Replacing the name in torch.nn.functional
    does not reach modules that imported the function before. So this does both.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: Fraction | None = None
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
        """Runs scaled dot-product attention and notes the share of its products that the mask leaves."""
        given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        share = Fraction(1) if self._running is not None else _given_share(given)
        if share == 1:
            return self._replaced(*args, **kwargs)
        self._running = share
        try:
            out = self._replaced(*args, **kwargs)
        finally:
            self._running = None
        _mark(out.grad_fn, {given[name].grad_fn for name in _ARGUMENTS[:3]}, share)
        return out

    def share(self, node: Any) -> Fraction | int:
        """The share of the product that is dispatched now, within autograd's `node` if any."""
        if self._running is not None:
            return self._running
        return node.metadata.get(UNMASKED_SHARE, 1) if node is not None else 1


def _given_share(given: Mapping[str, Any]) -> Fraction:
    """The share of pairs that the arguments of scaled dot-product attention leave."""
    if not given.get("is_causal"):
        return mask_share(given.get("attn_mask"))
    queries, keys = int(given["query"].shape[-2]), int(given["key"].shape[-2])
    whole = Attention(1, 1, queries, 1, key_length=keys)
    return Fraction(sum(part.scores for part in unmasked(whole)), whole.scores or 1)


def _mark(node: Any, inputs: set[Any], share: Fraction) -> None:
    """Notes the share at all nodes from `node` back to those of the inputs."""
    ahead, seen = [node], {None, *inputs}
    while ahead:
        here = ahead.pop()
        if here not in seen:
            seen.add(here)
            here.metadata[UNMASKED_SHARE] = share
            ahead += [before for before, _ in here.next_functions]
