"""Bytes of training: tensors and their storages, parameters, gradients, optimizer state, master copies, KV cache.

Activations are in `accounting.activations`, the blocks a CUDA device hands out in `accounting.allocator`.
All bytes here are requested bytes: what the tensors hold, before any allocator rounds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from accounting.checks import checked, validated_choice, validated_int, validated_ints, validated_product
from accounting.formats import Dtype, element_bits
from accounting.layout import Layout


@dataclass(frozen=True)
class Optimizer:
    """What `class_name` of torch.optim keeps: `buffers` shaped like each parameter, perhaps a step count per tensor.

    `eager` state is allocated by the constructor; all other state at the first step, and only for parameters that
    have a gradient then. The names of the buffers are their keys in `optimizer.state[parameter]`. `options` are the
    arguments of the constructor with which it keeps them.
    """

    class_name: str
    buffers: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    step: bool = True
    eager: bool = False


# Each row is held against torch's own optimizer, built from `class_name` and `options`.
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer("SGD", (), step=False),
    "momentum": Optimizer("SGD", ("momentum_buffer",), {"momentum": 0.9}, step=False),
    "adagrad": Optimizer("Adagrad", ("sum",), eager=True),
    "rmsprop": Optimizer("RMSprop", ("square_avg",)),
    "rmsprop-momentum": Optimizer("RMSprop", ("square_avg", "momentum_buffer"), {"momentum": 0.9}),
    "rmsprop-centered": Optimizer("RMSprop", ("square_avg", "grad_avg"), {"centered": True}),
    "rmsprop-centered-momentum": Optimizer(
        "RMSprop", ("square_avg", "momentum_buffer", "grad_avg"), {"centered": True, "momentum": 0.9}
    ),
    "adam": Optimizer("Adam", ("exp_avg", "exp_avg_sq")),
    "adam-amsgrad": Optimizer("Adam", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), {"amsgrad": True}),
    "adamw": Optimizer("AdamW", ("exp_avg", "exp_avg_sq")),
    "adamw-amsgrad": Optimizer("AdamW", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), {"amsgrad": True}),
}

# torch keeps `step` as a 0-dimensional fp32 tensor (fp64 only where that is the default dtype).
STEP_BYTES = 4


@dataclass(frozen=True)
class Recipe:
    """The dtype of each class of tensors that training keeps; `master` is a copy of the parameters to update."""

    parameters: str
    gradients: str
    state: str
    master: str | None = None

    def __post_init__(self) -> None:
        for dtype in (self.parameters, self.gradients, self.state, self.master or self.parameters):
            element_bits(dtype)


# torch.optim gives the state the dtype of the parameters ("fp32", "bf16"); the others need an optimizer of their own.
RECIPES: dict[str, Recipe] = {
    "fp32": Recipe("fp32", "fp32", "fp32"),
    "bf16": Recipe("bf16", "bf16", "bf16"),
    "bf16-fp32-state": Recipe("bf16", "bf16", "fp32"),
    "bf16-fp32-master": Recipe("bf16", "bf16", "fp32", master="fp32"),
    "bf16-fp32-gradients-master": Recipe("bf16", "fp32", "fp32", master="fp32"),
}

# The three ways torch runs AdamW; they differ in the scratch they hold inside step() (`optimizer_step_peak_bytes`).
IMPLEMENTATIONS = ("fused", "foreach", "for-loop")


def optimizer_of(name: str) -> Optimizer:
    """The optimizer called `name` in `OPTIMIZERS`; a ValueError that lists them otherwise.

    >>> optimizer_of("adamw").buffers
    ('exp_avg', 'exp_avg_sq')
    """
    return OPTIMIZERS[validated_choice("optimizer", name, OPTIMIZERS)]


def recipe_of(recipe: str | Recipe) -> Recipe:
    """A recipe of `RECIPES` by name, or the given one; a ValueError that lists the names otherwise.

    >>> recipe_of("bf16-fp32-master").state
    'fp32'
    """
    return recipe if isinstance(recipe, Recipe) else RECIPES[validated_choice("recipe", recipe, RECIPES)]


def element_bytes(elements: int, dtype: Dtype = "fp32") -> int:
    """Bytes of `elements` values packed one after the other: ⌈elements · bits / 8⌉.

    Exact for every dtype; formats below a byte are taken as packed (two fp4 or int4 values a byte, the last byte
    perhaps half full), their block scales not included.
    Raises ValueError for a negative count or an unknown dtype, TypeError for a count that is not an integer.

    >>> element_bytes(1000, "bf16"), element_bytes(3, "fp4_e2m1")
    (2000, 2)
    """
    return -(-validated_int("elements", elements) * element_bits(dtype) // 8)


def tensor_bytes(shape: Sequence[int], dtype: Dtype = "fp32") -> int:
    """Bytes of the values of a tensor: elements · bytes per element.

    Equals `tensor.nbytes`. It is the size of the storage only for a tensor that has its storage to itself and
    visits each place once: an expanded view has more elements than its storage, a slice fewer (`storage_bytes`).
    Raises ValueError for a negative size or an unknown dtype, TypeError for a size that is not an integer.

    >>> tensor_bytes((4, 8)), tensor_bytes((12288, 49152)), tensor_bytes((4, 8), "fp8_e4m3")
    (128, 2415919104, 32)
    """
    return element_bytes(prod(validated_ints("shape", shape)), dtype)


def storage_bytes(shape: Sequence[int], strides: Sequence[int], dtype: Dtype = "fp32", offset: int = 0) -> int:
    """Bytes of the least storage that holds a strided view: (offset + 1 + Σ (size − 1) · stride) · bytes per element.

    This is what torch allocates for such strides (`empty_strided`). A view of a larger tensor keeps all of that
    tensor's storage alive, of which this is a lower bound. A tensor without elements needs no storage. Exact.
    Raises ValueError for a negative entry, lengths that differ or an unknown dtype.

    >>> storage_bytes((1000,), (0,)), storage_bytes((8,), (1,), offset=24)
    (4, 128)
    """
    layout = Layout(validated_ints("shape", shape), validated_ints("strides", strides), offset)
    return element_bytes(layout.storage_numel, dtype)


def optimizer_state_bytes(
    parameters: int, optimizer: str = "adamw", dtype: str = "fp32", tensors: int = 0, steps: int = 1
) -> int:
    """Bytes an optimizer keeps after `steps` steps: parameters · buffers · bytes per element + 4 · tensors.

    torch allocates the buffers at the first step, so nothing is there before it; AdaGrad's accumulator is there from
    the constructor on. Adam, RMSProp and AdaGrad also keep one 4-byte step count for each of the `tensors` parameter
    tensors: on the CPU, unless the optimizer is fused or capturable (then on the parameter's device). Leave `tensors`
    at 0 to count the buffers alone, which on CUDA is what the device holds.
    Exact for parameters that all have gradients; torch gives the buffers the parameter's own dtype.
    Raises ValueError for a negative count, an unknown optimizer or dtype.
    Source: `_init_group` and `__init__` of the optimizers in torch/optim of torch 2.13.

    >>> optimizer_state_bytes(1_000_000, "adamw"), optimizer_state_bytes(1_000_000, "adamw", steps=0)
    (8000000, 0)
    >>> optimizer_state_bytes(36, "adagrad", tensors=3, steps=0)
    156
    """
    kept = optimizer_of(optimizer)
    buffers = len(kept.buffers) * element_bytes(validated_int("parameters", parameters), dtype)
    step_counts = STEP_BYTES * validated_int("tensors", tensors) * kept.step
    return buffers + step_counts if validated_int("steps", steps) or kept.eager else 0


@dataclass(frozen=True)
class ModelState:
    """Bytes that training holds whatever the batch: one number per class of tensors."""

    parameters: int
    gradients: int
    state: int
    master: int

    @property
    def total(self) -> int:
        """All four together."""
        return self.parameters + self.gradients + self.state + self.master


def model_state(
    parameters: int, optimizer: str = "adamw", recipe: str | Recipe = "fp32", tensors: int = 0
) -> ModelState:
    """Bytes of parameters, gradients, optimizer state and master copy after a step, gradients not yet freed.

    Each class is parameters · bytes of its own dtype: one bytes-per-element for all of them is right only where the
    recipe has one dtype. Exact by tensor sums; activations, module buffers, workspaces and the allocator's rounding
    come on top (`training_bytes`, `accounting.allocator`).
    Raises ValueError for a negative count, an unknown optimizer, recipe or dtype.
    Source: the "model states" of Rajbhandari et al. 2020 (ZeRO), section 3.1, https://arxiv.org/abs/1910.02054

    >>> model_state(1_000_000_000).total, model_state(1_000_000_000, "adagrad").total
    (16000000000, 12000000000)
    >>> model_state(1000, recipe="bf16-fp32-master")
    ModelState(parameters=2000, gradients=2000, state=8000, master=4000)
    """
    dtypes, parameters = recipe_of(recipe), validated_int("parameters", parameters)
    return ModelState(
        parameters=element_bytes(parameters, dtypes.parameters),
        gradients=element_bytes(parameters, dtypes.gradients),
        state=optimizer_state_bytes(parameters, optimizer, dtypes.state, tensors),
        master=element_bytes(parameters, dtypes.master) if dtypes.master else 0,
    )


def bytes_per_parameter(optimizer: str = "adamw", recipe: str | Recipe = "fp32") -> float:
    """Bytes of model state for each parameter: AdamW in fp32 4 + 4 + 4 + 4 = 16.

    The 4-byte step counts are left out: 4 bytes per tensor, below 0.1 % of the state once tensors average 500 elements.
    Raises ValueError for an unknown optimizer or recipe.

    >>> [bytes_per_parameter(optimizer) for optimizer in ("sgd", "adagrad", "adamw")]
    [8.0, 12.0, 16.0]
    >>> [bytes_per_parameter(recipe=recipe) for recipe in ("bf16", "bf16-fp32-state", "bf16-fp32-master")]
    [8.0, 12.0, 16.0]
    """
    # Eight elements fill whole bytes in every format.
    return model_state(8, optimizer, recipe).total / 8


def training_bytes(
    parameters: int, activations: int, optimizer: str = "adamw", recipe: str | Recipe = "fp32", tensors: int = 0
) -> int:
    """Bytes of a training step if everything is alive at once: parameters + gradients + state + master + activations.

    With fp32 throughout and A activation elements this is 4 · (parameters + A + gradients + state). `activations` is
    in bytes. An estimate of the peak, not a bound: gradients grow while activations die, so all of them are never
    alive together; on the other side the gradients of activations and temporaries are left out. For a deep linear
    net `accounting.activations.deep_linear_peak_bytes` is exact.
    Raises ValueError for a negative count, an unknown optimizer or recipe.

    >>> training_bytes(36, 4 * 16, "adagrad"), training_bytes(36, 4 * 16, "adam")
    (496, 640)
    """
    return model_state(parameters, optimizer, recipe, tensors).total + validated_int("activations", activations)


@checked
def training_phases(
    parameters: int,
    activations: int = 0,
    optimizer: str = "adamw",
    recipe: str | Recipe = "fp32",
    tensors: int = 0,
    set_to_none: bool = True,
) -> dict[str, int]:
    """Live bytes at each moment of the first two training steps, from the built model to the second step.

    `activations` are the bytes that the forward pass leaves and the backward pass frees (saved tensors, output, loss).
    Gradients appear with the first backward and go with zero_grad, unless set_to_none=False keeps them; state appears
    with the first step (AdaGrad's with the constructor) and stays. The batch itself is not included.
    Exact for requested bytes between the calls; inside them more is held for a while.
    Raises ValueError for a negative count, an unknown optimizer or recipe.

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


@checked
def optimizer_step_peak_bytes(
    sizes: Iterable[int], implementation: str = "foreach", dtype: str = "fp32", amsgrad: bool = False
) -> int:
    """Peak bytes inside AdamW's step(): parameters, gradients, state, step counts, and the implementation's scratch.

    `sizes` are the elements of each parameter tensor, in the optimizer's order. The fused kernel needs no scratch:
    16 bytes per fp32 parameter. foreach (torch's choice on CUDA) holds √v of all tensors at once: 20. The for-loop
    (torch's choice on the CPU) holds √v and the denominator of one tensor while the previous denominator is still
    referenced: 16 + max (previous + 2 · current), at most 16 + 3 × the largest tensor.
    Exact up to 12 bytes of boxed scalars on the CPU. Not for a capturable, differentiable or maximising optimizer.
    Raises ValueError for a negative size, an unknown implementation or dtype.
    Source: torch/optim/adam.py of torch 2.13.

    >>> [optimizer_step_peak_bytes([1000], implementation) for implementation in ("fused", "foreach", "for-loop")]
    [16004, 20004, 24004]
    """
    elements = validated_ints("sizes", sizes)
    scratch = {
        "fused": 0,
        "foreach": sum(elements),
        "for-loop": max((before + 2 * size for before, size in pairwise([0, *elements])), default=0),
    }[validated_choice("implementation", implementation, IMPLEMENTATIONS)]
    optimizer = "adamw-amsgrad" if amsgrad else "adamw"
    held = model_state(sum(elements), optimizer, Recipe(dtype, dtype, dtype), tensors=len(elements)).total
    return held + element_bytes(scratch, dtype)


def kv_cache_bytes(layers: int, batch: int, tokens: int, kv_heads: int, head_dim: int, dtype: str = "bf16") -> int:
    """Bytes of the keys and values kept for generation: 2 · layers · batch · tokens · heads · width · bytes each.

    `kv_heads` is what grouped-query attention shrinks: fewer than the query heads. Exact for a cache without
    padding; a paged or preallocated cache holds its full pages instead.
    Raises ValueError for a negative size or an unknown dtype.

    >>> kv_cache_bytes(layers=80, batch=1, tokens=8192, kv_heads=8, head_dim=128) / 2**30
    2.5
    """
    keys = validated_product(layers=layers, batch=batch, tokens=tokens, kv_heads=kv_heads, head_dim=head_dim)
    return element_bytes(2 * keys, dtype)
