"""The optimizers that people train with, a row each: what they keep of a parameter, and what step() needs besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from accounting.checks import validated_choice


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer keeps of each parameter tensor: `buffers` shaped like it, and `scalars` of four bytes.

    `class_name` is one of torch.optim, or has its own module before it. The names of the buffers are their keys in
    `optimizer.state[parameter]`; `options` are the arguments of the constructor with which it keeps them. `eager` state
    is allocated by the constructor, all other at the first step, for parameters that have a gradient then.

    Of a tensor of two or more dimensions only `factored` buffers are kept, where there are any: sums over its last
    dimension, and over the one before. Some take `matrices_only`. Buffers in 8 bits have a 4-byte scale for each
    `block` of elements; tensors of less than 4,096 are kept in fp32. A `history` is so many pairs of further buffers.

    >>> from accounting.memory import optimizer_state_bytes
    >>> optimizer_state_bytes(1000, Optimizer("mine.Adamax", ("exp_avg", "exp_inf")), "bf16")
    4000
    """

    class_name: str
    buffers: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    scalars: tuple[str, ...] = ("step",)
    eager: bool = False
    factored: tuple[str, ...] = ()
    matrices_only: bool = False
    block: int = 0
    history: int = 0


# Each row is held against the optimizer itself, built from `class_name` and `options`.
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer("SGD", (), scalars=()),
    "momentum": Optimizer("SGD", ("momentum_buffer",), {"momentum": 0.9}, scalars=()),
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
    "adamax": Optimizer("Adamax", ("exp_avg", "exp_inf")),
    "nadam": Optimizer("NAdam", ("exp_avg", "exp_avg_sq"), scalars=("step", "mu_product")),
    "radam": Optimizer("RAdam", ("exp_avg", "exp_avg_sq")),
    "adadelta": Optimizer("Adadelta", ("square_avg", "acc_delta")),
    "asgd": Optimizer("ASGD", ("ax",), scalars=("step", "eta", "mu")),
    "rprop": Optimizer("Rprop", ("prev", "step_size")),
    "sparse-adam": Optimizer("SparseAdam", ("exp_avg", "exp_avg_sq"), scalars=()),
    "adafactor": Optimizer("Adafactor", ("variance",), factored=("row_var", "col_var")),
    "muon": Optimizer("Muon", ("momentum_buffer",), scalars=(), matrices_only=True),
    "lbfgs": Optimizer("LBFGS", ("d", "prev_flat_grad"), {"max_iter": 20}, scalars=(), history=100),
    "lion": Optimizer("lion_pytorch.Lion", ("exp_avg",), scalars=()),
    "adam-8bit": Optimizer("bitsandbytes.optim.Adam8bit", ("state1", "state2"), scalars=(), block=256),
    "lion-8bit": Optimizer("bitsandbytes.optim.Lion8bit", ("state1",), scalars=(), block=256),
}

# torch keeps each scalar as a 0-dimensional fp32 tensor (fp64 only where that is the default dtype).
STEP_BYTES = 4
# bitsandbytes keeps smaller tensors in fp32, and for each buffer one table of what its 256 codes stand for.
LEAST_IN_8_BITS = 4096
TABLE_BYTES = 1024


class Scratch(NamedTuple):
    """Elements that step() makes and frees: so many of each of all tensors (`foreach`), or tensor by tensor (`loop`).

    In the loop some temporaries of the tensor before are still there: the most of `before` and `now` counts, of each of
    these pairs. A `fused` kernel needs none; False where there is none.

    >>> SCRATCH["AdamW"]
    Scratch(foreach=1, loop=((1, 2),), fused=True)
    """

    foreach: int
    loop: tuple[tuple[int, int], ...]
    fused: bool = False


# By class. Of Rprop (masks of a byte), Adafactor, Muon, L-BFGS and sparse gradients other things decide than the sizes.
SCRATCH: dict[str, Scratch] = {
    "SGD": Scratch(0, ((0, 0),), fused=True),
    "Adagrad": Scratch(2, ((1, 1),), fused=True),
    "RMSprop": Scratch(1, ((1, 1),)),
    "Adam": Scratch(1, ((1, 2),), fused=True),
    "AdamW": Scratch(1, ((1, 2),), fused=True),
    "Adamax": Scratch(1, ((0, 1),)),
    "NAdam": Scratch(1, ((1, 2),)),
    "RAdam": Scratch(1, ((0, 5),)),
    "Adadelta": Scratch(2, ((2, 1), (1, 2))),
    "ASGD": Scratch(1, ((0, 0),)),
}
IMPLEMENTATIONS = ("fused", "foreach", "for-loop")  # the ways in which torch runs a step


def optimizer_of(optimizer: str | Optimizer) -> Optimizer:
    """An optimizer of `OPTIMIZERS` by name, or the given one.

    >>> optimizer_of("adamw").buffers
    ('exp_avg', 'exp_avg_sq')
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    return OPTIMIZERS[validated_choice("optimizer", optimizer, OPTIMIZERS)]
