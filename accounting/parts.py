"""The parts of a model: what it multiplies by, what it attends over, and its other parameters.

A model is three lists: linear maps, attentions, other parameters. Any object with these attributes
is a model for `accounting.models`. `Parts` compose: `a + b` is a, then b. `a | b` is a beside b, on
the same input. `n * a` is n layers of a. A negative size raises ValueError, one that is not an
integer TypeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

from accounting.attention import Attention, attention_backward_flops, attention_flops
from accounting.checks import validate_fields, validated_int
from accounting.flops import MULTIPLY_ADD_FLOPS

# Tokens of a sequence; of a counted model with an encoder the tokens of each stream, "source" and
# "tokens".
Lengths = int | Mapping[str, int]


@dataclass(frozen=True)
class Part:
    """A part that each of `layers` equal layers has; `place` orders the parts of a forward pass.

    `block_end` is the last place of the repeated layer. Nothing precedes the first place of the
    first layer.

    >>> block = Parts((LinearMaps("mlp", 8, 32),)) + Parts((LinearMaps("mlp", 32, 8),))
    >>> [(part.layers, part.place, part.block_end) for part in (3 * block).linear_maps]
    [(3, 0, 1), (3, 1, 1)]
    """

    part: str
    _: KW_ONLY
    layers: int = 1
    place: int = 0
    block_end: int = 0

    @property
    def parameters(self) -> int:
        """Stored elements, in all layers."""
        return 0


@dataclass(frozen=True)
class LinearMaps(Part):
    """Equal matrices of in_features × out_features.

    A layer stores `copies`, and a row is multiplied by `uses` of them. Experts are stored but
    mostly not used; a tied head is used but not stored. Checkpointing with early stop skips
    products that end a layer (`ends_layer`), since nothing keeps their result.

    >>> LinearMaps("mlp", 8, 32, layers=3, copies=4, uses=2, bias=True).parameters
    3456
    """

    in_features: int
    out_features: int
    _: KW_ONLY
    name: str = ""
    copies: int = 1
    uses: int = 1
    bias: bool = False
    ends_layer: bool = False

    def __post_init__(self) -> None:
        validate_fields(
            self, "in_features", "out_features", "layers", "copies", "uses", "place", "block_end"
        )
        validate_fields(self, flags=["bias", "ends_layer"])

    @property
    def weights(self) -> int:
        """Elements of one matrix."""
        return self.in_features * self.out_features

    @property
    def biases(self) -> int:
        """Elements of one bias vector."""
        return self.out_features if self.bias else 0

    @property
    def parameters(self) -> int:
        return self.layers * self.copies * (self.weights + self.biases)

    @property
    def used(self) -> int:
        """Stored matrices that one row is multiplied by, in all layers."""
        return self.layers * min(self.copies, self.uses)

    def product_flops(self, batch: int, sequence: Lengths) -> int:
        """FLOPs of the products with the rows of `batch` sequences."""
        rows = validated_int("batch", batch) * length("tokens", sequence)
        return MULTIPLY_ADD_FLOPS * rows * self.layers * self.uses * self.weights


@dataclass(frozen=True)
class OtherParameters(Part):
    """`elements` per layer that are not multiplied as a matrix: embeddings, norms, sinks, decays.

    Each row reads one line of a `looked_up` table. `longest` is the length of a table of positions.

    >>> OtherParameters("norms", 4096, layers=65).parameters
    266240
    """

    elements: int
    _: KW_ONLY
    looked_up: bool = False
    longest: int = 0  # 0: any

    def __post_init__(self) -> None:
        validate_fields(self, "elements", "layers", "place", "block_end", "longest")
        validate_fields(self, flags=["looked_up"])

    @property
    def parameters(self) -> int:
        return self.layers * self.elements


@dataclass(frozen=True)
class AttentionLayers(Part):
    """Causal attention of every layer: `heads` of width head_dim score queries against keys.

    A token sees the last `window` tokens, or all (0). `latent` is a token's compressed cache entry
    (MLA), from which every head's keys and values are made. The entry has a shared width, key and
    value at once, and a rotary width, key only. Raises ValueError unless kv_heads divides heads.

    >>> llama = AttentionLayers("attention", 32, 128, kv_heads=8, layers=32)
    >>> mistral = replace(llama, window=4096)
    >>> [each.forward_flops(1, 32768, "causal") / 1e15 for each in (llama, mistral)]
    [0.281483566645248, 0.065971771408384]
    >>> mistral.cached_elements(32768) / mistral.cached_elements(1)
    4095.0
    """

    heads: int
    head_dim: int
    _: KW_ONLY
    kv_heads: int = 0  # 0: heads
    value_dim: int = 0  # 0: head_dim
    window: int = 0
    latent: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "value_dim", self.value_dim or self.head_dim)
        sizes = ("heads", "head_dim", "kv_heads", "value_dim", "window")
        validate_fields(self, *sizes, "layers", "place", "block_end")
        self.shape(1, 1, 1)

    def shape(self, batch: int, queries: int, keys: int, pairs: str = "full") -> Attention:
        """The shape of all layers, as one of layers·batch sequences."""
        return Attention(
            self.layers * validated_int("batch", batch),
            self.heads,
            queries,
            self.head_dim,
            key_length=keys,
            kv_heads=self.kv_heads,
            value_dim=self.value_dim,
            window=self.window or None,
            pairs=pairs,
        )

    def forward_flops(self, batch: int, sequence: Lengths, pairs: str) -> int:
        """FLOPs of the forward products, of all layers."""
        tokens = length("tokens", sequence)
        return attention_flops(self.shape(batch, tokens, tokens, pairs))

    def backward_flops(
        self,
        batch: int,
        sequence: Lengths,
        pairs: str,
        convention: str,
    ) -> int:
        """FLOPs of the gradients of queries, keys and values, of all layers."""
        tokens = length("tokens", sequence)
        return attention_backward_flops(self.shape(batch, tokens, tokens, pairs), convention)

    def decoding_flops(self, batch: int, context: Lengths) -> int:
        """FLOPs of one further token after `context`; every head attends to the latents of MLA."""
        shape = self.shape(batch, 1, length("tokens", context) + 1, "causal")
        if self.latent[0]:
            shape = replace(shape, kv_heads=1, head_dim=sum(self.latent), value_dim=self.latent[0])
        return attention_flops(shape)

    def cached_elements(self, context: Lengths) -> int:
        """Elements that all layers keep of one sequence.

        Within a window of w these are of the last w − 1 tokens.
        """
        tokens = length("tokens", context)
        if self.window:
            tokens = min(tokens, self.window - 1)
        width = sum(self.latent) or self.kv_heads * (self.head_dim + self.value_dim)
        return self.layers * tokens * width


AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Parts:
    """Three lists, which are a model or a part of one.

    >>> block = Parts((LinearMaps("mlp", 8, 32),)) + Parts((LinearMaps("mlp", 32, 8),))
    >>> [(maps.layers, maps.place) for maps in (3 * block).linear_maps]
    [(3, 0), (3, 1)]
    """

    linear_maps: tuple[LinearMaps, ...] = ()
    attentions: tuple[AttentionLayers, ...] = ()
    other_parameters: tuple[OtherParameters, ...] = ()

    @property
    def places(self) -> int:
        """Places from the first part to the last."""
        return 1 + max(
            (each.place for each in (*self.linear_maps, *self.attentions, *self.other_parameters)),
            default=-1,
        )

    def __or__(self, other: Parts) -> Parts:
        return Parts(
            self.linear_maps + other.linear_maps,
            self.attentions + other.attentions,
            self.other_parameters + other.other_parameters,
        )

    def __add__(self, other: Parts) -> Parts:
        return self | other._changed(self.places, 1)

    def __rmul__(self, layers: int) -> Parts:
        return self._changed(0, validated_int("layers", layers), block_end=self.places - 1)

    def _changed(self, shift: int, layers: int, block_end: int | None = None) -> Parts:
        def changed(parts: tuple[AnyPart, ...]) -> tuple[AnyPart, ...]:
            return tuple(moved(each) for each in parts if layers)

        def moved(each: AnyPart) -> AnyPart:
            """The part at another place.

            The part's sizes were checked when it was made; checking again would take longer than
            the move.
            """
            copied = object.__new__(type(each))
            end = max(each.block_end, each.place) + shift if block_end is None else block_end
            changes = {
                "place": each.place + shift,
                "layers": each.layers * layers,
                "block_end": end,
            }
            copied.__dict__.update(each.__dict__, **changes)
            return copied

        return Parts(
            changed(self.linear_maps), changed(self.attentions), changed(self.other_parameters)
        )


def layers_of(model: Any) -> tuple[list[tuple[int, Parts]], Parts]:
    """Each kind of repeated layer with the number of its layers, and the parts outside.

    >>> first, second, head = (Parts((LinearMaps("mlp", 8, 8),)) for _ in range(3))
    >>> repeated, outside = layers_of(3 * (first + second) + head)
    >>> [(number, len(layer.linear_maps)) for number, layer in repeated]
    [(3, 2)]
    """
    everything = [*model.linear_maps, *model.attentions, *model.other_parameters]
    ends = {each.block_end for each in everything if each.place < each.block_end}

    def ending(*found: int) -> Parts:
        lists: Any = (model.linear_maps, model.attentions, model.other_parameters)
        kept = (tuple(each for each in parts if each.block_end in found) for parts in lists)
        return Parts(*kept)

    layers = [
        (min(each.layers for each in everything if each.block_end == end), ending(end))
        for end in sorted(ends)
    ]
    return layers, ending(*{each.block_end for each in everything} - ends)


def length(stream: str, sequence: Lengths) -> int:
    """Tokens of a stream: its entry in `sequence`; a plain number belongs to the stream "tokens".

    >>> length("tokens", 512), length("source", {"source": 512, "tokens": 114})
    (512, 512)
    """
    lengths = sequence if isinstance(sequence, Mapping) else {"tokens": sequence}
    if stream not in lengths:
        example = {stream: 512, "tokens": 512}
        raise ValueError(
            f"sequence must give the length of {stream!r}, as in {example}, got {sequence!r}"
        )
    return validated_int("sequence", lengths[stream])
