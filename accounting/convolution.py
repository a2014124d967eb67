"""FLOPs of convolutions: a product whose weights are used once per output position."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from accounting.checks import validated_int, validated_ints
from accounting.flops import INPUT_GRADIENT_PRODUCTS, MULTIPLY_ADD_FLOPS, WEIGHT_GRADIENT_PRODUCTS

Shape = Sequence[int]


def convolution_flops(
    batch: int,
    in_channels: int,
    out_channels: int,
    input_size: Shape,
    kernel_size: Shape,
    *,
    stride: int | Shape = 1,
    padding: int | Shape = 0,
    dilation: int | Shape = 1,
    groups: int = 1,
    bias: bool = False,
) -> int:
    """FLOPs of a convolution: 2·batch·out_channels·(output positions)·(in_channels/groups)·(kernel elements).

    Each output element is an inner product over its group's input channels and the kernel: every weight is used once
    per output position, so 2·(parameters)·(positions), not 2·(parameters). Products with padding are counted, as they
    are by torch; kernels by FFT or Winograd need fewer.

    `input_size` and `kernel_size` have as many dimensions as the convolution; stride, padding and dilation are one
    number or one per dimension.

    Raises ValueError for sizes that fit no output, or channels that groups do not divide.
    Source: torch.nn.Conv2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv2d.html

    >>> convolution_flops(1, 1, 1, (16, 16), (1, 1))
    512
    """
    outputs, terms = _convolution_sizes(
        batch,
        in_channels,
        out_channels,
        input_size,
        kernel_size,
        stride,
        padding,
        dilation,
        groups,
    )
    return MULTIPLY_ADD_FLOPS * outputs * terms + bool(bias) * outputs


def convolution_backward_flops(
    batch: int,
    in_channels: int,
    out_channels: int,
    input_size: Shape,
    kernel_size: Shape,
    *,
    stride: int | Shape = 1,
    padding: int | Shape = 0,
    dilation: int | Shape = 1,
    groups: int = 1,
    bias: bool = False,
    input_gradient: bool = True,
) -> int:
    """FLOPs of a convolution's gradients: the forward once for the weight, once more for the input where needed.

    Each multiply-add y += x·w of the forward has one dw += x·dy and one dx += w·dy, grouped or not. (torch's
    FlopCounterMode counts the gradients of a grouped convolution too high: pytorch issue 183405.)

    Raises as `convolution_flops` does.

    >>> convolution_backward_flops(1, 4, 4, (8,), (3,), groups=2), convolution_flops(1, 4, 4, (8,), (3,), groups=2)
    (576, 288)
    """
    outputs, terms = _convolution_sizes(
        batch,
        in_channels,
        out_channels,
        input_size,
        kernel_size,
        stride,
        padding,
        dilation,
        groups,
    )
    products = WEIGHT_GRADIENT_PRODUCTS + bool(input_gradient) * INPUT_GRADIENT_PRODUCTS
    return products * MULTIPLY_ADD_FLOPS * outputs * terms + bool(bias) * outputs


def _convolution_sizes(
    batch: int,
    in_channels: int,
    out_channels: int,
    input_size: Shape,
    kernel_size: Shape,
    stride: int | Shape,
    padding: int | Shape,
    dilation: int | Shape,
    groups: int,
) -> tuple[int, int]:
    """Output elements, and the terms of the inner product behind each."""
    size, kernel = (
        validated_ints("input_size", input_size),
        validated_ints("kernel_size", kernel_size, minimum=1),
    )
    dimensions = len(size)
    if len(kernel) != dimensions:
        raise ValueError(f"kernel_size must have the {dimensions} dimensions of input_size, got {kernel}")
    steps = _per_dimension("stride", stride, dimensions, minimum=1)
    margins = _per_dimension("padding", padding, dimensions)
    gaps = _per_dimension("dilation", dilation, dimensions, minimum=1)
    for name, channels in (
        ("in_channels", in_channels),
        ("out_channels", out_channels),
    ):
        if validated_int(name, channels) % validated_int("groups", groups, minimum=1):
            raise ValueError(f"{name} must be a multiple of groups, got {name}={channels} and groups={groups}")
    extents = [gap * (width - 1) + 1 for gap, width in zip(gaps, kernel, strict=True)]
    positions = [
        (s + 2 * margin - extent) // step + 1
        for s, margin, extent, step in zip(size, margins, extents, steps, strict=True)
    ]
    if any(position < 1 for position in positions):
        raise ValueError(f"the kernel, {tuple(extents)} with its dilation, must fit into the padded input, got {size}")
    return validated_int("batch", batch) * out_channels * prod(positions), in_channels // groups * prod(kernel)


def _per_dimension(name: str, value: int | Shape, dimensions: int, minimum: int = 0) -> tuple[int, ...]:
    if not isinstance(value, Sequence):
        return (validated_int(name, value, minimum),) * dimensions
    sizes = validated_ints(name, value, minimum)
    if len(sizes) != dimensions:
        raise ValueError(f"{name} must be one number or {dimensions}, got {sizes}")
    return sizes
