"""The tensors that a decoder's forward pass keeps for its backward pass, one by one.

A tensor is kept if a gradient needs it. A linear map's weight gradient needs its input, a
nonlinearity its input or output. Attention needs its queries, keys, values, outputs and row sums.
Views of one storage count once. Not included: parameters, the batch, the net's output and the loss,
which are kept for other reasons. For any other net use `prooflops.memory.predicted_memory`.

Exact for the nets of bench/models.py on the CPU, as torch 2.13 runs them, for fp32, fp64, bf16 and
fp16. A model composed of parts keeps the same tensors as these layers in those nets. On CUDA
LayerNorm keeps fp32 statistics even for 16-bit dtypes. RMSNorm is one kernel there, without a
normalised copy (`fused_norms`). Flash attention adds 24 bytes of random state per layer (16 in
older releases) and pads head_dim to a multiple of 8. Every function raises ValueError for a size
below 1, an unknown dtype or attention, TypeError for another model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from accounting.checks import at_least_one, checked, instance_of, validated_choice
from accounting.formats import Dtype, dtype_name, element_bits
from accounting.memory import element_bytes
from accounting.models import DeepLinear, Transformer
from accounting.parts import AttentionLayers, LinearMaps, Parts, layers_of

Model = DeepLinear | Transformer | Parts

ATTENTION = ("flash", "math", "unfused")
DTYPES = ("fp64", "fp32", "bf16", "fp16")
# The state of torch's CPU generator, which each checkpointed segment keeps in order to repeat its
# dropout.
RANDOM_STATE_BYTES = 5056


class SavedTensor(NamedTuple):
    """`copies` equal tensors of `elements` values that autograd keeps for one part of a model.

    >>> SavedTensor("mlp", "hidden", 8192 * 14336, "bf16", copies=4).bytes / 2**20
    896.0
    """

    part: str
    name: str
    elements: int
    dtype: str
    copies: int = 1

    @property
    def bytes(self) -> int:
        return self.copies * element_bytes(self.elements, self.dtype)


def _known(name: str, value: Any) -> Model:
    """`value` if its saved tensors are known individually."""
    if not isinstance(value, Model):
        raise TypeError(
            f"{name} must be a DeepLinear, a Transformer or Parts, got a {type(value).__name__}; "
            "prooflops.memory.predicted_memory counts the saved tensors of a net"
        )
    if not all(isinstance(each, AttentionLayers) for each in value.attentions):
        raise ValueError(
            f"activations of {value!r} are unknown to the formulas; "
            "prooflops.memory.predicted_memory counts the saved tensors of a net"
        )
    return value


@checked(batch=at_least_one, sequence=at_least_one, model=_known, flags=("dropout", "fused_norms"))
def saved_tensors(
    model: Model,
    batch: int,
    sequence: int = 1,
    dtype: Dtype = "fp32",
    attention: str = "flash",
    autocast: str | None = None,
    *,
    dropout: bool = False,
    fused_norms: bool = False,
) -> tuple[SavedTensor, ...]:
    """The tensors that the forward pass keeps, by part: their bytes sum to `activation_bytes`.

    Covered are layers with norms, attention, MLPs and experts. A norm keeps its input and its
    output.

    `dtype` is the dtype of parameters and activations. `attention`: "flash" keeps one fp32 number
    per query. The others keep each head's whole sequence × sequence matrix. "math" (torch's) keeps
    it in fp32 for 16-bit dtypes, "unfused" (product, softmax, product, as in Megatron) in the dtype
    itself. `dropout` after embedding, attention, MLP and kept probabilities adds masks of one byte
    per element, as on CUDA (the CPU keeps them in `dtype`). `autocast`, for deep linear nets only,
    computes in that dtype and keeps casts of the input and of every weight that passes a gradient
    on.
    Raises ValueError for autocast of a transformer, dropout of a deep linear net.

    >>> for tensor in saved_tensors(DeepLinear(dim=4, layers=2), batch=2):
    ...     print(*tensor, tensor.bytes)
    layers output 8 fp32 2 64
    """
    dtype = dtype_name(dtype, DTYPES)
    if isinstance(model, DeepLinear):
        if dropout:
            raise ValueError("dropout must be False for a deep linear net, got True")
        return tuple(_of_deep_linear(model, batch, dtype, autocast))
    if autocast is not None:
        raise ValueError(f"autocast must be None for a transformer, got {autocast!r}")
    validated_choice("attention", attention, ATTENTION)
    layers, outside = layers_of(model)
    tokens = batch * sequence
    dim = list(model.linear_maps)[-1].in_features
    rms = getattr(model, "norm", "rmsnorm") == "rmsnorm"
    learned = any(each.part == "positions" for each in outside.other_parameters)
    saved = []
    if learned:
        saved.append(SavedTensor("embedding", "positions", sequence, "int64"))
    if dropout:
        saved.append(SavedTensor("embedding", "dropout mask", tokens * dim, "bool"))
    first_layer = min((each.place for each in layers[0][1].linear_maps), default=0) if layers else 0
    for norm in outside.other_parameters:
        if norm.part == "norms":
            part = "embedding" if norm.place < first_layer else "head"
            saved += _of_norm(rms, part, tokens, dim, dtype)
    for number, layer in layers:
        block = [*_of_layer(layer, number, dim, tokens, rms, dtype)]
        for each in layer.attentions:
            block += _of_attention(each, tokens, sequence, dtype, attention)
            if not learned:
                angles = sequence * each.head_dim
                block.append(SavedTensor("attention", "cosines and sines", angles, dtype, copies=4))
        if dropout:
            block += _of_dropout(block, tokens * dim)
        saved += [each._replace(copies=each.copies * number) for each in block]
    if fused_norms:
        saved = [
            each._replace(dtype=dtype) if each.name == "norm input" else each
            for each in saved
            if each.name != "norm before weight"
        ]
    return tuple(saved)


def _of_dropout(block: list[SavedTensor], elements: int) -> Iterator[SavedTensor]:
    """Masks of a layer's dropout, and the probabilities behind it."""
    for each in block:
        if each.name == "probabilities":
            yield each._replace(name="probabilities' mask", dtype="bool")
            yield each._replace(name="probabilities after dropout")
    yield SavedTensor("layers", "dropout mask", elements, "bool", copies=2)


@checked(
    "checkpoint_every",
    flags=("dropout", "fused_norms"),
    batch=at_least_one,
    micro_batches=at_least_one,
)
def activation_bytes(
    model: Model,
    batch: int,
    sequence: int = 1,
    dtype: Dtype = "fp32",
    *,
    checkpoint_every: int = 0,
    micro_batches: int = 1,
    attention: str = "flash",
    autocast: str | None = None,
    dropout: bool = False,
    fused_norms: bool = False,
) -> int:
    """Bytes that the forward pass leaves for the backward pass.

    A deep linear net leaves batch · dim · layers elements. `checkpoint_every` = k keeps only the
    input of every k layers. Not included: 5056 bytes of random state per input on the CPU.
    `micro_batches` splits the batch and accumulates gradients: only the largest part, ⌈batch / n⌉,
    keeps activations. `fused_norms` are CUDA's.
    Exact (see the module). A GPT block in 16 bits, unfused, with dropout keeps s·b·h·(34 +
    5·a·s/h). The source leaves out the norms' statistics, 8·s·b, below 0.1 % from h = 256 on.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 1.

    >>> net = DeepLinear(dim=4, layers=4)
    >>> activation_bytes(net, 2), activation_bytes(net, 2, checkpoint_every=2)
    (128, 64)
    """
    part, every = -(-batch // micro_batches), checkpoint_every
    saved = saved_tensors(
        model,
        part,
        sequence,
        dtype,
        attention,
        autocast,
        dropout=dropout,
        fused_norms=fused_norms,
    )
    if every and autocast is not None:
        raise ValueError(f"autocast must be None with checkpoint_every, got {autocast!r}")
    if not every:
        return sum(tensor.bytes for tensor in saved)
    ends = sum(tensor.bytes for tensor in saved if tensor.part in ("embedding", "head"))
    # The first segment of a deep linear net has the batch as input, but the last one's output is
    # the input of the head.
    layers = sum(number for number, _ in layers_of(model)[0])
    segments = -(-getattr(model, "layers", layers) // every)
    return ends + segments * _layer_input_bytes(model, part, sequence, dtype)


@checked("model_state_bytes", model=instance_of(DeepLinear), batch=at_least_one)
def deep_linear_peak_bytes(
    model: DeepLinear, batch: int, dtype: Dtype = "fp32", model_state_bytes: int | None = None
) -> int:
    """Peak bytes alive in forward and backward of a deep linear net under a mean-square loss.

    Activations die layer by layer as gradients appear, so the peak is the largest of several
    moments, on top of parameters, optimizer state and batch. The first moment is the loss, with all
    activations and 5 outputs; the next is the head. Then come the layers, each with its incoming
    and outgoing gradient, the activations below and the weight gradients above. With b = batch ·
    dim and w = dim², n layers peak near (n + 1) · b + w if b > w, else at n · w + b. The lecture's
    sum is n · (b + w). `model_state_bytes` is parameters and optimizer state (None: the parameters
    alone).
    Exact for nets without bias whose gradients were freed before the step; ignores the optimizer's
    scratch (`accounting.memory.optimizer_step_peak_bytes`). Raises ValueError for a net with bias.

    >>> deep_linear_peak_bytes(DeepLinear(dim=8, layers=4), batch=64)
    13640
    """
    if model.bias:
        raise ValueError(f"model must have no bias, got {model}")
    size = element_bits(dtype_name(dtype, DTYPES)) // 8
    n, rows = model.layers, batch
    activation, output, head = rows * model.dim, rows * model.outputs, model.dim * model.outputs
    weight, first = model.dim**2, model.inputs * model.dim
    moments = [n * activation + 5 * output, (n + 1) * activation + output + head]
    moments += [
        (layer + 1) * activation + (n - layer + 1) * weight + head for layer in range(n, 1, -1)
    ]
    moments += [activation + (n - 1) * weight + first + head]
    if model_state_bytes is None:
        model_state_bytes = (first + (n - 1) * weight + head) * size
    loss_and_its_gradient = 2
    step_bytes = (rows * model.inputs + max(moments) + loss_and_its_gradient) * size
    return model_state_bytes + step_bytes


def _of_deep_linear(
    model: DeepLinear, batch: int, dtype: str, autocast: str | None
) -> Iterator[SavedTensor]:
    """The input of each linear map but the first, which is the batch."""
    if autocast is not None and validated_choice("autocast", autocast, DTYPES) != dtype:
        yield SavedTensor("layers", "cast input", batch * model.inputs, autocast)
        yield SavedTensor("layers", "cast weight", model.dim**2, autocast, copies=model.layers - 1)
        yield SavedTensor("head", "cast weight", model.dim * model.outputs, autocast)
        dtype = autocast
    yield SavedTensor("layers", "output", batch * model.dim, dtype, copies=model.layers)


def _wide(dtype: str) -> str:
    """The dtype in which reductions over a 16-bit dtype are accumulated and kept."""
    return "fp32" if element_bits(dtype) < 32 else dtype


def _layer_input_bytes(model: Model, batch: int, sequence: int, dtype: Dtype) -> int:
    """Bytes of one layer's input: a row per example of a deep linear net, per token of a
    transformer.
    """
    rows = 1 if isinstance(model, DeepLinear) else sequence
    dim = list(model.linear_maps)[-1].in_features
    return element_bytes(batch * rows * dim, dtype)


def _of_norm(rms: bool, part: str, tokens: int, width: int, dtype: str) -> Iterator[SavedTensor]:
    """Input and statistics of a norm, and its output, which the next linear maps read."""
    if rms:
        yield SavedTensor(part, "norm input", tokens * width, _wide(dtype))
        yield SavedTensor(part, "norm reciprocal root", tokens, _wide(dtype))
        yield SavedTensor(part, "norm before weight", tokens * width, _wide(dtype))
    else:
        yield SavedTensor(part, "norm input", tokens * width, dtype)
        yield SavedTensor(part, "norm mean and deviation", tokens, dtype, copies=2)
    yield SavedTensor(part, "norm output", tokens * width, dtype)


def _of_layer(
    layer: Parts, number: int, dim: int, tokens: int, rms: bool, dtype: str
) -> Iterator[SavedTensor]:
    """The tensors that one of `number` equal layers keeps, except those of attention itself."""
    for each in layer.other_parameters:
        if each.part == "norms":
            for tensor in _of_norm(rms, "layers", tokens, min(each.elements, dim), dtype):
                yield tensor._replace(copies=tensor.copies * each.layers // number)
        elif each.part == "attention":
            # Norms of queries and keys.
            for of in layer.attentions:
                yield SavedTensor("attention", "query", tokens * of.heads * of.head_dim, dtype)
                yield SavedTensor("attention", "key", tokens * of.kv_heads * of.head_dim, dtype)
    gates = {maps.out_features for maps in layer.linear_maps if maps.name == "gate"}
    for maps in layer.linear_maps:
        if maps.name == "down":
            yield from _of_mlp(maps, tokens, dtype, gated=maps.in_features in gates)


def _of_attention(
    layer: Any, tokens: int, sequence: int, dtype: str, attention: str
) -> Iterator[SavedTensor]:
    queries, values = tokens * layer.heads * layer.head_dim, tokens * layer.heads * layer.value_dim
    if attention == "flash":
        yield SavedTensor("attention", "query", queries, dtype)
        yield SavedTensor("attention", "key", queries // layer.heads * layer.kv_heads, dtype)
        yield SavedTensor("attention", "value", values // layer.heads * layer.kv_heads, dtype)
        yield SavedTensor("attention", "log of row sums", tokens * layer.heads, _wide(dtype))
    else:
        # Keys and values are repeated for every query head; torch makes 16-bit products in fp32.
        made = _wide(dtype) if attention == "math" else dtype
        yield SavedTensor("attention", "query", queries, made)
        yield SavedTensor("attention", "repeated key", queries, made)
        yield SavedTensor("attention", "repeated value", values, made)
        yield SavedTensor("attention", "probabilities", tokens * sequence * layer.heads, made)
    yield SavedTensor("attention", "output", values, dtype)


def _of_mlp(down: LinearMaps, tokens: int, dtype: str, gated: bool) -> Iterator[SavedTensor]:
    rows = tokens
    if down.copies > 1:
        rows *= down.uses
        yield SavedTensor("router", "chosen, gathered and inverse index", rows, "int64", copies=3)
        yield SavedTensor("router", "weights", rows, dtype)
        yield SavedTensor(
            "mlp", "gathered and returned rows", rows * down.out_features, dtype, copies=2
        )
    # gate, silu(gate), up and their product; or up and gelu(up).
    yield SavedTensor("mlp", "hidden", rows * down.in_features, dtype, copies=4 if gated else 2)
