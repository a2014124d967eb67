"""FLOPs of scaled dot-product attention: products of queries with keys and values.

Every function raises ValueError for a negative size, an unknown convention or rule.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from accounting.checks import at_least_one, checked, instance_of, validate_fields, validated_choice
from accounting.flops import MULTIPLY_ADD_FLOPS, StepFlops

PAIRS = ("full", "causal")

# Products over all pairs of query and key: the number of the key's width, and of the value's.
ATTENTION_PRODUCTS = {
    "forward": (1, 1),  # s = q·kᵀ; o = p·v
    "math": (2, 2),  # dq = ds·k, dk = dsᵀ·q; dp = do·vᵀ, dv = pᵀ·do
    "flash": (3, 2),  # and s = q·kᵀ again, since p was not kept
}
# How a backward pass is counted.
CONVENTIONS = ("math", "flash")


@dataclass(frozen=True)
class Attention:
    """The shape of attention: `batch` sequences; in each, `heads` heads score queries against keys.

    `head_dim` is the width of a query and a key. Groups of heads share `kv_heads` heads of keys and
    values (GQA; 1 is MQA). With a `window` of w a query sees the last w keys; `pairs` says which
    pairs of query and key count: see `attention_pairs`. Raises ValueError unless kv_heads divides
    heads.

    >>> Attention(2, 12, 1024, 64).scores
    25165824
    >>> Attention(2, 12, 1, 64, key_length=1024, kv_heads=4).scores
    24576
    """

    batch: int
    heads: int
    query_length: int
    head_dim: int
    _: KW_ONLY
    key_length: int | None = None  # None: query_length
    kv_heads: int | None = None  # None: heads
    value_dim: int | None = None  # None: head_dim
    window: int | None = None  # None: all keys
    pairs: str = "full"

    def __post_init__(self) -> None:
        optional = ("key_length", "kv_heads", "value_dim", "window")
        given = (name for name in optional if getattr(self, name) is not None)
        validate_fields(self, "batch", "heads", "query_length", "head_dim", *given)
        if self.heads and (not self.shared_heads or self.heads % self.shared_heads):
            raise ValueError(
                "heads must be a multiple of kv_heads, "
                f"got heads={self.heads} and kv_heads={self.shared_heads}"
            )
        _ = self.scores  # raises for a rule or lengths that have none

    @property
    def keys(self) -> int:
        """Keys of a sequence."""
        return self.query_length if self.key_length is None else self.key_length

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def value_width(self) -> int:
        """The width of a value and of an output."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def scores(self) -> int:
        """Pairs of query and key that count, over all heads and sequences."""
        each = attention_pairs(self.query_length, self.keys, self.pairs, self.window)
        return self.batch * self.heads * each

    def product_flops(self, part: str) -> int:
        """FLOPs of one of `ATTENTION_PRODUCTS`: 2·scores·(sum of the widths)."""
        of_key_width, of_value_width = ATTENTION_PRODUCTS[
            validated_choice("part", part, ATTENTION_PRODUCTS)
        ]
        return (
            MULTIPLY_ADD_FLOPS
            * self.scores
            * (of_key_width * self.head_dim + of_value_width * self.value_width)
        )


@checked("query_length", "key_length", window=at_least_one)
def attention_pairs(
    query_length: int,
    key_length: int | None = None,
    pairs: str = "full",
    window: int | None = None,
) -> int:
    """Scored pairs of query and key: Q·K for "full", the pairs that the mask passes for "causal".

    Causal with equal lengths S: S·(S + 1)/2, since position i sees i of them. A window of w ≤ S
    lets a query see the last w keys including its own: S·w − w·(w − 1)/2. With more keys than
    queries (a cache) the last query sees all keys: Q·K − Q·(Q − 1)/2 without a window.
    Raises ValueError for fewer keys than queries unless all pairs count.
    Source: Jiang et al., Mistral 7B (2023), section 2, arXiv:2310.06825.

    >>> attention_pairs(4), attention_pairs(4, pairs="causal")
    (16, 10)
    >>> attention_pairs(1, 100, pairs="causal")
    100
    >>> attention_pairs(4, pairs="causal", window=2)
    7
    """
    keys = query_length if key_length is None else key_length
    widest = keys if window is None else window
    if validated_choice("pairs", pairs, PAIRS) == "full":
        return query_length * keys
    if keys < query_length:
        raise ValueError(
            f"key_length must be at least query_length ({query_length}) for causal pairs, "
            f"got {keys}"
        )

    def seen(positions: int) -> int:
        """Pairs of the first `positions` queries."""
        whole = min(positions, widest)
        return positions * whole - whole * (whole - 1) // 2

    return seen(keys) - seen(keys - query_length)


@checked(attention=instance_of(Attention))
def attention_flops(attention: Attention) -> int:
    """FLOPs of the forward pass: 2·batch·heads·pairs·(head_dim + value_dim), usually 4·B·H·S²·d.

    Each pair of query and key takes two products: the score q·k and the weighted value p·v. A
    kernel that masks afterwards computes the "full" pairs, and most MFU figures assume them even
    for causal models. "causal" counts the S·(S + 1)/2 that are needed. Sharing keys and values
    among heads saves bytes and projections, no FLOPs here.
    Ignored: scale, mask and softmax, about 5 per pair, 5/(4·d): 1 % at d = 128.
    Source: Chowdhery et al., PaLM (2022), appendix B, arXiv:2204.02311: 12·L·H·Q·T per token with
    the backward pass.

    >>> attention_flops(Attention(2, 12, 1024, 64))
    6442450944
    """
    return attention.product_flops("forward")


@checked(attention=instance_of(Attention))
def attention_backward_flops(attention: Attention, convention: str = "math") -> int:
    """FLOPs of the gradients of q, k and v.

    The backward pass has four products, twice the forward ("math"), or five ("flash"): dp = do·vᵀ,
    dv = pᵀ·do, dq = ds·k, dk = dsᵀ·q. A flash kernel keeps no probabilities and repeats s = q·kᵀ:
    2.5 times the forward. The fifth product is recomputation, which counts for HFU, not for MFU.
    Ignored: the softmax's gradient, and under GQA the sum over the heads of a group: (heads −
    kv_heads)·keys·d each.
    Source: Dao, FlashAttention-2 (2023), section 4.1, arXiv:2307.08691: backward 2.5 times the
    forward.

    >>> attention = Attention(2, 12, 1024, 64)
    >>> attention_backward_flops(attention, "math") / attention_flops(attention)
    2.0
    >>> attention_backward_flops(attention, "flash") / attention_flops(attention)
    2.5
    """
    return attention.product_flops(validated_choice("convention", convention, CONVENTIONS))


def attention_step(attention: Attention, convention: str = "math") -> StepFlops:
    """FLOPs of attention in a training step; scores that "flash" repeats count as recomputation.

    >>> step = attention_step(Attention(2, 12, 1024, 64), "flash")
    >>> step.backward / step.forward, step.recomputation / step.forward
    (2.0, 0.5)
    """
    math = attention_backward_flops(attention)
    return StepFlops(
        attention_flops(attention), math, attention_backward_flops(attention, convention) - math
    )
