"""FLOPs of convolutions: a product whose weights are used once per output position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from math import prod

from accounting.checks import checked, instance_of, validate_fields, validated_int, validated_ints
from accounting.flops import MULTIPLY_ADD_FLOPS

Shape = Sequence[int]


@dataclass(frozen=True)
class Convolution:
    """The shape of a convolution, with the arguments of torch.nn.Conv1d, 2d and 3d.

    `input_size` has one entry per dimension; the sizes after it are one number or one per
    dimension.
    Raises ValueError if no output fits, or if `groups` does not divide the channels.
    Source: torch.nn.Conv2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv2d.html

    >>> Convolution(1, 3, 8, (32, 32), (3, 3), stride=2, padding=1).output_size
    (16, 16)
    >>> Convolution(1, 3, 8, (32, 2), (3, 3))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: the kernel, with its dilation, must fit into the padded input, got ...
    """

    batch: int
    in_channels: int
    out_channels: int
    input_size: Shape
    kernel_size: Shape
    _: KW_ONLY
    stride: int | Shape = 1
    padding: int | Shape = 0
    dilation: int | Shape = 1
    groups: int = 1
    bias: bool = False

    def __post_init__(self) -> None:
        validate_fields(self, "batch", "in_channels", "out_channels", flags=["bias"])
        validate_fields(self, "groups", minimum=1)
        for name in ("in_channels", "out_channels"):
            if (channels := getattr(self, name)) % self.groups:
                raise ValueError(
                    f"{name} must be a multiple of groups, "
                    f"got {name}={channels} and groups={self.groups}"
                )
        object.__setattr__(self, "input_size", validated_ints("input_size", self.input_size))
        for name, minimum in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(
                self, name, _per_dimension(name, getattr(self, name), len(self.input_size), minimum)
            )
        if any(positions < 1 for positions in self.output_size):
            raise ValueError(
                f"the kernel, with its dilation, must fit into the padded input, got {self}"
            )

    @cached_property
    def output_size(self) -> tuple[int, ...]:
        """Positions per dimension of the output.

        Each is ⌊(size + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1.
        """
        names = ("input_size", "kernel_size", "stride", "padding", "dilation")
        return tuple(
            (size + 2 * margin - gap * (width - 1) - 1) // step + 1
            for size, width, step, margin, gap in zip(
                *(getattr(self, name) for name in names), strict=True
            )
        )

    @property
    def outputs(self) -> int:
        """Elements of the output."""
        return self.batch * self.out_channels * prod(self.output_size)

    @property
    def product_flops(self) -> int:
        """FLOPs without bias.

        Each output sums over its group's input channels and the kernel's elements.
        """
        return (
            MULTIPLY_ADD_FLOPS
            * self.outputs
            * (self.in_channels // self.groups)
            * prod(self.kernel_size)
        )


@checked(convolution=instance_of(Convolution))
def convolution_flops(convolution: Convolution) -> int:
    """FLOPs of a convolution: 2·(output elements)·(in_channels/groups)·(kernel elements).

    The output has batch·out_channels·(output positions) elements. Each weight is used once per
    output position: 2·(parameters)·(positions), not 2·(parameters). A bias adds one FLOP per
    output. Products with padding are counted, as torch does; FFT and Winograd kernels need fewer.

    >>> convolution_flops(Convolution(1, 1, 1, (16, 16), (1, 1)))
    512
    """
    return convolution.product_flops + convolution.bias * convolution.outputs


def _per_dimension(name: str, value: int | Shape, dimensions: int, minimum: int) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        return (validated_int(name, value, minimum),) * dimensions
    sizes = validated_ints(name, value, minimum)
    if len(sizes) != dimensions:
        raise ValueError(f"{name} must be one number or {dimensions}, got {sizes}")
    return sizes
