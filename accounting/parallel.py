"""Training on many devices: parameters stored, bytes sent and idle time of each.

For transformers. Where layers differ, the fullest stage has the largest: exact if they are
neighbours, like DeepSeek-V3's with experts. Bytes on the wire are sent by one device of the busiest
stage, with ring algorithms, which send the least. Ignored: padding, latency, and collectives of a
few numbers (gradients of norms, the loss, the norm of the gradients). Every function raises
ValueError for a size below 1, an unknown name or stage, more stages than layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from accounting.checks import (
    at_least_one,
    checked,
    instance_of,
    validate_fields,
    validated_choice,
    validated_model,
)
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
# Each of n ranks sends this many times (n − 1)/n of the array; a "send" goes whole to one
# neighbour.
PASSES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
# Parts and maps that every rank of a tensor group stores whole; low ranks of MLA as Megatron does.
REPLICATED = {"norms", "positions", "router", "corrections", "query_down", "latent"}
# Each rank stores at least one head of them.
KEYS = ("key", "value")


@checked(ranks=at_least_one)
def bus_factor(collective: str, ranks: int) -> float:
    """Bytes that each rank of a ring sends, divided by the size of the whole array.

    The factor is (n − 1)/n, or 2·(n − 1)/n for an all-reduce. The array is each rank's input
    (all-reduce, reduce-scatter, all-to-all) or output (all-gather). Bus bandwidth is this factor
    times the algorithm bandwidth (size / time). It does not depend on the number of ranks.
    Source: doc/PERFORMANCE.md of NVIDIA/nccl-tests.

    >>> bus_factor("all-reduce", 2), bus_factor("all-reduce", 8), bus_factor("all-gather", 8)
    (1.0, 1.75, 0.875)
    """
    return PASSES[validated_choice("collective", collective, PASSES)] * (ranks - 1) / ranks


class Collective(NamedTuple):
    """A communication of one device with the others of `ranks`.

    A step has `times` of them, for a `kind` of parallelism. `bytes` is the size of the whole array.

    >>> bf16_gradients_of_8b = 16 * 10**9
    >>> Collective("data", "all-reduce", ranks=8, bytes=bf16_gradients_of_8b, times=1).sent_bytes
    28000000000
    """

    kind: str
    name: str
    ranks: int
    bytes: int
    times: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that the device sends in a step."""
        once = -(-self.bytes * (self.ranks - 1) // self.ranks) * PASSES.get(self.name, 0)
        return self.times * (self.bytes if self.name == "send" else once)


@dataclass(frozen=True)
class Parallelism:
    """The split of training: `devices` = data · tensor · context · pipeline.

    `zero_stage` shards the model state over data · context devices (3: FSDP). `sequence` splits the
    tokens of norms and dropout over the tensor group. `expert` of the data · context devices share
    a layer's experts. A pipeline runs `micro_batches` per step by 1F1B, with `interleaved` chunks
    of layers per device.
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
        """Devices that store the same parameters, or shards of the same."""
        return self.data * self.context

    @property
    def devices(self) -> int:
        return self.replicas * self.tensor * self.pipeline

    @property
    def bubble(self) -> float:
        """Idle over busy time of a pipeline: (p − 1) / (interleaved · micro_batches).

        Exact for equally long stages; ignored: the sends. Source: Narayanan et al. 2021,
        arXiv:2104.04473, section 2.2.

        >>> [Parallelism(pipeline=8, micro_batches=32, interleaved=v).bubble for v in (1, 2)]
        [0.21875, 0.109375]
        """
        return (self.pipeline - 1) / (self.interleaved * self.micro_batches)

    def stage_layers(self, model: Model) -> tuple[int, int]:
        """Layers of the fullest stage and of the model.

        Raises ValueError for a split that the model cannot have.
        """
        for maps in model.linear_maps:
            if maps.copies > maps.uses and maps.copies % self.expert:
                raise ValueError(
                    f"expert must divide the experts of the model, {maps.copies}, got {self.expert}"
                )
        shapes = _attentions(model)
        for each in shapes:
            if each.heads % self.tensor:
                raise ValueError(
                    f"tensor must divide the heads of the model, {each.heads}, got {self.tensor}"
                )
            if each.kv_heads % self.tensor and self.tensor % each.kv_heads:
                raise ValueError(
                    f"tensor must divide kv_heads={each.kv_heads} or be a multiple of it, "
                    f"got {self.tensor}"
                )
        widest = max(self.tensor, self.context)
        if not shapes and widest > 1:
            raise ValueError(
                f"tensor and context must be 1 for a model whose heads are unknown, got {widest}"
            )
        layers = sum(number for number, _ in layers_of(model)[0])
        chunks = self.pipeline * self.interleaved
        if max(layers, 1) < chunks:
            raise ValueError(
                f"pipeline · interleaved must be at most layers={layers}, got {chunks}"
            )
        return self.interleaved * -(-layers // chunks), layers

    def shares(self, model: Model, name: str) -> int:
        """Ranks of a tensor group with different parts of a map: for keys, at most their heads."""
        if name not in KEYS:
            return self.tensor
        return min([self.tensor, *(each.kv_heads for each in _attentions(model))])

    def micro_batch(self, batch: int, sequence: int) -> tuple[int, int]:
        """Sequences of a micro-batch and their length.

        Raises ValueError if the split does not divide them.
        """
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
    """Parameters on a device of the fullest stage before ZeRO.

    The sum covers its layers, its experts and the ends. `tensor` divides matrices and embeddings.
    Replicated on each device are norms, routers, learned positions, MLA's maps to low ranks, and
    key and value heads if there are fewer than ranks. The fullest stage has the embedding or the
    head, and a copy of a tied embedding.
    Ignored: biases after row-parallel matrices, also whole, 2·dim per layer. Source: Shoeybi et al.
    2019, arXiv:1909.08053, section 3.

    >>> from accounting.models import LLAMA3_70B
    >>> device_parameters(LLAMA3_70B, Parallelism(tensor=8, pipeline=4))
    (2139422720, 0, 131342336)
    """
    (own, _), (layers, outside) = split.stage_layers(model), layers_of(model)

    def stored(parts: Parts, number: int, looked_up: bool | None = None) -> tuple[int, int]:
        """Elements of one of `number` layers: shared by all tokens, and in experts."""
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

    kinds = [(number, *stored(of, number)) for number, of in layers]
    own_layers, experts = _fullest(kinds, own)
    first, _ = stored(outside, 1, looked_up=True)
    last, more = stored(outside, 1, looked_up=False)
    tied = sum(-(-maps.weights // split.tensor) for maps in model.linear_maps if not maps.copies)
    ends = first + last if split.pipeline == 1 else max(first, last + tied)
    return own_layers, experts + more, ends


def _attentions(model: Model) -> list[AttentionLayers]:
    """The attentions whose heads are known; a counted model has none."""
    return [each for each in model.attentions if isinstance(each, AttentionLayers)]


def _fullest(kinds: Iterable[tuple[int, int, int]], own: int) -> tuple[int, int]:
    """Both columns' sums over the `own` layers that have most, of kinds (number, column,
    column).
    """
    first = second = 0
    for number, one, other in sorted(kinds, key=lambda kind: -kind[1] - kind[2]):
        chosen = min(number, own)
        own -= chosen
        first += chosen * one
        second += chosen * other
    return first, second


@checked("batch", "sequence", model=validated_model, split=instance_of(Parallelism))
def collectives(
    model: Model,
    split: Parallelism,
    batch: int,
    sequence: int,
    recipe: str | Recipe = "bf16-fp32-gradients-master",
) -> tuple[Collective, ...]:
    """Communication of one device of the busiest stage in a step, by kind of parallelism.

    The step has `batch` sequences.

    - tensor: all-reduces of the b·s·h activations after attention, MLP and embedding, and of the
      gradients before attention, MLP and head. `sequence` makes them all-gathers and
      reduce-scatters of the same bytes.
    - context: keys and values are gathered forward and backward. Their fp32 gradients go once
      around the ring.
    - pipeline: b·s·h activations go forward, and their gradient back, over each stage border.
    - expert: each token goes to its experts and back, and the gradients likewise.
    - data: gradients are all-reduced. From ZeRO stage 1 on they are reduce-scattered, and the
    parameters gathered. Stage 3 does both per micro-batch, and gathers the layers' parameters
    twice.

    Equals the traffic of torch 2.13's DDP, FSDP2, tensor, context and pipeline parallelism, with
    tokens routed evenly. Megatron gathers the layers' inputs once more in the backward pass.
    Raises ValueError for a batch or sequence that does not divide.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2; Liu et al. 2023, arXiv:2310.01889 (context); Narayanan et al.
    2021, arXiv:2104.04473, section 2.2; Lepikhin et al. 2020, arXiv:2006.16668, section 3.3
    (expert); Rajbhandari et al. 2020, arXiv:1910.02054, section 7 (data).

    >>> from accounting.models import LLAMA3_8B
    >>> for each in collectives(LLAMA3_8B, Parallelism(data=8, zero_stage=3), 8, 8192): print(*each)
    data all-gather 8 13959168000 2
    data all-gather 8 2101354496 1
    data reduce-scatter 8 32121044992 1
    """
    dtypes = recipe_of(recipe)
    batch, sequence = split.micro_batch(batch, sequence)
    rows = batch * sequence // split.context
    found = [*_of_activations(model, split, rows, dtypes), *_of_parameters(model, split, dtypes)]
    return tuple(each for each in found if each.ranks > 1 and each.bytes and each.times)


def _of_activations(
    model: Model, split: Parallelism, rows: int, dtypes: Recipe
) -> Iterator[Collective]:
    """Communication for `rows` tokens per micro-batch and rank."""
    layers, _ = split.stage_layers(model)
    micro = split.micro_batches
    whole = element_bytes(rows * list(model.linear_maps)[-1].in_features, dtypes.parameters)
    scattered = split.sequence and split.tensor > 1
    part = whole // split.tensor if scattered else whole
    exits = 4 * layers + (2 if split.pipeline == 1 else 1)
    for name in ("all-gather", "reduce-scatter") if scattered else ("all-reduce",):
        yield Collective("tensor", name, split.tensor, whole, exits * micro)

    shapes = _attentions(model)
    widths = [each.kv_heads * (each.head_dim + each.value_dim) for each in shapes]
    kinds = [(each.layers, width, 0) for each, width in zip(shapes, widths, strict=True)]
    keys, _ = _fullest(kinds, layers)
    of_rank = rows * keys // split.shares(model, "key")
    gathered = split.context * element_bytes(of_rank, dtypes.parameters)
    gradients = element_bytes(of_rank, "fp32")
    yield Collective("context", "all-gather", split.context, gathered, 2 * micro)
    yield Collective("context", "send", split.context, gradients, split.context * micro)
    borders = 2 * split.interleaved - (split.pipeline == 2)
    yield Collective("pipeline", "send", split.pipeline, part, borders * micro)

    downs = [maps for maps in model.linear_maps if maps.name == "down" and maps.copies > maps.uses]
    routed, _ = _fullest([(maps.layers, maps.uses, 0) for maps in downs], max(layers, 1))
    yield Collective("expert", "all-to-all", split.expert, part, 4 * routed * micro)


def _of_parameters(model: Model, split: Parallelism, dtypes: Recipe) -> Iterator[Collective]:
    """Communication of gradients and, with ZeRO, parameters; experts are shared among fewer
    devices.
    """
    own, experts, ends = device_parameters(model, split)
    yield from _of_shared(split, dtypes, own, ends, split.replicas)
    yield from _of_shared(split, dtypes, experts, 0, split.replicas // split.expert)


def _of_shared(
    split: Parallelism, dtypes: Recipe, inside: int, outside: int, sharers: int
) -> Iterator[Collective]:
    """Communication of parameters inside and outside of layers, which `sharers` devices share."""
    stage, micro = split.zero_stage, split.micro_batches
    gradients = element_bytes(inside + outside, dtypes.gradients)
    if not stage:
        yield Collective("data", "all-reduce", sharers, gradients, 1)
        return
    for elements, count in ((inside, 2 * micro), (outside, micro)):
        parameters = element_bytes(elements, dtypes.parameters)
        yield Collective("data", "all-gather", sharers, parameters, count if stage == 3 else 1)
    yield Collective("data", "reduce-scatter", sharers, gradients, micro if stage > 1 else 1)
