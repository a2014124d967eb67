"""A wrong argument of a formula gets an error that names it: a function of each module."""

import numpy as np
import pytest

from accounting import (
    activations,
    attention,
    convolution,
    devices,
    flops,
    formats,
    layers,
    layout,
    memory,
    models,
    networks,
    parallel,
    planning,
    roofline,
)

CONVOLUTION = convolution.Convolution(96, 96, 96, (96, 96), (2, 2))
NET = networks.Transformer(vocab_size=96, layers=96, dim=96, heads=12, hidden=96)
# A function of each module, with arguments of each kind.
CALLS = [
    (flops.linear_step, {"batch": 96, "in_features": 96, "out_features": 96, "bias": True}),
    (attention.Attention, {"batch": 96, "heads": 12, "query_length": 96, "head_dim": 96}),
    (convolution.convolution_flops, {"convolution": CONVOLUTION}),
    (layout.view_strides, {"shape": (1, 2), "strides": (2, 1), "new_shape": (2,)}),
    (memory.model_state, {"parameters": 96, "optimizer": "adamw", "recipe": "fp32"}),
    (layers.mixture, {"dim": 96, "hidden": 96, "experts": 96, "active": 2, "shared": 96}),
    (models.step_flops, {"model": NET, "batch": 96, "sequence": 96, "checkpoint_every": 96}),
    (activations.activation_bytes, {"model": NET, "batch": 96, "sequence": 96, "dtype": "bf16"}),
    (parallel.Parallelism, {"data": 96, "tensor": 96, "zero_stage": 3, "sequence": False}),
    (planning.training_cost, {"days": 9.5, "devices": 96, "price_per_device_hour": 2.5}),
    (roofline.mfu, {"model_flops": 96, "seconds": 0.5, "peak_flop_per_s": 9e9, "devices": 96}),
    (devices.peak_flop_per_s, {"device": "H100 PCIe", "dtype": "bf16", "path": "matrix"}),
    (formats.format_of("fp16").decode, {"pattern": 96}),
]
each_call = pytest.mark.parametrize(
    ("function", "good"), CALLS, ids=lambda each: getattr(each, "__name__", "")
)
# The names of an error, where it does not name the parameter itself.
NAMED_IN_ERRORS = {"checkpoint_every": "every"}


def bad_values(good):
    if isinstance(good, bool):
        return ["no", 1, 1.5]
    if isinstance(good, int):
        return [True, 1.5, float("nan"), float("inf"), "3", -1, [None], np.ones(2)]
    if isinstance(good, float):
        return [True, "x", [1.0], 1j, float("nan")]
    if isinstance(good, (tuple, list)) and isinstance(good[0], int):
        return ["23", [None], [1.5], [-each for each in good]]
    return [] if isinstance(good, dict) else [5, 1.5]


@each_call
def test_a_bad_argument_is_named_in_a_clear_error(function, good):
    for name, value in good.items():
        for bad in bad_values(value):
            with pytest.raises((ValueError, TypeError)) as raised:
                function(**good | {name: bad})
            named = {name, NAMED_IN_ERRORS.get(name, name)}
            assert any(each in str(raised.value) for each in named), (
                f"{name}={bad!r} is not named: {raised.value}"
            )
