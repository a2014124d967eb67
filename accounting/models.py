"""What follows from a model's three lists: its parameters, its FLOPs, its cache.

A model is what it multiplies by, what it attends over and what else it stores (`accounting.parts`); any object with
these three lists is one. Builders are in `accounting.families`.
FLOPs are those of matrix products, as torch's FlopCounterMode counts them: biases, norms, activations, softmax, rotary
embeddings and residual additions are left out. They cost a few FLOPs per activation where a matrix costs 2·dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from accounting.checks import validated_choice, validated_int, validated_product
from accounting.config import from_config
from accounting.families import (
    GPT2_SMALL,
    GPT2_XL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    NORMS,
    DeepLinear,
    Transformer,
)
from accounting.flops import (
    FORWARD_PRODUCTS,
    INPUT_GRADIENT_PRODUCTS,
    MULTIPLY_ADD_FLOPS,
    WEIGHT_GRADIENT_PRODUCTS,
    StepFlops,
)
from accounting.parts import Lengths, LinearMaps, Mixing, OtherParameters, Part, length

__all__ = [
    "GPT2_SMALL",
    "GPT2_XL",
    "LLAMA3_8B",
    "LLAMA3_70B",
    "MIXTRAL_8X7B",
    "NORMS",
    "RULES",
    "DeepLinear",
    "Model",
    "Transformer",
    "active_parameter_count",
    "backward_flops",
    "forward_flops",
    "from_config",
    "matmul_parameter_count",
    "parameter_count",
    "parameter_counts",
    "recompute_flops",
    "rule_errors",
    "rule_flops",
    "step_flops",
]


class Model(Protocol):
    """Any object with these three lists."""

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

NOWHERE = (1 << 62, 1 << 62)  # a place behind every other

# What is not repeated when layers are recomputed: what stands before and behind them.
OUTSIDE_LAYERS = ("input", "head")


# Parameters


def parameter_counts(model: Model) -> dict[str, int]:
    """Parameters of `model` by part: of each linear map copies·(in·out + bias), and all that is no linear map.

    Exact: what `sum(p.numel() for p in net.parameters())` says of the built net. Parts that a model lacks are absent.

    >>> parameter_counts(GPT2_SMALL)["embedding"], sum(parameter_counts(GPT2_SMALL).values())
    (38597376, 124439808)
    """
    parts: Counter[str] = Counter()
    each: Part
    for each in (*model.other_parameters, *model.linear_maps):
        parts[each.part] += each.parameters
    return {part: parameters for part, parameters in parts.items() if parameters}


def parameter_count(model: Model) -> int:
    """Parameters of `model`, each stored element once: a tied head adds none, idle experts count in full.

    >>> parameter_count(LLAMA3_70B)
    70553706496
    """
    return sum(parameter_counts(model).values())


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


def matmul_parameter_count(model: Model) -> int:
    """Weights that one token is multiplied by: each costs exactly 2 FLOPs forward.

    Against `active_parameter_count` it leaves out biases, norms and the embeddings, which are looked up; the head is
    counted also where it is the embedding's own matrix (tied).

    >>> from dataclasses import replace
    >>> matmul_parameter_count(GPT2_SMALL) - matmul_parameter_count(replace(GPT2_SMALL, tied_embedding=False))
    0
    """
    return sum(maps.layers * maps.uses * maps.weights for maps in model.linear_maps)


# FLOPs


def forward_flops(model: Model, batch: int, sequence: Lengths = 1, *, pairs: str = "full") -> int:
    """FLOPs of a forward pass: 2·rows·(weights a row meets), and the attention of every layer.

    `batch` sequences of `sequence` tokens, or of {"source": ..., "tokens": ...} with an encoder; a deep linear net has
    no sequence, its examples are batch·sequence. `pairs` of query and key are counted in "full", or in "causal" those
    that mask and window let through, see `accounting.attention.attention_pairs`.
    Exact for matrix products; the look-up of an embedding is none. Ignored: everything elementwise, about 1/dim.

    Raises ValueError for a negative size, a sequence longer than the learned positions, an unknown convention.

    >>> forward_flops(DeepLinear(dim=64, layers=2), batch=10) == 2 * 10 * (2 * 64 * 64 + 64)
    True
    >>> forward_flops(LLAMA3_70B, 1, 8192)
    1314637949698048
    """
    batch = _validated_batch(model, batch, sequence)
    return sum(maps.product_flops(batch, sequence) for maps in model.linear_maps) + sum(
        each.forward_flops(batch, sequence, pairs) for each in model.attentions
    )


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
    `accounting.attention.attention_backward_flops`.

    Raises ValueError for a negative size, an unknown convention, an `input_gradient` of token ids.

    >>> net = DeepLinear(dim=64, layers=2)
    >>> 2 * forward_flops(net, 10) - backward_flops(net, 10) == 2 * 10 * 64 * 64
    True
    """
    batch = _validated_batch(model, batch, sequence)
    products = 0
    for maps, fed in _maps_and_layers_fed(model, input_gradient):
        whole = maps.product_flops(batch, sequence)
        weight = 0 if maps.frozen else WEIGHT_GRADIENT_PRODUCTS * whole
        products += weight + (INPUT_GRADIENT_PRODUCTS * whole * fed // maps.layers if fed else 0)
    return products + sum(each.backward_flops(batch, sequence, pairs, convention) for each in model.attentions)


def recompute_flops(
    model: Model, batch: int, sequence: Lengths = 1, *, every: int = 1, early_stop: bool = False, pairs: str = "full"
) -> int:
    """FLOPs that the backward pass repeats when only the input of every `every` layers is kept: their forward pass.

    All but what stands before and behind the layers is computed twice, which makes 8ND of 6ND, whatever `every` is.
    With `early_stop`, torch's default for the non-reentrant form, a segment is recomputed only as far as its last saved
    tensor, which spares the segment's last product: the down projection of a block, the last matrix of a linear net.
    Behind experts nothing is spared, as the router's weights need their outputs.
    Exact with early stop where all layers are alike in this, or `every` is 1.

    Raises ValueError for a negative size or `every` below 1.

    >>> net = DeepLinear(dim=64, layers=4)
    >>> [recompute_flops(net, 8, every=k, early_stop=True) // (2 * 8 * 64 * 64) for k in (1, 2, 4)]
    [0, 2, 3]
    """
    batch, every = _validated_batch(model, batch, sequence), validated_int("every", every, minimum=1)
    inside = [maps for maps in model.linear_maps if maps.part not in OUTSIDE_LAYERS]
    again: int = sum(maps.product_flops(batch, sequence) for maps in inside)
    again += sum(each.forward_flops(batch, sequence, pairs) for each in model.attentions)
    if not early_stop:
        return again
    last = [maps for maps in inside if maps.ends_layer for _ in range(maps.layers)]
    ends = {*range(every, len(last), every), len(last)} - {0}  # behind which layer a segment ends
    spared: int = sum(last[end - 1].product_flops(batch, sequence) // last[end - 1].layers for end in ends)
    return again - spared


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
    """FLOPs of a training step by purpose: forward, backward, and what was computed a second time.

    Recomputed are the layers that are checkpointed and, with the "flash" convention, the attention's scores: they count
    for HFU and not for MFU, whose `backward` is the same in both conventions. The options are those of
    `backward_flops` and `recompute_flops`; `checkpoint_every` = 0 checkpoints nothing.
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
        again += recompute_flops(model, batch, sequence, every=checkpoint_every, early_stop=early_stop, pairs=pairs)
    return StepFlops(forward, backward, again)


def _validated_batch(model: Model, batch: int, sequence: Lengths) -> int:
    """`batch` as an int, once the sequence is known to fit the positions of the model."""
    for table in model.other_parameters:
        if table.longest and length("tokens", sequence) > table.longest:
            raise ValueError(
                f"sequence must be at most learned_positions={table.longest}, got {length('tokens', sequence)}"
            )
    return validated_int("batch", batch)


def _looked_up(model: Model) -> int:
    """Parameters of which a token reads a line, less what it is multiplied by as a tied head."""
    tables = sum(table.parameters for table in model.other_parameters if table.looked_up)
    return tables - sum(maps.layers * maps.uses * maps.weights for maps in model.linear_maps if not maps.copies)


def _maps_and_layers_fed(model: Model, input_gradient: bool) -> Iterator[tuple[LinearMaps, int]]:
    """Each linear map, and in how many layers its input needs a gradient: where something before it is trained."""
    if input_gradient and any(table.looked_up for table in model.other_parameters):
        raise ValueError("input_gradient must be False for a model of token ids, which have none, got True")
    stored: tuple[Part, ...] = (*model.other_parameters, *model.linear_maps)
    trained = [(each.place, each.block_end) for each in stored if each.parameters and not each.frozen]
    first = (-1, -1) if input_gradient else min(trained, default=NOWHERE)
    for maps in model.linear_maps:
        if maps.place > first[0]:
            yield maps, maps.layers
        else:
            yield maps, maps.layers - 1 if maps.block_end >= first[0] else 0


# Rules of thumb


def rule_flops(rule: str, parameters: int, tokens: int) -> int:
    """FLOPs by rule of thumb: 2ND for the "forward" pass, 4ND for the "backward" pass, 6ND for a "step".

    It takes every parameter for a weight of a matrix product that needs both gradients, and nothing else for work:
    2 FLOPs each for y, dw and dx. `rule_errors` says what that gets wrong.
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.

    >>> f"{rule_flops('step', 70 * 10**9, 15 * 10**12):.1e}"
    '6.3e+24'
    """
    return RULES[validated_choice("rule", rule, RULES)] * validated_product(parameters=parameters, tokens=tokens)


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
    for maps, fed in _maps_and_layers_fed(model, input_gradient):
        once, again = per_parameter * maps.weights, max(maps.uses - maps.copies, 0) if maps.copies else 0
        other_rows = tokens - batch * length(maps.rows, sequence)
        errors["biases"] += per_parameter * maps.met * maps.biases
        errors["repeated use"] -= once * maps.layers * again
        errors["other rows"] += RULES[rule] * other_rows * maps.layers * maps.uses * maps.weights
        if rule != "forward":
            product = maps.product_flops(batch, sequence)
            errors["frozen"] += WEIGHT_GRADIENT_PRODUCTS * product * maps.frozen
            errors["input gradient"] += INPUT_GRADIENT_PRODUCTS * product * (maps.layers - fed) // (maps.layers or 1)
    for each in model.attentions:
        forward, backward = (
            each.forward_flops(batch, sequence, pairs),
            each.backward_flops(batch, sequence, pairs, "math"),
        )
        errors["attention"] -= {"forward": forward, "backward": backward}.get(rule, forward + backward)
    return {name: flops for name, flops in errors.items() if flops}
