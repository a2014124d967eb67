"""The shape of a whole model, and what follows from it: its parameters and its FLOPs.

A model is described by its linear maps: which matrices there are, how many copies of each are stored (parameters) and
how many of them one token meets (FLOPs). Experts are stored and mostly not met; a tied head is met and not stored.
FLOPs are those of matrix products, as torch's FlopCounterMode counts them: biases, norms, activations, softmax, rotary
embeddings and residual additions are left out. They cost a few FLOPs per activation where a matrix costs 2·dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from accounting.attention import Attention, attention_backward_flops, attention_flops
from accounting.checks import validate_fields, validated_choice, validated_int, validated_product
from accounting.flops import (
    FORWARD_PRODUCTS,
    INPUT_GRADIENT_PRODUCTS,
    MULTIPLY_ADD_FLOPS,
    WEIGHT_GRADIENT_PRODUCTS,
    StepFlops,
    matmul_flops,
)

NORMS = ("layernorm", "rmsnorm")

# FLOPs per parameter and token by the rules of thumb: 2, 4, 6.
RULES = {
    "forward": MULTIPLY_ADD_FLOPS * FORWARD_PRODUCTS,
    "backward": MULTIPLY_ADD_FLOPS * (WEIGHT_GRADIENT_PRODUCTS + INPUT_GRADIENT_PRODUCTS),
}
RULES["step"] = RULES["forward"] + RULES["backward"]


class LinearMaps(NamedTuple):
    """Equal matrices of in_features × out_features: `copies` are stored, a token is multiplied by `uses` of them."""

    part: str
    in_features: int
    out_features: int
    copies: int
    uses: int
    bias: bool = False

    @property
    def weights(self) -> int:
        """Elements of one matrix."""
        return self.in_features * self.out_features

    @property
    def biases(self) -> int:
        """Elements of one bias vector."""
        return self.out_features if self.bias else 0


@dataclass(frozen=True)
class DeepLinear:
    """Linear layers one after the other, nothing between them: `layers` of dim × dim, then a head of dim × outputs.

    The lecture's net: L·D² + D parameters. `inputs` is the width of the data where it is not `dim`.

    Raises ValueError for a size below 1, TypeError for one that is not an integer.

    >>> parameter_count(DeepLinear(dim=64, layers=2))
    8256
    """

    dim: int
    layers: int
    outputs: int = 1
    inputs: int = 0  # 0: dim
    bias: bool = False

    def __post_init__(self) -> None:
        validate_fields(self, "dim", "layers", "outputs", minimum=1)
        object.__setattr__(self, "inputs", validated_int("inputs", self.inputs) or self.dim)

    @property
    def linear_maps(self) -> tuple[LinearMaps, ...]:
        """The first layer, the equal ones after it, the head."""
        rest = self.layers - 1
        return (
            LinearMaps("layers", self.inputs, self.dim, 1, 1, self.bias),
            LinearMaps("layers", self.dim, self.dim, rest, rest, self.bias),
            LinearMaps("head", self.dim, self.outputs, 1, 1, self.bias),
        )

    def attentions(self, batch: int, sequence: int, pairs: str = "full") -> tuple[Attention, ...]:  # noqa: ARG002
        """None."""
        return ()


@dataclass(frozen=True)
class Transformer:
    """Decoder-only transformer: embedding, `layers` blocks of attention and MLP, each behind a norm, norm, head.

    `kv_heads` says which attention: as many as `heads` (0, MHA), one (MQA), or between (GQA). A `gated` MLP has three
    matrices, down(silu(gate(x)) · up(x)), a plain one two, down(gelu(up(x))). With `experts` > 1 each block has that
    many MLPs, of which a router without bias sends a token to `active_experts`. `learned_positions` is the length of
    the table of position embeddings; 0 means rotary, which has no parameters.

    Raises ValueError for a size out of range, heads that do not divide, an odd head_dim with rotary positions, an
    unknown norm; TypeError for a size that is not an integer.

    >>> Transformer(vocab_size=100, layers=2, dim=64, heads=4, hidden=256).head_dim
    16
    """

    vocab_size: int
    layers: int
    dim: int
    heads: int
    hidden: int
    kv_heads: int = 0  # 0: heads
    head_dim: int = 0  # 0: dim / heads
    gated: bool = False
    experts: int = 1
    active_experts: int = 1
    tied_embedding: bool = False
    learned_positions: int = 0
    norm: str = "layernorm"
    norm_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "layers", "dim", "heads", "hidden", "experts", "active_experts")
        validate_fields(self, *sizes, minimum=1)
        validate_fields(self, "learned_positions", "kv_heads", "head_dim")
        if not self.head_dim and self.dim % self.heads:
            raise ValueError(
                f"heads must divide dim where head_dim is not given, got heads={self.heads}, dim={self.dim}"
            )
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads, got kv_heads={self.kv_heads}, heads={self.heads}")
        if self.active_experts > self.experts:
            raise ValueError(f"active_experts must be at most experts={self.experts}, got {self.active_experts}")
        if validated_choice("norm", self.norm, NORMS) == "rmsnorm" and self.norm_bias:
            raise ValueError("norm_bias must be False for norm='rmsnorm', got True")
        if self.head_dim % 2 and not self.learned_positions:
            raise ValueError(f"head_dim must be even for rotary positions (learned_positions=0), got {self.head_dim}")

    @property
    def linear_maps(self) -> tuple[LinearMaps, ...]:
        """Every matrix product of the model with a weight; the input embedding is a look-up, none."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        expanding = 2 if self.gated else 1
        stored, met = self.layers * self.experts, self.layers * self.active_experts
        routers = self.layers if self.experts > 1 else 0
        return (
            LinearMaps("attention", self.dim, queries, self.layers, self.layers, self.qkv_bias),
            LinearMaps("attention", self.dim, keys, 2 * self.layers, 2 * self.layers, self.qkv_bias),
            LinearMaps("attention", queries, self.dim, self.layers, self.layers, self.out_bias),
            LinearMaps("router", self.dim, self.experts, routers, routers),
            LinearMaps("mlp", self.dim, self.hidden, expanding * stored, expanding * met, self.mlp_bias),
            LinearMaps("mlp", self.hidden, self.dim, stored, met, self.mlp_bias),
            LinearMaps("head", self.dim, self.vocab_size, 0 if self.tied_embedding else 1, 1),
        )

    def attentions(self, batch: int, sequence: int, pairs: str = "full") -> tuple[Attention, ...]:
        """That of all layers, as one of layers·batch sequences. Raises ValueError beyond the learned positions."""
        if 0 < self.learned_positions < sequence:
            raise ValueError(f"sequence must be at most learned_positions={self.learned_positions}, got {sequence}")
        sequences = self.layers * validated_int("batch", batch)
        return (Attention(sequences, self.heads, sequence, self.head_dim, kv_heads=self.kv_heads, pairs=pairs),)


Model = DeepLinear | Transformer

# Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2; widths as in the released weights
GPT2_SMALL = Transformer(
    vocab_size=50257,
    layers=12,
    dim=768,
    heads=12,
    hidden=3072,
    learned_positions=1024,
    tied_embedding=True,
    norm_bias=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
GPT2_XL = replace(GPT2_SMALL, layers=48, dim=1600, heads=25, kv_heads=25, hidden=6400)

# Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, table 3
LLAMA3_8B = Transformer(
    vocab_size=128256, layers=32, dim=4096, heads=32, kv_heads=8, hidden=14336, gated=True, norm="rmsnorm"
)
LLAMA3_70B = replace(LLAMA3_8B, layers=80, dim=8192, heads=64, hidden=28672)

# Jiang et al. 2024, "Mixtral of Experts", arXiv:2401.04088, table 1
MIXTRAL_8X7B = replace(LLAMA3_8B, vocab_size=32000, experts=8, active_experts=2)


# Parameters


def parameter_counts(model: Model) -> dict[str, int]:
    """Parameters of `model` by part: of each linear map copies·(in·out + bias), of each norm dim or 2·dim.

    Exact: what `sum(p.numel() for p in net.parameters())` says of the built net. Parts that a model lacks are absent.

    >>> parameter_counts(GPT2_SMALL)["embedding"], sum(parameter_counts(GPT2_SMALL).values())
    (38597376, 124439808)
    """
    parts: dict[str, int] = {}
    if isinstance(model, Transformer):
        parts["embedding"] = model.vocab_size * model.dim
        parts["positions"] = model.learned_positions * model.dim
        parts["norms"] = (2 * model.layers + 1) * model.dim * (2 if model.norm_bias else 1)
    for maps in model.linear_maps:
        parts[maps.part] = parts.get(maps.part, 0) + maps.copies * (maps.weights + maps.biases)
    return {part: parameters for part, parameters in parts.items() if parameters}


def parameter_count(model: Model) -> int:
    """Parameters of `model`, each stored element once: a tied head adds none, idle experts count in full.

    >>> parameter_count(LLAMA3_70B)
    70553706496
    """
    return sum(parameter_counts(model).values())


def active_parameter_count(model: Model) -> int:
    """Parameters that one token meets: all but those of the experts it is not sent to.

    The N of 6ND for a mixture of experts. The embedding is counted in full, as published counts do, although a token
    reads one row of it.

    >>> active_parameter_count(MIXTRAL_8X7B)
    12879925248
    """
    idle = sum(max(maps.copies - maps.uses, 0) * (maps.weights + maps.biases) for maps in model.linear_maps)
    return parameter_count(model) - idle


def matmul_parameter_count(model: Model) -> int:
    """Weights that one token is multiplied by: each costs exactly 2 FLOPs forward.

    Against `active_parameter_count` it leaves out biases, norms and the embeddings, which are looked up; the head is
    counted also where it is the embedding's own matrix (tied).

    >>> matmul_parameter_count(GPT2_SMALL) - matmul_parameter_count(replace(GPT2_SMALL, tied_embedding=False))
    0
    """
    return sum(maps.uses * maps.weights for maps in model.linear_maps)


# FLOPs


def forward_flops(model: Model, batch: int, sequence: int = 1, *, pairs: str = "full") -> int:
    """FLOPs of a forward pass: 2·tokens·(weights a token meets), and the attention of every layer.

    `batch` sequences of `sequence` tokens; a deep linear net has no sequence, its examples are batch·sequence.
    `pairs` of query and key are counted in "full" or "causal", see `accounting.attention.attention_pairs`.
    Exact for matrix products; the look-up of an embedding is none. Ignored: everything elementwise, about 1/dim.

    Raises ValueError for a negative size, a sequence longer than the learned positions, an unknown convention.

    >>> forward_flops(DeepLinear(dim=64, layers=2), batch=10) == 2 * 10 * (2 * 64 * 64 + 64)
    True
    >>> forward_flops(LLAMA3_70B, 1, 8192)
    1314637949698048
    """
    products = _product_flops(model, validated_product(batch=batch, sequence=sequence))
    return products + sum(attention_flops(each) for each in model.attentions(batch, sequence, pairs))


def backward_flops(
    model: Model,
    batch: int,
    sequence: int = 1,
    *,
    input_gradient: bool = False,
    pairs: str = "full",
    convention: str = "math",
) -> int:
    """FLOPs of a backward pass: twice the forward, minus the first layer's input gradient where none is needed.

    Each product y = x·w has two gradients of its own size, dw and dx. A deep linear net whose data needs no gradient
    skips dx of its first layer, 2·batch·inputs·dim. In a transformer every product has both: the rows of the embedding
    need their gradient, which itself is an addition, no product. `convention` is the attention's: "math" or "flash",
    see `accounting.attention.attention_backward_flops`.

    Raises ValueError for a negative size, an unknown convention, an `input_gradient` of token ids.

    >>> net = DeepLinear(dim=64, layers=2)
    >>> 2 * forward_flops(net, 10) - backward_flops(net, 10) == 2 * 10 * 64 * 64
    True
    """
    if input_gradient and isinstance(model, Transformer):
        raise ValueError("input_gradient must be False for a Transformer, whose token ids have none, got True")
    tokens = validated_product(batch=batch, sequence=sequence)
    products = (WEIGHT_GRADIENT_PRODUCTS + INPUT_GRADIENT_PRODUCTS) * _product_flops(model, tokens)
    attentions = model.attentions(batch, sequence, pairs)
    spared = 0 if input_gradient else _first_layer_flops(model, tokens)
    return products - spared + sum(attention_backward_flops(each, convention) for each in attentions)


def recompute_flops(
    model: Model, batch: int, sequence: int = 1, *, every: int = 1, early_stop: bool = False, pairs: str = "full"
) -> int:
    """FLOPs that the backward pass repeats when only the input of every `every` layers is kept: their forward pass.

    All but the head is computed twice, which makes 8ND of 6ND, whatever `every` is. With `early_stop`, torch's default
    for the non-reentrant form, a segment is recomputed only as far as its last saved tensor, which spares the segment's
    last product: the down projection of a block, the last matrix of a linear net. Behind experts nothing is spared, as
    the router's weights need their outputs.

    Raises ValueError for a negative size or `every` below 1.

    >>> net = DeepLinear(dim=64, layers=4)
    >>> [recompute_flops(net, 8, every=k, early_stop=True) // (2 * 8 * 64 * 64) for k in (1, 2, 4)]
    [0, 2, 3]
    """
    tokens = validated_product(batch=batch, sequence=sequence)
    segments, head = -(-model.layers // validated_int("every", every, minimum=1)), model.linear_maps[-1]
    again = forward_flops(model, batch, sequence, pairs=pairs)
    again -= matmul_flops(tokens, head.in_features, head.out_features)
    if not early_stop:
        return again
    if isinstance(model, DeepLinear):
        spares_first = segments == model.layers
        again -= _first_layer_flops(model, tokens) if spares_first else 0
        return again - matmul_flops(tokens, model.dim, model.dim, segments - spares_first)
    return again - (matmul_flops(tokens, model.hidden, model.dim, segments) if model.experts == 1 else 0)


def step_flops(
    model: Model,
    batch: int,
    sequence: int = 1,
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


def _product_flops(model: Model, tokens: int) -> int:
    """FLOPs of the forward products with the weights."""
    return sum(matmul_flops(tokens, maps.in_features, maps.out_features, maps.uses) for maps in model.linear_maps)


def _first_layer_flops(model: Model, tokens: int) -> int:
    """FLOPs of the product with the data; of token ids there is none."""
    return matmul_flops(tokens, model.inputs, model.dim) if isinstance(model, DeepLinear) else 0


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
    model: Model, rule: str, batch: int, sequence: int = 1, *, input_gradient: bool = False, pairs: str = "full"
) -> dict[str, int]:
    """What a rule counts wrongly for `model`, in FLOPs by name; their sum is the rule minus the exact count.

    The rule's N is `active_parameter_count`. It has too many (above 0): embeddings that are looked up, norms, biases,
    the input gradient a first layer does without. It has too few (below 0): attention, which no parameter stands for.
    For blocks of 12·dim² weights full attention adds S/(6·dim) of the rule at sequence S: as much again at S = 6·dim.

    >>> step = step_flops(LLAMA3_70B, 1, 8192).model
    >>> {name: round(flops / step, 4) for name, flops in rule_errors(LLAMA3_70B, "step", 1, 8192).items()}
    {'embeddings': 0.0131, 'norms': 0.0, 'attention': -0.1338}
    """
    tokens = validated_product(batch=batch, sequence=sequence)
    per_parameter = rule_flops(rule, 1, tokens)
    parts = parameter_counts(model)
    is_tied = isinstance(model, Transformer) and model.tied_embedding
    looked_up = parts.get("positions", 0) + (0 if is_tied else parts.get("embedding", 0))
    attentions = model.attentions(batch, sequence, pairs)
    passes = {
        "forward": sum(attention_flops(each) for each in attentions),
        "backward": sum(attention_backward_flops(each) for each in attentions),
    }
    spares_input_gradient = rule != "forward" and not input_gradient
    errors = {
        "biases": per_parameter * sum(maps.uses * maps.biases for maps in model.linear_maps),
        "input gradient": spares_input_gradient * _first_layer_flops(model, tokens),
        "embeddings": per_parameter * looked_up,
        "norms": per_parameter * parts.get("norms", 0),
        "attention": -passes.get(rule, sum(passes.values())),
    }
    return {name: flops for name, flops in errors.items() if flops}
