"""Parameters, FLOPs and cache of a model, from its three lists.

`accounting.parts` defines the lists, and `accounting.layers` builds them. Only matrix products
count as FLOPs, as in torch's FlopCounterMode. Ignored: biases, norms, activations, softmax, rotary
embeddings and residual additions, a few FLOPs per activation where a matrix costs 2·dim. Every
function raises ValueError for a negative size, an unknown convention, a sequence beyond the learned
positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from accounting.checks import (
    at_least_one,
    checked,
    validated_bool,
    validated_choice,
    validated_model,
)
from accounting.flops import (
    FORWARD_PRODUCTS,
    INPUT_GRADIENT_PRODUCTS,
    MULTIPLY_ADD_FLOPS,
    WEIGHT_GRADIENT_PRODUCTS,
    StepFlops,
)
from accounting.formats import Dtype
from accounting.memory import element_bytes
from accounting.networks import (
    GPT2_SMALL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    DeepLinear,
    Transformer,
)
from accounting.parts import (
    AttentionLayers,
    Lengths,
    LinearMaps,
    OtherParameters,
    Part,
    length,
)
from accounting.roofline import Work

__all__ = [
    "GPT2_SMALL", "LLAMA3_8B", "LLAMA3_70B", "MIXTRAL_8X7B", "RULES",
    "DeepLinear", "Model", "Transformer", "active_parameter_count", "backward_flops", "cache_bytes",
    "decoding_work", "forward_flops", "parameter_count",
    "parameter_counts", "recompute_flops", "rule_flops", "step_flops",
]  # fmt: skip


class Model(Protocol):
    """Any object with three lists: linear maps, attentions and other parameters.

    >>> from types import SimpleNamespace
    >>> maps = [LinearMaps("head", 3, 5)]
    >>> mine = SimpleNamespace(linear_maps=maps, attentions=[], other_parameters=[])
    >>> parameter_count(mine), forward_flops(mine, batch=2)
    (15, 60)
    """

    @property
    def linear_maps(self) -> Iterable[LinearMaps]: ...

    @property
    def attentions(self) -> Iterable[AttentionLayers]: ...

    @property
    def other_parameters(self) -> Iterable[OtherParameters]: ...


# FLOPs per parameter and token by the rules of thumb: 2, 4, 6.
RULES = {
    "forward": MULTIPLY_ADD_FLOPS * FORWARD_PRODUCTS,
    "backward": MULTIPLY_ADD_FLOPS * (WEIGHT_GRADIENT_PRODUCTS + INPUT_GRADIENT_PRODUCTS),
}
RULES["step"] = RULES["forward"] + RULES["backward"]

# Parts outside the layers, which recomputation does not repeat.
OUTSIDE_LAYERS = ("input", "head")


@checked(model=validated_model)
def parameter_counts(model: Model) -> dict[str, int]:
    """Parameters by part: copies·(in·out + bias) per linear map, and all others.

    Absent parts are left out. Exact: equals `sum(p.numel() for p in net.parameters())` of the built
    net.

    >>> parameter_counts(GPT2_SMALL)["embedding"], sum(parameter_counts(GPT2_SMALL).values())
    (38597376, 124439808)
    """
    parts: Counter[str] = Counter()
    for each in _stored(model):
        parts[each.part] += each.parameters
    return {part: parameters for part, parameters in parts.items() if parameters}


@checked(model=validated_model)
def parameter_count(model: Model) -> int:
    """Parameters of `model`, each stored element once.

    A tied head adds none, and idle experts count in full.

    >>> parameter_count(LLAMA3_70B)
    70553706496
    """
    return sum(parameter_counts(model).values())


@checked(model=validated_model)
def active_parameter_count(model: Model) -> int:
    """Parameters that one token uses: all except in experts to which it is not sent.

    For a mixture of experts, this number is the N of 6ND. A token reads only one row of the input
    embedding, so published figures differ. DeepSeek-V3's 37 B and Mixtral's 12.9 B include it, as
    this function does; gpt-oss's 3.6 B does not.

    >>> active_parameter_count(MIXTRAL_8X7B)
    12879925248
    """
    idle = sum(
        (maps.layers * maps.copies - maps.used) * (maps.weights + maps.biases)
        for maps in model.linear_maps
    )
    return parameter_count(model) - idle


@checked("batch", model=validated_model)
def cache_bytes(model: Model, batch: int, context: Lengths, dtype: Dtype = "bf16") -> int:
    """Bytes that generation keeps for `batch` sequences of `context` tokens, in all layers.

    A cache has keys and values of each token in every layer (the last w − 1 tokens within a window
    of w). MLA keeps the compressed form. Exact for a cache without padding.
    Raises ValueError for a context beyond the learned positions.

    >>> cache_bytes(LLAMA3_70B, 1, 8192) / 2**30
    2.5
    """
    refuse_beyond_positions(model, context)
    elements = sum(each.cached_elements(context) for each in model.attentions)
    return element_bytes(batch * elements, dtype)


@checked("batch", model=validated_model)
def decoding_work(model: Model, batch: int, context: Lengths, dtype: Dtype = "bf16") -> Work:
    """FLOPs and bytes of one further token for each of `batch` sequences.

    The `intensity` of this work bounds generation. Each weight that a token uses is read once per
    batch, and each sequence's cache once. At most as many experts are read as the batch can reach.
    Ignored: activations, the new token's own cache entry, look-ups.

    >>> round(decoding_work(LLAMA3_70B, 1, 8192).intensity, 2)
    1.13
    >>> round(decoding_work(LLAMA3_70B, 64, 8192).intensity, 1)
    33.0
    """
    refuse_beyond_positions(model, context)
    flops, read = 0, 0
    for maps in model.linear_maps:
        flops += maps.product_flops(batch, 1)
        touched = min(max(maps.copies, 1), maps.uses * batch)
        read += maps.layers * touched * (maps.weights + maps.biases)
    read += sum(each.parameters for each in model.other_parameters if not each.looked_up)
    flops += sum(each.decoding_flops(batch, context) for each in model.attentions)
    return Work(
        flops,
        element_bytes(read, dtype) + cache_bytes(model, batch, context, dtype),
    )


@checked("batch", model=validated_model)
def forward_flops(model: Model, batch: int, sequence: Lengths = 1, *, pairs: str = "full") -> int:
    """FLOPs of a forward pass: 2·rows·(weights that multiply a row), and attention.

    `batch` sequences of `sequence` tokens. A deep linear net has no sequence: its examples are
    batch·sequence. `pairs` counts all pairs of query and key ("full") or the pairs that mask and
    window pass ("causal"): see `accounting.attention.attention_pairs`. Exact for matrix products.
    Ignored: elementwise operations, about 1/dim.

    >>> forward_flops(LLAMA3_70B, 1, 8192)
    1314637949698048
    """
    refuse_beyond_positions(model, sequence)
    products = sum(maps.product_flops(batch, sequence) for maps in model.linear_maps)
    return products + sum(each.forward_flops(batch, sequence, pairs) for each in model.attentions)


@checked("batch", model=validated_model, input_gradient=validated_bool)
def backward_flops(
    model: Model,
    batch: int,
    sequence: Lengths = 1,
    *,
    input_gradient: bool = False,
    pairs: str = "full",
    convention: str = "math",
) -> int:
    """FLOPs of a backward pass: twice the forward, minus the gradients that nothing needs.

    Each product y = x·w has two gradients of its own size, dw and dx. Nothing below the first
    parameter has a dx. A deep linear net whose data needs no gradient skips dx of its first layer,
    2·batch·inputs·dim. In a transformer every product has both, since the embedding below is
    trained (by additions, not products). `convention` is the attention's: see
    `accounting.attention.attention_backward_flops`.
    Raises ValueError for an `input_gradient` of token ids.

    >>> net = DeepLinear(dim=64, layers=2)
    >>> 2 * forward_flops(net, 10) - backward_flops(net, 10) == 2 * 10 * 64 * 64
    True
    """
    refuse_beyond_positions(model, sequence)
    trained, flops = _trained(model, input_gradient), 0
    for maps in model.linear_maps:
        of_a_layer = maps.product_flops(batch, sequence) // maps.layers
        flops += WEIGHT_GRADIENT_PRODUCTS * of_a_layer * maps.layers
        flops += INPUT_GRADIENT_PRODUCTS * of_a_layer * _layers_fed(maps, trained)
    for each in model.attentions:
        whole = each.backward_flops(batch, sequence, pairs, convention)
        flops += whole // each.layers * _layers_fed(each, trained)
    return flops


@checked("batch", early_stop=validated_bool, model=validated_model, every=at_least_one)
def recompute_flops(
    model: Model,
    batch: int,
    sequence: Lengths = 1,
    *,
    every: int = 1,
    early_stop: bool = False,
    pairs: str = "full",
) -> int:
    """FLOPs that the backward pass repeats: the forward pass of checkpointed layers.

    Only the input of every `every` layers is kept. Recomputing turns 6ND into 8ND, whatever `every`
    is. With `early_stop`, torch's default for the non-reentrant form, recomputation ends at a
    segment's last saved tensor and skips its last product. That is a block's down projection, or a
    linear net's last matrix. After experts it skips nothing, since the router's weights need their
    outputs. Exact with early stop if all layers are alike in this, or `every` is 1.

    >>> net = DeepLinear(dim=64, layers=4)
    >>> [recompute_flops(net, 8, every=k, early_stop=True) // (2 * 8 * 64 * 64) for k in (1, 2, 4)]
    [0, 2, 3]
    """
    refuse_beyond_positions(model, sequence)
    inside = [maps for maps in model.linear_maps if maps.part not in OUTSIDE_LAYERS]
    again: int = sum(maps.product_flops(batch, sequence) for maps in inside)
    again += sum(each.forward_flops(batch, sequence, pairs) for each in model.attentions)
    last = [maps for maps in inside if maps.ends_layer for _ in range(maps.layers)]
    if not early_stop:
        return again
    ends = {*range(every, len(last), every), len(last)} - {0}  # behind which layer a segment ends
    spared: int = sum(
        last[end - 1].product_flops(batch, sequence) // last[end - 1].layers for end in ends
    )
    return again - spared


@checked(
    "batch",
    "checkpoint_every",
    flags=("input_gradient", "early_stop"),
    model=validated_model,
)
def step_flops(
    model: Model,
    batch: int,
    sequence: Lengths = 1,
    *,
    input_gradient: bool = False,
    pairs: str = "full",
    convention: str = "math",
    checkpoint_every: int = 0,
    early_stop: bool = False,
) -> StepFlops:
    """FLOPs of a training step by purpose: forward, backward, and recomputation.

    Checkpointed layers are recomputed and, with the "flash" convention, so are the attention's
    scores. Both count for HFU, not for MFU. `backward` is the same in both conventions.
    `checkpoint_every` = 0 checkpoints nothing. Other options go to `backward_flops` and
    `recompute_flops`.
    Ignored: the optimizer, 10 to 20 FLOPs per parameter and step against the products' 6·tokens.

    >>> step_flops(LLAMA3_70B, 1, 8192).model
    3943913849094144
    """
    forward = forward_flops(model, batch, sequence, pairs=pairs)
    backward, ran = (
        backward_flops(
            model, batch, sequence, input_gradient=input_gradient, pairs=pairs, convention=each
        )
        for each in ("math", convention)
    )
    again = ran - backward
    if checkpoint_every:
        every = checkpoint_every
        again += recompute_flops(
            model, batch, sequence, every=every, early_stop=early_stop, pairs=pairs
        )
    return StepFlops(forward, backward, again)


def refuse_beyond_positions(model: Model, sequence: Lengths) -> None:
    """Raises ValueError for more tokens than a table of positions has rows.

    >>> refuse_beyond_positions(GPT2_SMALL, 1024)
    >>> refuse_beyond_positions(GPT2_SMALL, 1025)
    Traceback (most recent call last):
    ValueError: sequence must be at most learned_positions=1024, got 1025
    """
    longest = min(
        (table.longest for table in model.other_parameters if table.longest), default=None
    )
    if longest is not None and length("tokens", sequence) > longest:
        raise ValueError(
            f"sequence must be at most learned_positions={longest}, "
            f"got {length('tokens', sequence)}"
        )


def _stored(model: Model) -> tuple[Part, ...]:
    return (*model.other_parameters, *model.linear_maps)


def _trained(model: Model, input_gradient: bool) -> list[Part]:
    """The trained parts; with `input_gradient` also the data, as a part before all others."""
    if input_gradient and any(table.looked_up for table in model.other_parameters):
        raise ValueError(
            "input_gradient must be False for a model of token ids, which have none, got True"
        )
    data = [Part("data", place=-1)] if input_gradient else []
    return data + [each for each in _stored(model) if each.parameters]


def _layers_fed(part: Part, trained: list[Part]) -> int:
    """In how many of its layers `part` needs an input gradient: in all, in all but the first, or in
    none.
    """
    first = min((each.place for each in trained), default=part.block_end + 1)
    return part.layers if first < part.place else (part.layers - 1) * (first <= part.block_end)


@checked("parameters", "tokens")
def rule_flops(rule: str, parameters: int, tokens: int) -> int:
    """FLOPs by rule of thumb: "forward" 2ND, "backward" 4ND, "step" 6ND.

    The rule assumes that every parameter is a matrix weight with both gradients (2 FLOPs each for
    y, dw and dx) and that nothing else costs. Source: Kaplan et al. 2020, arXiv:2001.08361, section
    2.1.

    >>> f"{rule_flops('step', 70 * 10**9, 15 * 10**12):.1e}"
    '6.3e+24'
    """
    return RULES[validated_choice("rule", rule, RULES)] * parameters * tokens
