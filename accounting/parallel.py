"""Training on many devices: bytes that each stores, bytes it sends in a step, and its idle time.

For transformers. Where layers differ, the fullest stage has those that hold most: exact if they are neighbours, like
DeepSeek-V3's with experts. Bytes on the wire are those that one device of the busiest stage sends by ring
algorithms, which send the least. Ignored: padding, latency, and collectives of a few numbers (gradients of norms, the
loss, the norm of the gradients). Every function raises ValueError for a size below 1, an unknown name or stage, more
stages than layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from accounting.activations import SCORES, SavedTensor, activation_bytes, tensors_by_layer
from accounting.checks import (
    at_least_one,
    checked,
    instance_of,
    validate_fields,
    validated_choice,
    validated_model,
)
from accounting.formats import Dtype, dtype_name
from accounting.memory import element_bytes
from accounting.models import Model
from accounting.optimizers import Recipe, recipe_of
from accounting.parts import AttentionLayers, LinearMaps, Parts, layers_of

# Classes that each stage of ZeRO divides among the devices; the others are whole on each.
ZERO_SHARDS: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("state", "master"),
    2: ("state", "master", "gradients"),
    3: ("state", "master", "gradients", "parameters"),
}
KINDS = ("tensor", "context", "pipeline", "expert", "data")
RECOMPUTE = ("none", "selective", "full")
# Each of n ranks sends this many times (n − 1)/n of the array; a "send" goes whole to one neighbour.
PASSES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
# Parts and maps that every rank of a tensor group holds whole; low ranks of MLA as Megatron does.
REPLICATED = {"norms", "positions", "router", "corrections", "query_down", "latent"}
KEYS = ("key", "value")  # each rank holds at least one head of them
# Saved tensors that a tensor group divides by heads or columns.
OF_OWN_HEADS = ("query", "repeated key", "repeated value", "output", "hidden", *SCORES)


@checked(ranks=at_least_one)
def bus_factor(collective: str, ranks: int) -> float:
    """Bytes that each rank of a ring sends, over the size of the whole array: (n − 1)/n, twice that for an all-reduce.

    The array is each rank's input (all-reduce, reduce-scatter, all-to-all) or output (all-gather). Bus bandwidth is
    this times the algorithm's (size over time), and does not depend on the number of ranks.
    Source: doc/PERFORMANCE.md of NVIDIA/nccl-tests.

    >>> bus_factor("all-reduce", 2), bus_factor("all-reduce", 8), bus_factor("all-gather", 8)
    (1.0, 1.75, 0.875)
    """
    return PASSES[validated_choice("collective", collective, PASSES)] * (ranks - 1) / ranks


class Collective(NamedTuple):
    """A communication of one device with the others of `ranks`, `times` per step, for a `kind` of parallelism.

    >>> Collective("data", "all-reduce", ranks=8, bytes=16 * 10**9, times=1).sent_bytes  # 8 B bf16 gradients
    28000000000
    """

    kind: str
    name: str
    ranks: int
    bytes: int  # of the whole array
    times: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that the device sends in a step."""
        once = -(-self.bytes * (self.ranks - 1) // self.ranks) * PASSES.get(self.name, 0)
        return self.times * (self.bytes if self.name == "send" else once)


@dataclass(frozen=True)
class Parallelism:
    """The split of training: `devices` = data · tensor · context · pipeline.

    `zero_stage` shards the model state over data · context devices (3: FSDP). `sequence` splits the tokens of norms and
    dropout over the tensor group. `expert` of the data · context devices share a layer's experts. A pipeline runs
    `micro_batches` per step by 1F1B, with `interleaved` chunks of layers per device.
    Raises ValueError unless `expert` divides data · context.

    >>> Parallelism(data=128, tensor=8, pipeline=16, micro_batches=16).devices
    16384
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    zero_stage: int = 0
    sequence: bool = True
    micro_batches: int = 1
    interleaved: int = 1

    def __post_init__(self) -> None:
        sizes = ("data", "tensor", "context", "pipeline", "expert", "micro_batches", "interleaved")
        validate_fields(self, *sizes, minimum=1, flags=("sequence",))
        object.__setattr__(
            self, "zero_stage", validated_choice("zero_stage", self.zero_stage, ZERO_SHARDS)
        )
        if self.replicas % self.expert:
            raise ValueError(
                f"expert must divide data · context = {self.replicas}, got {self.expert}"
            )

    @property
    def replicas(self) -> int:
        """Devices that hold the same parameters, or shards of the same."""
        return self.data * self.context

    @property
    def devices(self) -> int:
        return self.replicas * self.tensor * self.pipeline

    @property
    def bubble(self) -> float:
        """Idle over busy time of a pipeline: (p − 1) / (interleaved · micro_batches).

        Exact for equally long stages; ignored: the sends. Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.

        >>> [Parallelism(pipeline=8, micro_batches=32, interleaved=v).bubble for v in (1, 2)]
        [0.21875, 0.109375]
        """
        return (self.pipeline - 1) / (self.interleaved * self.micro_batches)

    @property
    def chunks_in_flight(self) -> int:
        """Most chunks whose activations the first stage holds at once: p; interleaved p · v + p − 1.

        Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3: L · (1 + (p − 1)/(p · v)) layers.
        """
        p, v = self.pipeline, self.interleaved
        return min(v * self.micro_batches, p * v + (p - 1 if v > 1 else 0))

    def stage_layers(self, model: Model) -> tuple[int, int]:
        """Layers of the fullest stage and of the model; raises ValueError for a split that the model cannot have."""
        layers = sum(number for number, _ in layers_of(model)[0])
        experts = [
            ("expert", self.expert, "experts", m.copies)
            for m in model.linear_maps
            if m.copies > m.uses
        ]
        heads = [each for each in model.attentions if hasattr(each, "heads")]
        for name, parts, divided, number in [
            ("tensor", self.tensor, "heads", each.heads) for each in heads
        ] + experts:
            if number % parts:
                raise ValueError(
                    f"{name} must divide the {divided} of the model, {number}, got {parts}"
                )
        for each in heads:
            if (
                keys := getattr(each, "kv_heads", self.tensor)
            ) % self.tensor and self.tensor % keys:
                raise ValueError(
                    f"tensor must divide kv_heads={keys} or be a multiple of it, got {self.tensor}"
                )
        if not heads and (parts := max(self.tensor, self.context)) > 1:
            raise ValueError(
                f"tensor and context must be 1 for a model whose heads are unknown, got {parts}"
            )
        if max(layers, 1) < (chunks := self.pipeline * self.interleaved):
            raise ValueError(
                f"pipeline · interleaved must be at most layers={layers}, got {chunks}"
            )
        return self.interleaved * -(-layers // chunks), layers

    def shares(self, model: Model, name: str) -> int:
        """Ranks of a tensor group that have different parts of a map or saved tensor: as many as heads of keys."""
        keys = [
            each.kv_heads
            for each in model.attentions
            if isinstance(each, AttentionLayers) and name in KEYS
        ]
        return min([self.tensor, *keys])

    def micro_batch(self, batch: int, sequence: int) -> tuple[int, int]:
        """Sequences of a micro-batch and their length; raises ValueError if the split does not divide them."""
        parts = self.data * self.micro_batches
        batch, sequence = at_least_one("batch", batch), at_least_one("sequence", sequence)
        if batch % parts:
            raise ValueError(
                f"batch must be a multiple of data · micro_batches = {parts}, got {batch}"
            )
        if sequence % self.context:
            raise ValueError(
                f"sequence must be a multiple of context={self.context}, got {sequence}"
            )
        return batch // parts, sequence


@checked(model=validated_model, split=instance_of(Parallelism))
def device_parameters(model: Model, split: Parallelism) -> tuple[int, int, int]:
    """Parameters on a device of the fullest stage before ZeRO: of its layers, of its experts, and of the ends.

    `tensor` divides matrices and embeddings; norms, routers, learned positions and MLA's maps to low ranks are whole on
    each device, and so is a head of keys and values where there are fewer than ranks. The fullest stage has the
    embedding or the head, and a copy of a tied embedding. Ignored: biases after row-parallel matrices, also whole,
    2·dim per layer. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.

    >>> from accounting.models import LLAMA3_70B
    >>> device_parameters(LLAMA3_70B, Parallelism(tensor=8, pipeline=4))
    (2139422720, 0, 131342336)
    """
    (own, _), (layers, outside) = split.stage_layers(model), layers_of(model)

    def held(parts: Parts, number: int, looked_up: bool | None = None) -> tuple[int, int]:
        """Elements of one of `number` layers: those that all tokens meet, and experts."""
        dense = routed = 0
        for each in (*parts.other_parameters, *parts.linear_maps):
            name = getattr(each, "name", "")
            shares = 1 if {each.part, name} & REPLICATED else split.shares(model, name)
            elements = -(-each.parameters // number // shares)
            if isinstance(each, LinearMaps) and each.copies > each.uses:
                routed += -(-elements // split.expert)
            elif looked_up in (None, getattr(each, "looked_up", False)):
                dense += elements
        return dense, routed

    own_layers, experts = _fullest([(number, *held(of, number)) for number, of in layers], own)
    (first, _), (last, more) = (held(outside, 1, looked_up) for looked_up in (True, False))
    tied = sum(-(-maps.weights // split.tensor) for maps in model.linear_maps if not maps.copies)
    return (
        own_layers,
        experts + more,
        first + last if split.pipeline == 1 else max(first, last + tied),
    )


def _fullest(kinds: Iterable[tuple[int, int, int]], own: int) -> tuple[int, int]:
    """What those `own` layers have that have most, of kinds of layers by their number and two columns."""
    columns = [0, 0]
    for number, *each in sorted(kinds, key=lambda kind: -kind[1] - kind[2]):
        taken = min(number, own)
        own -= taken
        columns = [
            column + taken * of_layer for column, of_layer in zip(columns, each, strict=True)
        ]
    return columns[0], columns[1]


@checked("batch", "sequence", model=validated_model, split=instance_of(Parallelism))
def collectives(
    model: Model,
    split: Parallelism,
    batch: int,
    sequence: int,
    recipe: str | Recipe = "bf16-fp32-gradients-master",
    recompute: str = "none",
) -> tuple[Collective, ...]:
    """Communication of one device of the busiest stage in a step of `batch` sequences, by kind of parallelism.

    tensor: all-reduces of the b·s·h activations after attention, MLP and embedding, and of the gradients before
    attention, MLP and head; with `sequence` all-gathers and reduce-scatters of the same bytes. context: keys and values
    gathered forward and backward, their fp32 gradients once around the ring. pipeline: b·s·h forward and its gradient
    back over each border. expert: each token to its experts and back, and the gradients likewise. data: gradients
    all-reduced; from ZeRO stage 1 on reduce-scattered, and the parameters gathered; at stage 3 per micro-batch, those
    of the layers twice. `recompute="full"` repeats the layers' forward. Equals the traffic of torch 2.13's DDP, FSDP2,
    tensor, context and pipeline parallelism, with tokens routed evenly. Megatron gathers the layers' inputs once more
    in the backward pass.
    Raises ValueError for a batch or sequence that does not divide.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2;
    Liu et al. 2023, arXiv:2310.01889 (context); Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Lepikhin et al.
    2020, arXiv:2006.16668, section 3.3 (expert); Rajbhandari et al. 2020, arXiv:1910.02054, section 7 (data).

    >>> from accounting.models import LLAMA3_8B
    >>> for each in collectives(LLAMA3_8B, Parallelism(data=8, zero_stage=3), 8, 8192): print(*each)
    data all-gather 8 13959168000 2
    data all-gather 8 2101354496 1
    data reduce-scatter 8 32121044992 1
    """
    dtypes, (batch, sequence) = recipe_of(recipe), split.micro_batch(batch, sequence)
    again = validated_choice("recompute", recompute, RECOMPUTE) == "full"
    rows = batch * sequence // split.context
    found = (
        *_of_activations(model, split, rows, dtypes, again),
        *_of_parameters(model, split, dtypes),
    )
    return tuple(each for each in found if each.ranks > 1 and each.bytes and each.times)


def _of_activations(
    model: Model, split: Parallelism, rows: int, dtypes: Recipe, again: bool
) -> Iterator[Collective]:
    """Communication for `rows` tokens per micro-batch and rank; `again` repeats the forward."""
    (layers, _), micro = split.stage_layers(model), split.micro_batches
    whole = element_bytes(rows * list(model.linear_maps)[-1].in_features, dtypes.parameters)
    scattered = split.sequence and split.tensor > 1
    part = whole // split.tensor if scattered else whole
    exits = (4 + 2 * again) * layers + (2 if split.pipeline == 1 else 1)
    names = ("all-gather", "reduce-scatter") if scattered else ("all-reduce",)
    yield from (Collective("tensor", name, split.tensor, whole, exits * micro) for name in names)

    shapes = [each for each in model.attentions if isinstance(each, AttentionLayers)]
    keys, _ = _fullest(
        [(each.layers, each.kv_heads * (each.head_dim + each.value_dim), 0) for each in shapes],
        layers,
    )
    of_rank = rows * keys // split.shares(model, "key")
    gathered = split.context * element_bytes(of_rank, dtypes.parameters)
    yield Collective("context", "all-gather", split.context, gathered, (2 + again) * micro)
    yield Collective(
        "context", "send", split.context, element_bytes(of_rank, "fp32"), split.context * micro
    )
    borders = 2 * split.interleaved - (split.pipeline == 2)
    yield Collective("pipeline", "send", split.pipeline, part, borders * micro)

    experts = [
        maps for maps in model.linear_maps if maps.name == "down" and maps.copies > maps.uses
    ]
    routed, _ = _fullest([(maps.layers, maps.uses, 0) for maps in experts], max(layers, 1))
    yield Collective("expert", "all-to-all", split.expert, part, (4 + 2 * again) * routed * micro)


def _of_parameters(model: Model, split: Parallelism, dtypes: Recipe) -> Iterator[Collective]:
    """Communication of gradients and, with ZeRO, parameters; experts are shared among fewer devices."""
    own, experts, ends = device_parameters(model, split)
    stage, micro = split.zero_stage, split.micro_batches
    for inside, outside, sharers in (
        (own, ends, split.replicas),
        (experts, 0, split.replicas // split.expert),
    ):
        gradients = element_bytes(inside + outside, dtypes.gradients)
        if not stage:
            yield Collective("data", "all-reduce", sharers, gradients, 1)
            continue
        for elements, count in ((inside, 2 * micro), (outside, micro)):
            parameters = element_bytes(elements, dtypes.parameters)
            yield Collective("data", "all-gather", sharers, parameters, count if stage == 3 else 1)
        yield Collective("data", "reduce-scatter", sharers, gradients, micro if stage > 1 else 1)


@checked(
    "batch", "sequence", flags=("dropout",), model=validated_model, split=instance_of(Parallelism)
)
def device_activation_bytes(
    model: Model,
    split: Parallelism,
    batch: int,
    sequence: int,
    dtype: Dtype = "bf16",
    *,
    recompute: str = "none",
    attention: str = "flash",
    dropout: bool = False,
) -> int:
    """Bytes of saved activations in flight on a device of the first stage, which holds most of them.

    A GPT block keeps s·b·h·(10 + 24/t + 5·a·s/(h·t)) with tensor parallelism t, s·b·h·(34 + 5·a·s/h)/t with `sequence`;
    context divides the sequence. `recompute` repeats nothing ("none"), the attention's scores ("selective"), or all but
    the layers' inputs ("full"; one layer is back at a time). Norms are CUDA's, one kernel that keeps no copy. Exact for
    Megatron; torch also keeps the gathered inputs of attention and MLP: 4·s·b·h·(1 − 1/t) per layer.
    Of a model with more than norms, attention, MLPs and experts it is what transformers' net keeps, divided evenly.
    Ignored: temporaries, logits, experts that get more tokens than others.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, table 2 and section 4.2.3.

    >>> from accounting.models import LLAMA3_8B
    >>> splits = Parallelism(), Parallelism(tensor=8), Parallelism(tensor=8, sequence=False)
    >>> [device_activation_bytes(LLAMA3_8B, split, 1, 8192) for split in splits]
    [44461752320, 5792600064, 13428097024]
    """
    (rows, sequence), (own, of_all) = split.micro_batch(batch, sequence), split.stage_layers(model)
    dtype, recompute = dtype_name(dtype), validated_choice("recompute", recompute, RECOMPUTE)
    ranks, dim = (
        split.context * (split.tensor if split.sequence else 1),
        list(model.linear_maps)[-1].in_features,
    )
    if not of_all or not all(isinstance(each, AttentionLayers) for each in model.attentions):
        if recompute != "none":
            raise ValueError(
                f"recompute must be 'none' for a model without attention in layers, got {recompute!r}"
            )
        whole = activation_bytes(model, rows, sequence, dtype, attention=attention, dropout=dropout)
        return -(
            -whole
            * split.chunks_in_flight
            * max(own, 1)
            // split.interleaved
            // max(of_all, 1)
            // ranks
        )

    dropped = {"norm before weight", *(SCORES if recompute == "selective" else ())}

    def held(each: SavedTensor) -> int:
        size = (each._replace(dtype=dtype) if each.name == "norm input" else each).bytes
        shares = split.tensor if split.sequence and each.name != "cosines and sines" else 1
        shares = split.shares(model, each.name) if each.name in (*OF_OWN_HEADS, *KEYS) else shares
        return 0 if each.name in dropped else -(-size // (split.context * shares))

    layers, outside = tensors_by_layer(model, rows, sequence, dtype, attention, dropout=dropout)
    kinds, chunk = (
        [(number, sum(map(held, of)), 0) for number, of in layers],
        own // split.interleaved,
    )
    in_flight = {
        "embedding": min(split.micro_batches, split.pipeline),
        "head": int(split.pipeline == 1),
    }
    ends = sum(held(each) * in_flight[each.part] for each in outside)
    if recompute != "full":
        return ends + split.chunks_in_flight * _fullest(kinds, chunk)[0]
    given = element_bytes(rows * sequence // ranks * dim, dtype)
    return ends + max(layer for _, layer, _ in kinds) + split.chunks_in_flight * chunk * given
