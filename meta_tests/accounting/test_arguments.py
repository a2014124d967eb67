"""A wrong argument of any formula gets an error that names it."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from accounting import (
    activations,
    allocator,
    attention,
    convolution,
    devices,
    families,
    flops,
    formats,
    layout,
    memory,
    models,
    parallel,
    planning,
    roofline,
    units,
)

NET = families.Transformer(vocab_size=96, layers=96, dim=96, heads=12, hidden=96)
SPLIT, ATTENTION = parallel.Parallelism(), attention.Attention(96, 12, 96, 96)
CALLS: list[tuple[Any, dict[str, Any]]] = [
    (flops.matmul_flops, {"m": 96, "k": 96, "n": 96, "batch": 96}),
    (flops.matmul_backward_flops, {"m": 96, "k": 96, "n": 96, "a_gradient": False}),
    (flops.broadcast_matmul_flops, {"a_shape": (96, 96), "b_shape": (96, 96)}),
    (
        flops.linear_step,
        {"batch": 96, "in_features": 96, "out_features": 96, "bias": True, "recomputed": True},
    ),
    (flops.StepFlops, {"forward": 96, "backward": 96}),
    (
        attention.Attention,
        {"batch": 96, "heads": 12, "query_length": 96, "head_dim": 96, "kv_heads": 12},
    ),
    (
        attention.attention_pairs,
        {"query_length": 96, "key_length": 96, "pairs": "causal", "window": 9},
    ),
    (attention.attention_backward_flops, {"attention": ATTENTION, "convention": "flash"}),
    (
        convolution.Convolution,
        {
            "batch": 96,
            "in_channels": 96,
            "out_channels": 96,
            "input_size": (96, 96),
            "kernel_size": (2, 2),
            "groups": 2,
            "bias": True,
        },
    ),
    (
        convolution.convolution_flops,
        {"convolution": convolution.Convolution(96, 96, 96, (96, 96), (2, 2))},
    ),
    (layout.contiguous_strides, {"shape": (96, 96, 96)}),
    (layout.view_strides, {"shape": (96, 2), "strides": (2, 1), "new_shape": (192,)}),
    (layout.storage_offset, {"index": (96, 96), "strides": (96, 96), "offset": 96}),
    (memory.element_bytes, {"elements": 96, "dtype": "bf16"}),
    (memory.tensor_bytes, {"shape": (96, 96), "dtype": "bf16"}),
    (
        memory.optimizer_state_bytes,
        {"parameters": 96, "optimizer": "adamw", "dtype": "fp32", "tensors": 96},
    ),
    (memory.model_state, {"parameters": 96, "optimizer": "adamw", "recipe": "fp32"}),
    (
        memory.optimizer_step_peak_bytes,
        {"sizes": [96, 96], "implementation": "fused", "optimizer": "adamw"},
    ),
    (memory.training_phases, {"parameters": 96, "activations": 96, "set_to_none": False}),
    (allocator.charged_bytes, {"request": 96, "block": 1024, "expandable_segments": True}),
    (families.DeepLinear, {"dim": 96, "layers": 96, "bias": True}),
    (
        families.Transformer,
        {
            "vocab_size": 96,
            "layers": 9,
            "dim": 96,
            "heads": 12,
            "hidden": 96,
            "gated": True,
            "norm": "rmsnorm",
        },
    ),
    (families.attention, {"dim": 96, "heads": 96, "head_dim": 96, "kv_heads": 12, "bias": True}),
    (families.mixture, {"dim": 96, "hidden": 96, "experts": 96, "active": 2, "shared": 96}),
    (models.parameter_count, {"model": NET}),
    (
        models.step_flops,
        {"model": NET, "batch": 96, "sequence": 96, "pairs": "causal", "checkpoint_every": 96},
    ),
    (
        models.decoding_work,
        {"model": NET, "batch": 96, "context": 96, "dtype": "bf16", "latents": False},
    ),
    (models.rule_flops, {"rule": "step", "parameters": 96, "tokens": 96}),
    (
        activations.activation_bytes,
        {
            "model": NET,
            "batch": 96,
            "sequence": 96,
            "dtype": "bf16",
            "attention": "flash",
            "dropout": True,
            "micro_batches": 2,
        },
    ),
    (parallel.collectives, {"model": NET, "split": SPLIT, "batch": 96, "sequence": 96}),
    (parallel.Parallelism, {"data": 96, "tensor": 96, "zero_stage": 3, "sequence": False}),
    (
        planning.training_days,
        {"parameters": 96, "tokens": 96, "devices": 96, "peak_flop_per_s": 9e9, "mfu": 0.5},
    ),
    (planning.training_cost, {"days": 9.5, "devices": 96, "price_per_device_hour": 2.5}),
    (
        planning.largest_model_parameters,
        {"memory_bytes": 96, "devices": 96, "zero_stage": 2, "recipe": "fp32"},
    ),
    (roofline.matmul_work, {"m": 96, "k": 96, "n": 96, "dtype": "bf16"}),
    (roofline.elementwise_work, {"shape": (96, 96), "function": "relu", "operands": 96}),
    (
        roofline.least_time_s,
        {"work": roofline.Work(96, 96), "peak_flop_per_s": 9e9, "bandwidth_bytes_per_s": 9e9},
    ),
    (roofline.mfu, {"model_flops": 96, "seconds": 0.5, "peak_flop_per_s": 9e9, "devices": 96}),
    (devices.peak_flop_per_s, {"device": "H100 PCIe", "dtype": "bf16", "path": "matrix"}),
    (
        devices.clock_scaled_peak_flop_per_s,
        {"device": "H100 PCIe", "dtype": "bf16", "clock_hz": 9e9},
    ),
    (
        devices.cpu_peak_flop_per_s,
        {"features": {"avx2": 1}, "cores": 96, "clock_hz": 9e9, "dtype": "fp32"},
    ),
    (formats.format_of("fp16").decode, {"pattern": 96}),
    (partial(units.with_unit, unit="B"), {"value": 9.5}),
]
each_call = pytest.mark.parametrize(
    ("function", "good"), CALLS, ids=lambda each: getattr(each, "__name__", "")
)
# The names of an error, where it does not name the parameter itself.
NAMED_IN_ERRORS = {"context": "sequence", "checkpoint_every": "every"}


def bad_values(good: Any) -> list[Any]:
    if isinstance(good, bool):
        return ["no", 1, 1.5]
    if isinstance(good, int):
        return [True, 1.5, float("nan"), float("inf"), "3", -1, [None], np.ones(2)]
    if isinstance(good, float):
        return [True, "x", [1.0], 1j, float("nan")]
    if isinstance(good, (tuple, list)) and isinstance(good[0], int):
        return ["23", [None], [1.5], [-2]]
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
