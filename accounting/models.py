"""What follows from a model's three lists: its parameters, its FLOPs, its cache.

A model is what it multiplies by, what it attends over and what else it stores (`accounting.parts`); any object with
these three lists is one. Builders are in `accounting.families`.
FLOPs are those of matrix products, as torch's FlopCounterMode counts them: biases, norms, activations, softmax, rotary
embeddings and residual additions are left out. They cost a few FLOPs per activation where a matrix costs 2·dim.
Every function raises ValueError for a negative size, an unknown convention, a sequence beyond the learned positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from accounting.checks import checked, validated_bool, validated_choice, validated_int, validated_model
from accounting.families import (
    GPT2_SMALL,
    GPT2_XL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    NORMS,
    DeepLinear,
    Transformer,
    from_config,
    with_adapters,
)
from accounting.flops import (
    FORWARD_PRODUCTS,
    INPUT_GRADIENT_PRODUCTS,
    MULTIPLY_ADD_FLOPS,
    WEIGHT_GRADIENT_PRODUCTS,
    StepFlops,
)
from accounting.formats import Dtype
from accounting.memory import ModelState, element_bytes, model_state
from accounting.optimizers import Optimizer, Recipe, recipe_of
from accounting.parts import OPERANDS, Lengths, LinearMaps, Mixing, OtherParameters, Part, length
from accounting.roofline import Work

__all__ = [
    "GPT2_SMALL", "GPT2_XL", "LLAMA3_8B", "LLAMA3_70B", "MIXTRAL_8X7B", "NORMS", "RULES", "DeepLinear", "Model",
    "Transformer", "active_parameter_count", "backward_flops", "cache_bytes", "decoding_work", "fine_tuning_state",
    "forward_flops", "from_config", "matmul_parameter_count", "parameter_count", "parameter_counts",
    "recompute_flops", "rule_errors", "rule_flops", "step_flops", "trainable_parameter_count", "with_adapters",
]  # fmt: skip


class Model(Protocol):
    """Any object with these three lists.

    >>> from types import SimpleNamespace
    >>> mine = SimpleNamespace(linear_maps=[LinearMaps("head", 3, 5)], attentions=[], other_parameters=[])
    >>> parameter_count(mine), forward_flops(mine, batch=2)
    (15, 60)
    """

    @property
    def linear_maps(self) -> Iterable[LinearMaps]:
        """Every product with a weight."""

    @property
    def attentions(self) -> Iterable[Mixing]:
        """Every product of activations with one another."""

    @property
    def other_parameters(self) -> Iterable[OtherParameters]:
        """Every parameter that is in no linear map."""


# FLOPs per parameter and token by the rules of thumb: 2, 4, 6.
RULES = {
    "forward": MULTIPLY_ADD_FLOPS * FORWARD_PRODUCTS,
    "backward": MULTIPLY_ADD_FLOPS * (WEIGHT_GRADIENT_PRODUCTS + INPUT_GRADIENT_PRODUCTS),
}
RULES["step"] = RULES["forward"] + RULES["backward"]

# What is not repeated when layers are recomputed: what stands before and behind them.
OUTSIDE_LAYERS = ("input", "head")


# Parameters


@checked(model=validated_model)
def parameter_counts(model: Model) -> dict[str, int]:
    """Parameters of `model` by part: of each linear map copies·(in·out + bias), and all that is no linear map.

    Exact: what `sum(p.numel() for p in net.parameters())` says of the built net. Parts that a model lacks are absent.

    >>> parameter_counts(GPT2_SMALL)["embedding"], sum(parameter_counts(GPT2_SMALL).values())
    (38597376, 124439808)
    """
    parts: Counter[str] = Counter()
    for each in _stored(model):
        parts[each.part] += each.parameters
    return {part: parameters for part, parameters in parts.items() if parameters}


@checked(model=validated_model)
def parameter_count(model: Model) -> int:
    """Parameters of `model`, each stored element once: a tied head adds none, idle experts count in full.

    >>> parameter_count(LLAMA3_70B)
    70553706496
    """
    return sum(parameter_counts(model).values())


@checked(model=validated_model, input_embedding=validated_bool)
def active_parameter_count(model: Model, *, input_embedding: bool = True) -> int:
    """Parameters that one token meets: all but those of the experts it is not sent to.

    The N of 6ND for a mixture of experts. Published figures differ in the embedding of the input, of which a token
    reads one line: DeepSeek-V3's 37 B and Mixtral's 12.9 B count it in full, gpt-oss's 3.6 B leaves it out, which
    `input_embedding=False` does unless the head is the same matrix.

    >>> active_parameter_count(MIXTRAL_8X7B), active_parameter_count(MIXTRAL_8X7B, input_embedding=False)
    (12879925248, 12748853248)
    """
    idle = sum((maps.layers * maps.copies - maps.met) * (maps.weights + maps.biases) for maps in model.linear_maps)
    looked_up = 0 if input_embedding else _looked_up(model)
    return parameter_count(model) - idle - looked_up


@checked(model=validated_model)
def matmul_parameter_count(model: Model) -> int:
    """Weights that one token is multiplied by: each costs exactly 2 FLOPs forward.

    Against `active_parameter_count` it leaves out biases, norms and the embeddings, which are looked up; the head is
    counted also where it is the embedding's own matrix (tied).

    >>> from dataclasses import replace
    >>> matmul_parameter_count(GPT2_SMALL) - matmul_parameter_count(replace(GPT2_SMALL, tied_embedding=False))
    0
    """
    return sum(maps.layers * maps.uses * maps.weights for maps in model.linear_maps)


@checked(model=validated_model)
def trainable_parameter_count(model: Model) -> int:
    """Parameters that are trained: all that is not frozen. Gradients, optimizer state and master copies are theirs.

    >>> trainable_parameter_count(with_adapters(LLAMA3_8B, rank=16))
    6815744
    """
    return parameter_count(model) - sum(each.parameters * each.frozen for each in _stored(model))


@checked(model=validated_model)
def fine_tuning_state(
    model: Model, optimizer: str | Optimizer = "adamw", recipe: str | Recipe = "fp32", frozen_dtype: Dtype | None = None
) -> ModelState:
    """Bytes of model state where some parameters are frozen: those are stored, and nothing besides.

    What is trained is kept as `accounting.memory.model_state` says, what is frozen in `frozen_dtype` (None: the
    recipe's own; a 4-bit one for QLoRA). Ignored: the scales of a quantised format.

    >>> fine_tuning_state(with_adapters(LLAMA3_8B, rank=16), recipe="bf16-fp32-master").total / 1e9
    16.1695744
    """
    trained = trainable_parameter_count(model)
    state, dtype = model_state(trained, optimizer, recipe), frozen_dtype or recipe_of(recipe).parameters
    return replace(state, parameters=state.parameters + element_bytes(parameter_count(model) - trained, dtype))


# Generation


@checked("batch", model=validated_model, latents=validated_bool)
def cache_bytes(model: Model, batch: int, context: Lengths, dtype: Dtype = "bf16", *, latents: bool = True) -> int:
    """Bytes that generation keeps of `batch` sequences of `context` tokens, in all layers.

    Of each token keys and values of every layer that attends causally, within a window of w the last w − 1; those of an
    encoder's output; of a recurrent layer its state, however long the sequence. Where there is a compressed form (MLA)
    that is kept, unless `latents` is False. Exact for a cache without padding whose states have the same dtype.

    >>> cache_bytes(LLAMA3_70B, 1, 8192) / 2**30
    2.5
    """
    elements = sum(each.cached_elements(context, latents) for each in model.attentions)
    return element_bytes(validated_int("batch", batch) * elements, dtype)


@checked("batch", model=validated_model, latents=validated_bool)
def decoding_work(model: Model, batch: int, context: Lengths, dtype: Dtype = "bf16", *, latents: bool = True) -> Work:
    """FLOPs and bytes of one further token of each of `batch` sequences; its `intensity` is what bounds generation.

    Every weight that a token meets is read once for the batch, and the cache of each sequence once: of experts as many
    as the batch can be sent to at most. Ignored: activations, what the new token adds to the cache, look-ups.

    >>> round(decoding_work(LLAMA3_70B, 1, 8192).intensity, 2), round(decoding_work(LLAMA3_70B, 64, 8192).intensity, 1)
    (1.13, 33.0)
    """
    batch, flops, read = _validated_batch(model, batch, context), 0, 0
    for maps in model.linear_maps:
        if maps.rows == "tokens":
            flops += maps.product_flops(batch, 1)
            touched = min(max(maps.copies, 1), maps.uses * batch)
            read += maps.layers * touched * (maps.weights + maps.biases)
    read += sum(each.parameters for each in model.other_parameters if not each.looked_up)
    flops += sum(each.decoding_flops(batch, context, latents) for each in model.attentions)
    return Work(flops, element_bytes(read, dtype) + cache_bytes(model, batch, context, dtype, latents=latents))


# FLOPs


@checked("batch", model=validated_model)
def forward_flops(model: Model, batch: int, sequence: Lengths = 1, *, pairs: str = "full") -> int:
    """FLOPs of a forward pass: 2·rows·(weights a row meets), and the attention of every layer.

    `batch` sequences of `sequence` tokens, or of {"source": ..., "tokens": ...} with an encoder; a deep linear net has
    no sequence, its examples are batch·sequence. `pairs` of query and key are counted in "full", or in "causal" those
    that mask and window let through, see `accounting.attention.attention_pairs`.
    Exact for matrix products; the look-up of an embedding is none. Ignored: everything elementwise, about 1/dim.

    >>> forward_flops(DeepLinear(dim=64, layers=2), batch=10) == 2 * 10 * (2 * 64 * 64 + 64)
    True
    >>> forward_flops(LLAMA3_70B, 1, 8192)
    1314637949698048
    """
    batch = _validated_batch(model, batch, sequence)
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

    Each product y = x·w has two gradients of its own size, dw and dx. A frozen matrix has no dw, and nothing has a dx
    below the first trained parameter: a deep linear net whose data needs no gradient skips that of its first layer,
    2·batch·inputs·dim. In a transformer every product has both: the rows of the embedding need their gradient, which
    itself is an addition, no product. `convention` is the attention's: "math" or "flash", see
    `accounting.attention.attention_backward_flops`. Raises ValueError for an `input_gradient` of token ids.

    >>> net = DeepLinear(dim=64, layers=2)
    >>> 2 * forward_flops(net, 10) - backward_flops(net, 10) == 2 * 10 * 64 * 64
    True
    """
    batch = _validated_batch(model, batch, sequence)
    trained, flops = _trained(model, input_gradient), 0
    for maps in model.linear_maps:
        of_a_layer = maps.product_flops(batch, sequence) // maps.layers
        flops += 0 if maps.frozen else WEIGHT_GRADIENT_PRODUCTS * of_a_layer * maps.layers
        flops += INPUT_GRADIENT_PRODUCTS * of_a_layer * _layers_fed(maps, trained)
    for each in model.attentions:
        flops += _attention_backward(each, trained, batch, sequence, pairs, convention)
    return flops


@checked("batch", "every", "layers", model=validated_model, early_stop=validated_bool)
def recompute_flops(
    model: Model,
    batch: int,
    sequence: Lengths = 1,
    *,
    every: int = 1,
    layers: int | None = None,
    early_stop: bool = False,
    pairs: str = "full",
) -> int:
    """FLOPs that the backward pass repeats when only the input of every `every` layers is kept: their forward pass.

    All but what stands before and behind the layers is computed twice, which makes 8ND of 6ND, whatever `every` is; of
    only so many `layers`, all taken to be alike, where they are given.
    With `early_stop`, torch's default for the non-reentrant form, a segment is recomputed only as far as its last saved
    tensor, which spares the segment's last product: the down projection of a block, the last matrix of a linear net.
    Behind experts nothing is spared, as the router's weights need their outputs.
    Exact with early stop where all layers are alike in this, or `every` is 1. Raises ValueError for more `layers` than
    there are.

    >>> net = DeepLinear(dim=64, layers=4)
    >>> [recompute_flops(net, 8, every=k, early_stop=True) // (2 * 8 * 64 * 64) for k in (1, 2, 4)]
    [0, 2, 3]
    """
    batch, every = _validated_batch(model, batch, sequence), validated_int("every", every, minimum=1)
    inside = [maps for maps in model.linear_maps if maps.part not in OUTSIDE_LAYERS]
    again: int = sum(maps.product_flops(batch, sequence) for maps in inside)
    again += sum(each.forward_flops(batch, sequence, pairs) for each in model.attentions)
    last = [maps for maps in inside if maps.ends_layer for _ in range(maps.layers)]
    if layers is not None:
        of_all = sum(each.layers for each in model.attentions) or len(last)
        layers = validated_int("layers", layers)
        if layers > of_all:
            raise ValueError(f"layers must be at most {of_all}, got {layers}")
        again, last = again * layers // (of_all or 1), last[:layers]
    if not early_stop:
        return again
    ends = {*range(every, len(last), every), len(last)} - {0}  # behind which layer a segment ends
    spared: int = sum(last[end - 1].product_flops(batch, sequence) // last[end - 1].layers for end in ends)
    return again - spared


@checked(
    "batch",
    "checkpoint_every",
    "checkpoint_layers",
    model=validated_model,
    input_gradient=validated_bool,
    early_stop=validated_bool,
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
    checkpoint_layers: int | None = None,
    early_stop: bool = False,
) -> StepFlops:
    """FLOPs of a training step by purpose: forward, backward, and what was computed a second time.

    Recomputed are the layers that are checkpointed and, with the "flash" convention, the attention's scores: they count
    for HFU and not for MFU, whose `backward` is the same in both conventions. The options are those of
    `backward_flops` and `recompute_flops`; `checkpoint_every` = 0 checkpoints nothing, more than 0 the first
    `checkpoint_layers`, or all.
    Ignored: the optimizer, some 10 to 20 FLOPs a parameter and step, where the products cost 6·tokens.

    >>> step_flops(LLAMA3_70B, 1, 8192).model
    3943913849094144
    """
    forward = forward_flops(model, batch, sequence, pairs=pairs)
    backward, ran = (
        backward_flops(model, batch, sequence, input_gradient=input_gradient, pairs=pairs, convention=each)
        for each in ("math", convention)
    )
    again = ran - backward
    if validated_int("checkpoint_every", checkpoint_every):
        every, layers = checkpoint_every, checkpoint_layers
        again += recompute_flops(model, batch, sequence, every=every, layers=layers, early_stop=early_stop, pairs=pairs)
    return StepFlops(forward, backward, again)


def _validated_batch(model: Model, batch: int, sequence: Lengths) -> int:
    """`batch` as an int, once the sequence is known to fit the positions of the model."""
    longest = min((table.longest for table in model.other_parameters if table.longest), default=None)
    if longest is not None and length("tokens", sequence) > longest:
        raise ValueError(f"sequence must be at most learned_positions={longest}, got {length('tokens', sequence)}")
    return validated_int("batch", batch)


def _stored(model: Model) -> tuple[Part, ...]:
    return (*model.other_parameters, *model.linear_maps)


def _looked_up(model: Model) -> int:
    """Parameters of which a token reads a line, less what it is multiplied by as a tied head."""
    tables = sum(table.parameters for table in model.other_parameters if table.looked_up)
    return tables - sum(maps.layers * maps.uses * maps.weights for maps in model.linear_maps if not maps.copies)


def _trained(model: Model, input_gradient: bool) -> list[Part]:
    """What is trained, and with `input_gradient` the data, which stands before all."""
    if input_gradient and any(table.looked_up for table in model.other_parameters):
        raise ValueError("input_gradient must be False for a model of token ids, which have none, got True")
    data = [Part("data", place=-1)] if input_gradient else []
    return data + [each for each in _stored(model) if each.parameters and not each.frozen]


def _layers_fed(part: Part, trained: list[Part]) -> int:
    """In how many layers the input of `part` needs a gradient: in all if something before it is trained.

    If what is trained comes later in the same layer, in all but the first one; if behind all of them, in none.
    """
    first = min((each.place for each in trained), default=part.block_end + 1)
    return part.layers if first < part.place else (part.layers - 1) * (first <= part.block_end)


def _attention_backward(
    each: Mixing, trained: list[Part], batch: int, sequence: Lengths, pairs: str, convention: str
) -> int:
    """FLOPs of the gradients of attention, in the first layer of those operands alone that follow what is trained."""
    before = {getattr(part, "name", "") for part in trained if part.place < each.place}
    needed = frozenset(before) if before <= OPERANDS else OPERANDS
    layers = _layers_fed(each, trained)
    if needed == OPERANDS:
        return each.backward_flops(batch, sequence, pairs, convention)
    whole = each.backward_flops(batch, sequence, pairs, convention) // each.layers
    first = replace(each, layers=1).backward_flops(batch, sequence, pairs, convention, needed)
    return whole * (layers - bool(needed)) + first


# Rules of thumb


@checked("parameters", "tokens")
def rule_flops(rule: str, parameters: int, tokens: int) -> int:
    """FLOPs by rule of thumb: 2ND for the "forward" pass, 4ND for the "backward" pass, 6ND for a "step".

    It takes every parameter for a weight of a matrix product that needs both gradients, and nothing else for work:
    2 FLOPs each for y, dw and dx. `rule_errors` says what that gets wrong.
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.

    >>> f"{rule_flops('step', 70 * 10**9, 15 * 10**12):.1e}"
    '6.3e+24'
    """
    return RULES[validated_choice("rule", rule, RULES)] * parameters * tokens


@checked("batch", model=validated_model, input_gradient=validated_bool)
def rule_errors(
    model: Model, rule: str, batch: int, sequence: Lengths = 1, *, input_gradient: bool = False, pairs: str = "full"
) -> dict[str, int]:
    """What a rule counts wrongly for `model`, in FLOPs by name; their sum is the rule minus the exact count.

    The rule's N is `active_parameter_count`. It has too many (above 0): embeddings that are looked up, norms, biases,
    the gradients that frozen weights and a first layer do without. It has too few (below 0): attention, which no
    parameter stands for, and weights that a row meets more than once (convolutions). Either: what handles other rows
    than the tokens that are counted (an encoder, a pooled state).
    For blocks of 12·dim² weights full attention adds S/(6·dim) of the rule at sequence S: as much again at S = 6·dim.

    >>> step = step_flops(LLAMA3_70B, 1, 8192).model
    >>> {name: round(flops / step, 4) for name, flops in rule_errors(LLAMA3_70B, "step", 1, 8192).items()}
    {'embeddings': 0.0131, 'norms': 0.0, 'attention': -0.1338}
    """
    batch = _validated_batch(model, batch, sequence)
    tokens = batch * length("tokens", sequence)
    per_parameter, errors = rule_flops(rule, 1, tokens), Counter(embeddings=0)
    errors["embeddings"] = per_parameter * _looked_up(model)
    for table in model.other_parameters:
        errors[table.part] += 0 if table.looked_up else per_parameter * table.parameters
    trained = _trained(model, input_gradient)
    for maps in model.linear_maps:
        weights, product = maps.layers * maps.weights, maps.product_flops(batch, sequence)
        errors["biases"] += per_parameter * maps.met * maps.biases
        errors["repeated use"] -= per_parameter * weights * max(maps.uses - maps.copies, 0) * bool(maps.copies)
        errors["other rows"] += per_parameter * weights * maps.uses - RULES[rule] // MULTIPLY_ADD_FLOPS * product
        if rule != "forward":
            errors["frozen"] += WEIGHT_GRADIENT_PRODUCTS * product * maps.frozen
            spared = maps.layers - _layers_fed(maps, trained)
            errors["input gradient"] += INPUT_GRADIENT_PRODUCTS * product // maps.layers * spared
    for each in model.attentions:
        forward = each.forward_flops(batch, sequence, pairs)
        backward = _attention_backward(each, trained, batch, sequence, pairs, "math")
        errors["attention"] -= {"forward": forward, "backward": backward}.get(rule, forward + backward)
    return {name: flops for name, flops in errors.items() if flops}
