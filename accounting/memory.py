"""Bytes of training: tensors and their storages, parameters, gradients, optimizer state, master copies, KV cache.

Activations are in `accounting.activations`, the blocks a CUDA device hands out in `accounting.allocator`.
All bytes here are requested bytes: what the tensors hold, before any allocator rounds them up.
Every function raises ValueError for a negative count or size, an unknown dtype, optimizer or recipe, naming valid ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from accounting.checks import checked, validated_bool, validated_choice, validated_int, validated_ints
from accounting.formats import Dtype, dtype_name, element_bits
from accounting.layout import Layout
from accounting.optimizers import (
    IMPLEMENTATIONS,
    LEAST_IN_8_BITS,
    OPTIMIZERS,
    SCRATCH,
    STEP_BYTES,
    TABLE_BYTES,
    Optimizer,
    Recipe,
    optimizer_of,
    recipe_of,
)

Parameters = int | Sequence[Sequence[int]]  # how many, or the shapes of their tensors


def element_bytes(elements: int, dtype: Dtype = "fp32") -> int:
    """Bytes of `elements` values packed one after the other: ⌈elements · bits / 8⌉.

    Exact for every dtype; formats below a byte are taken as packed (two fp4 or int4 values a byte, the last byte
    perhaps half full), their block scales not included.

    >>> element_bytes(1000, "bf16"), element_bytes(3, "fp4_e2m1")
    (2000, 2)
    """
    return -(-validated_int("elements", elements) * element_bits(dtype) // 8)


def tensor_bytes(shape: Sequence[int], dtype: Dtype = "fp32") -> int:
    """Bytes of the values of a tensor: elements · bytes per element.

    Equals `tensor.nbytes`. It is the size of the storage only for a tensor that has its storage to itself and
    visits each place once: an expanded view has more elements than its storage, a slice fewer (`storage_bytes`).

    >>> tensor_bytes((4, 8)), tensor_bytes((12288, 49152)), tensor_bytes((4, 8), "fp8_e4m3")
    (128, 2415919104, 32)
    """
    return element_bytes(prod(validated_ints("shape", shape)), dtype)


def storage_bytes(shape: Sequence[int], strides: Sequence[int], dtype: Dtype = "fp32", offset: int = 0) -> int:
    """Bytes of the least storage that holds a strided view: (offset + 1 + Σ (size − 1) · stride) · bytes per element.

    This is what torch allocates for such strides (`empty_strided`). A view of a larger tensor keeps all of that
    tensor's storage alive, of which this is a lower bound. A tensor without elements needs no storage. Exact.

    >>> storage_bytes((1000,), (0,)), storage_bytes((8,), (1,), offset=24)
    (4, 128)
    """
    layout = Layout(validated_ints("shape", shape), validated_ints("strides", strides), offset)
    return element_bytes(layout.storage_numel, dtype)


def optimizer_state_bytes(
    parameters: Parameters,
    optimizer: str | Optimizer = "adamw",
    dtype: Dtype = "fp32",
    tensors: int | None = None,
    steps: int | None = None,
) -> int:
    """Bytes an optimizer keeps: parameters · buffers · bytes per element + 4 · scalars · tensors.

    torch allocates the buffers at the first step, so nothing is there before it (`steps` = 0); AdaGrad's accumulator is
    there from the constructor on, and L-BFGS adds two buffers an iteration until its history is full (`steps` = None),
    20 iterations a step, which is exact where each has positive curvature and none ends early.
    Most optimizers also keep scalars for each of the `tensors` parameter tensors, such as a step count: on the CPU,
    unless the optimizer is fused or capturable (then on the parameter's device, as ASGD's always are). By default they
    are counted where the tensors' shapes are given, and not where `parameters` is a number: what a CUDA device holds.
    Adafactor, whose state depends on the shapes, needs them; Muon takes matrices alone; 8 bits take a number for one
    large tensor, and count the tables of their codes (1,024 bytes a buffer) where shapes are given.
    Exact for parameters that all have gradients; torch gives the buffers the parameter's own dtype.
    Raises ValueError for shapes that the optimizer lacks or refuses.
    Source: `_init_group` and `__init__` of the optimizers in torch/optim of torch 2.13; bitsandbytes 0.50.

    >>> optimizer_state_bytes(1_000_000, "adamw"), optimizer_state_bytes(1_000_000, "adamw", steps=0)
    (8000000, 0)
    >>> optimizer_state_bytes([(512, 2048), (512,)], "adafactor"), optimizer_state_bytes(2**20, "adam-8bit")
    (12296, 2129920)
    """
    kept, shapes = optimizer_of(optimizer), _shapes(parameters)
    if steps is not None and not validated_int("steps", steps) and not kept.eager:
        return 0
    if shapes is None and kept.factored:
        raise ValueError(f"parameters must be shapes of tensors for {kept.class_name}, got the number {parameters}")
    if kept.matrices_only and any(len(shape) != 2 for shape in shapes or ()):
        raise ValueError(f"parameters must be shapes of matrices for {kept.class_name}, got {shapes}")
    tensors = len(shapes or ()) if tensors is None else validated_int("tensors", tensors)
    scalars = STEP_BYTES * len(kept.scalars) * tensors
    each = [(validated_int("parameters", parameters),)] if shapes is None else shapes
    if kept.block:
        return scalars + _bytes_in_blocks(kept, [prod(shape) for shape in each], exact=shapes is not None)
    per_step: int = kept.options.get("max_iter", 1)
    pairs = kept.history if steps is None else max(0, min(kept.history, per_step * steps - 1))
    elements = sum(
        prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
        if kept.factored and len(shape) > 1
        else (len(kept.buffers) + 2 * pairs) * prod(shape)
        for shape in each
    )
    # Each pair has two numbers, and all have one, in the dtype of the parameters.
    return scalars + element_bytes(elements + (2 * pairs + 1) * bool(pairs and tensors), dtype)


def _shapes(parameters: Parameters) -> list[tuple[int, ...]] | None:
    """The shapes of the parameter tensors, or None where their number is given."""
    if isinstance(parameters, Iterable) and getattr(parameters, "shape", None) != ():
        return [validated_ints(f"parameters[{position}]", shape) for position, shape in enumerate(parameters)]
    return None


def _elements(parameters: Parameters) -> int:
    shapes = _shapes(parameters)
    return validated_int("parameters", parameters) if shapes is None else sum(map(prod, shapes))


def _bytes_in_blocks(kept: Optimizer, sizes: Sequence[int], exact: bool) -> int:
    """Bytes of 8-bit buffers: a code for each element, a scale for each block, and the tables of the codes."""
    large = [size for size in sizes if size >= LEAST_IN_8_BITS or not exact]
    scales = STEP_BYTES * sum(-(-size // kept.block) for size in large)
    tables = TABLE_BYTES * bool(large and exact)
    return len(kept.buffers) * (element_bytes(sum(sizes) - sum(large), "fp32") + sum(large) + scales + tables)


@dataclass(frozen=True)
class ModelState:
    """Bytes that training holds whatever the batch: one number per class of tensors.

    >>> ModelState(parameters=2000, gradients=2000, state=8000, master=4000).total
    16000
    """

    parameters: int
    gradients: int
    state: int
    master: int

    @property
    def total(self) -> int:
        """All four together."""
        return self.parameters + self.gradients + self.state + self.master


def model_state(
    parameters: Parameters,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int | None = None,
) -> ModelState:
    """Bytes of parameters, gradients, optimizer state and master copy after a step, gradients not yet freed.

    Each class is parameters · bytes of its own dtype: one bytes-per-element for all of them is right only where the
    recipe has one dtype. Exact by tensor sums; activations, module buffers, workspaces and the allocator's rounding
    come on top (`training_bytes`, `accounting.allocator`).
    Source: the "model states" of Rajbhandari et al. 2020 (ZeRO), section 3.1, https://arxiv.org/abs/1910.02054

    >>> model_state(1_000_000_000).total, model_state(1_000_000_000, "adagrad").total
    (16000000000, 12000000000)
    >>> model_state(1000, recipe="bf16-fp32-master")
    ModelState(parameters=2000, gradients=2000, state=8000, master=4000)
    """
    dtypes, elements = recipe_of(recipe), _elements(parameters)
    return ModelState(
        parameters=element_bytes(elements, dtypes.parameters),
        gradients=element_bytes(elements, dtypes.gradients),
        state=optimizer_state_bytes(parameters, optimizer, dtypes.state, tensors),
        master=element_bytes(elements, dtypes.master) if dtypes.master else 0,
    )


def bytes_per_parameter(optimizer: str | Optimizer = "adamw", recipe: str | Recipe = "fp32") -> float:
    """Bytes of model state for each parameter: AdamW in fp32 4 + 4 + 4 + 4 = 16.

    The 4-byte step counts are left out: 4 bytes per tensor, below 0.1 % of the state once tensors average 500 elements.

    >>> [bytes_per_parameter(optimizer) for optimizer in ("sgd", "adagrad", "adamw")]
    [8.0, 12.0, 16.0]
    >>> [bytes_per_parameter(recipe=recipe) for recipe in ("bf16", "bf16-fp32-state", "bf16-fp32-master")]
    [8.0, 12.0, 16.0]
    """
    # So many elements fill whole bytes in every format, and whole blocks.
    return model_state(8 * 256, optimizer, recipe).total / (8 * 256)


def training_bytes(
    parameters: Parameters,
    activations: int,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int | None = None,
) -> int:
    """Bytes of a training step if everything is alive at once: parameters + gradients + state + master + activations.

    With fp32 throughout and A activation elements this is 4 · (parameters + A + gradients + state). `activations` is
    in bytes. An estimate of the peak, not a bound: gradients grow while activations die, so all of them are never
    alive together; on the other side the gradients of activations and temporaries are left out. For a deep linear
    net `accounting.activations.deep_linear_peak_bytes` is exact.

    >>> training_bytes(36, 4 * 16, "adagrad"), training_bytes(36, 4 * 16, "adam")
    (496, 640)
    """
    return model_state(parameters, optimizer, recipe, tensors).total + validated_int("activations", activations)


@checked("activations", "tensors", set_to_none=validated_bool)
def training_phases(
    parameters: Parameters,
    activations: int = 0,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int | None = None,
    set_to_none: bool = True,
) -> dict[str, int]:
    """Live bytes at each moment of the first two training steps, from the built model to the second step.

    `activations` are the bytes that the forward pass leaves and the backward pass frees (saved tensors, output, loss).
    Gradients appear with the first backward and go with zero_grad, unless set_to_none=False keeps them; state appears
    with the first step (AdaGrad's with the constructor) and stays. The batch itself is not included.
    Exact for requested bytes between the calls; inside them more is held for a while.

    >>> phases = training_phases(100, activations=40, optimizer="adamw")
    >>> [phases[moment] for moment in ("built", "forward", "backward", "step", "zero_grad", "second forward")]
    [400, 440, 800, 1600, 1200, 1240]
    """
    dtypes = recipe_of(recipe)
    after_step = model_state(parameters, optimizer, recipe, tensors)
    built = after_step.parameters + after_step.master
    built += optimizer_state_bytes(parameters, optimizer, dtypes.state, tensors, steps=0)
    rested = after_step.total - (after_step.gradients if set_to_none else 0)
    activations = validated_int("activations", activations)
    return {
        "built": built,
        "forward": built + activations,
        "backward": built + after_step.gradients,
        "step": after_step.total,
        "zero_grad": rested,
        "second forward": rested + activations,
        "second backward": after_step.total,
        "second step": after_step.total,
    }


def optimizer_step_peak_bytes(
    sizes: Iterable[int], implementation: str = "foreach", dtype: Dtype = "fp32", optimizer: str | Optimizer = "adamw"
) -> int:
    """Peak bytes inside step(): parameters, gradients, state, scalars, and the scratch of the implementation.

    `sizes` are the elements of each parameter tensor, in the optimizer's order. A fused kernel needs no scratch: AdamW
    16 bytes per fp32 parameter. foreach (torch's choice on CUDA) makes its temporaries of all tensors at once, √v: 20.
    The for-loop (torch's choice on the CPU) makes √v and the denominator of one tensor while the previous denominator
    is still referenced: 16 + max (previous + 2 · current), at most 16 + 3 × the largest tensor.
    Exact from an optimizer's second step on (RAdam's sixth) up to 20 bytes of boxed scalars on the CPU. Not for a
    capturable, differentiable or maximising optimizer.
    Raises ValueError for an optimizer or implementation whose scratch is not on record, naming those that are.
    Source: torch/optim of torch 2.13.

    >>> [optimizer_step_peak_bytes([1000], implementation) for implementation in ("fused", "foreach", "for-loop")]
    [16004, 20004, 24004]
    >>> [optimizer_step_peak_bytes([1000], optimizer=name) for name in ("momentum", "adagrad")]
    [12000, 20004]
    """
    kept, elements, name = optimizer_of(optimizer), validated_ints("sizes", sizes), dtype_name(dtype)
    if kept.class_name not in SCRATCH:
        valid = [each for each, row in OPTIMIZERS.items() if row.class_name in SCRATCH]
        raise ValueError(f"optimizer must be one of {', '.join(valid)}, whose scratch is on record, got {optimizer!r}")
    scratch = SCRATCH[kept.class_name]
    held = model_state(sum(elements), kept, Recipe(name, name, name), tensors=len(elements)).total
    match validated_choice("implementation", implementation, [*IMPLEMENTATIONS][not scratch.fused :]):
        case "fused":
            return held
        case "foreach":
            return held + element_bytes(scratch.foreach * sum(elements), name)
    pairs = [*pairwise((0, *elements))]
    most = max((before * a + now * b for a, b in pairs for before, now in scratch.loop), default=0)
    return held + element_bytes(most, name)
