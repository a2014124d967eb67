"""Bytes of tensors, parameters, gradients, optimizer state and master copies in training.

`accounting.activations` has the activations, `prooflops.memory.allocator` the blocks of a CUDA
device. All bytes are requested bytes: the bytes of tensors, before an allocator rounds them up.
Every function raises ValueError for a negative count or size, and for an unknown dtype, optimizer
or recipe, whose valid names the message lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from accounting.checks import (
    checked,
    validated_bool,
    validated_choice,
    validated_int,
    validated_ints,
)
from accounting.formats import Dtype, dtype_name, element_bits
from accounting.layout import Layout
from accounting.optimizers import (
    IMPLEMENTATIONS,
    LEAST_IN_8_BITS,
    SCRATCH,
    STEP_BYTES,
    TABLE_BYTES,
    Optimizer,
    Recipe,
    optimizer_of,
    recipe_of,
)

# Parameters are given as their number, or as the shapes of their tensors.
Parameters = int | Sequence[Sequence[int]]


@checked("elements")
def element_bytes(elements: int, dtype: Dtype = "fp32") -> int:
    """Bytes of `elements` packed values: ⌈elements · bits / 8⌉.

    Exact for every dtype; formats below a byte are packed (two fp4 or int4 values per byte),
    without block scales.

    >>> element_bytes(1000, "bf16"), element_bytes(3, "fp4_e2m1")
    (2000, 2)
    """
    return -(-elements * element_bits(dtype) // 8)


def tensor_bytes(shape: Sequence[int], dtype: Dtype = "fp32") -> int:
    """Bytes of a tensor's values: elements · bytes per element, as `tensor.nbytes`.

    The storage has another size if it is shared, or if elements repeat (an expanded view): see
    `storage_bytes`.

    >>> tensor_bytes((4, 8)), tensor_bytes((12288, 49152)), tensor_bytes((4, 8), "fp8_e4m3")
    (128, 2415919104, 32)
    """
    return element_bytes(prod(validated_ints("shape", shape)), dtype)


def storage_bytes(
    shape: Sequence[int], strides: Sequence[int], dtype: Dtype = "fp32", offset: int = 0
) -> int:
    """Bytes of the least storage for a strided view, exactly.

    The storage has (offset + 1 + Σ (size − 1) · stride) elements, as `torch.empty_strided`
    allocates. A view of a larger tensor keeps that tensor's whole storage alive. A tensor without
    elements needs no storage.

    >>> storage_bytes((1000,), (0,)), storage_bytes((8,), (1,), offset=24)
    (4, 128)
    """
    layout = Layout(validated_ints("shape", shape), validated_ints("strides", strides), offset)
    return element_bytes(layout.storage_numel, dtype)


@checked("tensors", "steps")
def optimizer_state_bytes(
    parameters: Parameters,
    optimizer: str | Optimizer = "adamw",
    dtype: Dtype = "fp32",
    tensors: int | None = None,
    steps: int | None = None,
) -> int:
    """Bytes an optimizer keeps: parameters · buffers · bytes per element + 4 · scalars · tensors.

    Exact for parameters that all have gradients; torch gives buffers the parameter's dtype.

    - Buffers: torch allocates them at the first step, AdaGrad's in the constructor. `steps` = 0 is
      before the first step, None after many.
    - Scalars: most optimizers keep some per parameter tensor, such as a step count. Step counts lie
      on the CPU, unless the optimizer is fused or capturable; ASGD's always lie on the device. Step
      counts are included if shapes or `tensors` are given: a bare number of `parameters` means a
      CUDA device.
    - L-BFGS adds two buffers per iteration until its history is full, with 20 iterations per step.
      Its bytes are exact if each has positive curvature and none ends early.
    - Adafactor's state needs the shapes, as does Muon's, which updates only matrices.
    - 8-bit optimizers: a number counts as one large tensor. With shapes their code tables count,
      1,024 bytes per buffer.

    Raises ValueError for shapes that the optimizer lacks or refuses.
    Source: `_init_group` and `__init__` of the optimizers in torch/optim of torch 2.13;
    bitsandbytes 0.50.

    >>> [optimizer_state_bytes(1_000_000, "adamw", steps=steps) for steps in (0, 1)]
    [0, 8000000]
    >>> optimizer_state_bytes([(512, 2048), (512,)], "adafactor")
    12296
    >>> optimizer_state_bytes(2**20, "adam-8bit")
    2129920
    """
    row = optimizer_of(optimizer)
    shapes = _shapes(parameters)
    if steps == 0 and not row.eager:
        return 0
    if shapes is None and row.needs_shapes:
        kind = "matrices" if row.matrices_only else "tensors"
        raise ValueError(
            f"parameters must be shapes of {kind} for {row.class_name}, got the number {parameters}"
        )
    if row.matrices_only and any(len(shape) != 2 for shape in shapes or ()):
        raise ValueError(
            f"parameters must be shapes of matrices for {row.class_name}, got {shapes}"
        )
    if tensors is None:
        tensors = len(shapes or ())
    scalars = STEP_BYTES * len(row.scalars) * tensors
    each = [(validated_int("parameters", parameters),)] if shapes is None else shapes
    if row.block:
        sizes = [prod(shape) for shape in each]
        return scalars + _bytes_in_blocks(row, sizes, are_shapes_known=shapes is not None)
    # The pairs of buffers in L-BFGS's history; other optimizers have none.
    pairs = row.history
    if steps is not None:
        per_step: int = row.options.get("max_iter", 1)
        pairs = max(0, min(pairs, per_step * steps - 1))
    elements = sum(_state_elements(row, pairs, shape) for shape in each)
    if pairs and tensors:
        # Each pair has two numbers, and all have one, in the dtype of the parameters.
        elements += 2 * pairs + 1
    return scalars + element_bytes(elements, dtype)


def _state_elements(row: Optimizer, pairs: int, shape: Sequence[int]) -> int:
    """Elements kept for a parameter of this shape."""
    # A factored state has the means of each row and of each column.
    if row.factored and len(shape) > 1:
        return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
    return (len(row.buffers) + 2 * pairs) * prod(shape)


def _shapes(parameters: Parameters) -> list[tuple[int, ...]] | None:
    """The shapes, if shapes are given; None for a number."""
    # An array without dimensions is a number.
    if isinstance(parameters, Iterable) and getattr(parameters, "shape", None) != ():
        return [
            validated_ints(f"parameters[{position}]", shape)
            for position, shape in enumerate(parameters)
        ]
    return None


def _elements(parameters: Parameters) -> int:
    """The number of elements of all parameters."""
    shapes = _shapes(parameters)
    if shapes is None:
        return validated_int("parameters", parameters)
    return sum(prod(shape) for shape in shapes)


def _bytes_in_blocks(row: Optimizer, sizes: Sequence[int], *, are_shapes_known: bool) -> int:
    """Bytes of 8-bit buffers: a code per element, a scale per block, and the code tables."""
    if not are_shapes_known:
        elements = sum(sizes)
        return len(row.buffers) * (elements + STEP_BYTES * -(-elements // row.block))
    large = [size for size in sizes if size >= LEAST_IN_8_BITS]
    scales = STEP_BYTES * sum(-(-size // row.block) for size in large)
    tables = TABLE_BYTES if large else 0
    small_bytes = element_bytes(sum(sizes) - sum(large), "fp32")
    return len(row.buffers) * (small_bytes + sum(large) + scales + tables)


@dataclass(frozen=True)
class ModelState:
    """Bytes that training keeps at any batch size, by class of tensors.

    >>> ModelState(parameters=2000, gradients=2000, state=8000, master=4000).total
    16000
    """

    parameters: int
    gradients: int
    state: int
    master: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.state + self.master


def model_state(
    parameters: Parameters,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int | None = None,
) -> ModelState:
    """Bytes of parameters, gradients, optimizer state and master copy after a step.

    Gradients are not freed yet. Each class has parameters · bytes of its own dtype. Exact by tensor
    sums; activations, module buffers, workspaces and allocator rounding come on top
    (`training_bytes`, `prooflops.memory.allocator`).
    Source: the "model states" of Rajbhandari et al. 2020 (ZeRO), section 3.1,
    https://arxiv.org/abs/1910.02054

    >>> model_state(1_000_000_000).total, model_state(1_000_000_000, "adagrad").total
    (16000000000, 12000000000)
    """
    dtypes = recipe_of(recipe)
    elements = _elements(parameters)
    return ModelState(
        parameters=element_bytes(elements, dtypes.parameters),
        gradients=element_bytes(elements, dtypes.gradients),
        state=optimizer_state_bytes(parameters, optimizer, dtypes.state, tensors),
        master=element_bytes(elements, dtypes.master) if dtypes.master else 0,
    )


def bytes_per_parameter(
    optimizer: str | Optimizer = "adamw", recipe: str | Recipe = "fp32"
) -> float:
    """Bytes of model state per parameter: AdamW in fp32 4 + 4 + 4 + 4 = 16.

    Ignored: step counts, 4 bytes per tensor, below 0.1 % of the state if tensors average 500
    elements.

    >>> [bytes_per_parameter(optimizer) for optimizer in ("sgd", "adagrad", "adamw")]
    [8.0, 12.0, 16.0]
    """
    # This number of elements fills whole bytes and whole blocks in every format.
    return model_state(8 * 256, optimizer, recipe).total / (8 * 256)


@checked("activations")
def training_bytes(
    parameters: Parameters,
    activations: int,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int | None = None,
) -> int:
    """Bytes of a training step if all its model state and `activations` bytes are alive at once.

    The result estimates the peak, and is no bound. Gradients grow while activations die, so they
    are never all alive together. But gradients of activations and temporaries are left out. For a
    deep linear net `accounting.activations.deep_linear_peak_bytes` is exact.

    >>> training_bytes(36, 4 * 16, "adagrad"), training_bytes(36, 4 * 16, "adam")
    (496, 640)
    """
    return model_state(parameters, optimizer, recipe, tensors).total + activations


@checked("activations", "tensors", set_to_none=validated_bool)
def training_phases(
    parameters: Parameters,
    activations: int = 0,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int | None = None,
    set_to_none: bool = True,
) -> dict[str, int]:
    """Live bytes at each moment of the first two training steps.

    `activations` are the bytes that the forward pass leaves and the backward pass frees (saved
    tensors, output, loss). Gradients exist from the first backward to zero_grad (set_to_none=False
    keeps them); state from the first step on (AdaGrad's from the constructor). Ignored: the batch.
    Exact for requested bytes between calls, not inside them.

    >>> phases = training_phases(100, activations=40, optimizer="adamw")
    >>> [phases[moment] for moment in ("built", "forward", "backward", "step")]
    [400, 440, 800, 1600]
    >>> [phases[moment] for moment in ("zero_grad", "second forward")]
    [1200, 1240]
    """
    dtypes = recipe_of(recipe)
    after_step = model_state(parameters, optimizer, recipe, tensors)
    built = after_step.parameters + after_step.master
    built += optimizer_state_bytes(parameters, optimizer, dtypes.state, tensors, steps=0)
    between_steps = after_step.total
    if set_to_none:
        between_steps -= after_step.gradients
    return {
        "built": built,
        "forward": built + activations,
        "backward": built + after_step.gradients,
        "step": after_step.total,
        "zero_grad": between_steps,
        "second forward": between_steps + activations,
        "second backward": after_step.total,
        "second step": after_step.total,
    }


def optimizer_step_peak_bytes(
    sizes: Iterable[int],
    implementation: str = "foreach",
    dtype: Dtype = "fp32",
    optimizer: str | Optimizer = "adamw",
) -> int:
    """Peak bytes inside step(): model state, scalars, and the implementation's scratch.

    `sizes` are the elements of each parameter tensor, in the optimizer's order. For AdamW in fp32:
    a fused kernel needs no scratch, 16 bytes per parameter. foreach (torch's default on CUDA) keeps
    √v of all tensors: 20. The for-loop (default on the CPU) keeps √v, the denominator and the
    previous denominator: at most 16 + 3 × the largest tensor.
    Exact from the second step on, to within 20 bytes of boxed scalars on the CPU. Not for a
    capturable, differentiable or maximising optimizer.
    Raises ValueError for an optimizer or implementation whose scratch is not on record; the message
    lists the known ones.
    Source: torch/optim of torch 2.13.

    >>> [optimizer_step_peak_bytes([1000], each) for each in ("fused", "foreach", "for-loop")]
    [16004, 20004, 24004]
    """
    row = optimizer_of(optimizer)
    elements = validated_ints("sizes", sizes)
    name = dtype_name(dtype)
    scratch: dict[str, Any] = SCRATCH[validated_choice("optimizer", row.class_name, SCRATCH)]
    kept_bytes = model_state(
        sum(elements), row, Recipe(name, name, name), tensors=len(elements)
    ).total
    chosen = validated_choice("implementation", implementation, IMPLEMENTATIONS)
    if chosen == "fused":
        return kept_bytes
    if chosen == "foreach":
        return kept_bytes + element_bytes(scratch["foreach"] * sum(elements), name)
    per_previous, per_current = scratch["for-loop"]
    most = max(
        (per_previous * previous + per_current * current)
        for previous, current in pairwise((0, *elements))
    )
    return kept_bytes + element_bytes(most, name)
