"""Number formats: what follows from a bit layout, and block formats built on small ones.

A format is a row of a table: its bit fields, bias and reserved patterns. Largest value, smallest
values, spacing, decoding and rounding are derived from that row. Patterns are Python integers;
values are Python floats, fp64, which holds every value of every other format exactly. An unknown
name raises ValueError, which lists the valid ones.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accounting.checks import validate_fields, validated_choice, validated_int, validated_real

Dtype = Hashable  # a name, or a dtype of torch or numpy: see `dtype_name`

# Meanings of the patterns at the top of the magnitude range.
IEEE = "ieee"  # exponent all ones: infinity if the fraction is zero, NaN otherwise
FN = "fn"  # "finite": only exponent and fraction all ones is NaN; no infinity
FNUZ = "fnuz"  # "finite, unsigned zero": NaN sits where -0 would be; no infinity
ALL_FINITE = "all_finite"  # every pattern is a number


@dataclass(frozen=True)
class Format:
    """A floating-point format: (-1)^sign · (1 + fraction / 2^f) · 2^(exponent - bias).

    f is the number of fraction bits. An exponent field of zero means a subnormal: (-1)^sign ·
    fraction / 2^f · 2^(1 - bias). `specials` says which patterns are not finite numbers.
    `padding_bits` are stored but unused: tf32 has 19 bits and occupies 32. `torch_name` is the
    attribute of `torch` (float4_e2m1fn_x2 packs two elements), None if torch has no such dtype.
    Source: IEEE 754-2019 section 3.4; OCP 8-bit Floating Point Specification 1.0 (E4M3 and E5M2);
    Noune et al. 2022, arXiv:2206.02915 (fnuz); OCP Microscaling Formats Specification 1.0 (E2M1 and
    E8M0).

    >>> format_of("fp16").max, format_of("bf16").max
    (65504.0, 3.3895313892515355e+38)
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    bias: int
    specials: str
    torch_name: str | None
    signed: bool = True
    subnormals: bool = True
    padding_bits: int = 0

    def __post_init__(self) -> None:
        validate_fields(
            self,
            "exponent_bits",
            "fraction_bits",
            "bias",
            "padding_bits",
            flags=["signed", "subnormals"],
        )
        validated_choice("specials", self.specials, (IEEE, FN, FNUZ, ALL_FINITE))

    @property
    def bits(self) -> int:
        """Bits that carry information: sign + exponent + fraction."""
        return self.signed + self.exponent_bits + self.fraction_bits

    @property
    def storage_bits(self) -> int:
        """Bits that an element occupies in memory."""
        return self.bits + self.padding_bits

    @cached_property
    def max_pattern(self) -> int:
        """The pattern of the largest finite value; patterns count upwards with the magnitude."""
        all_ones = (1 << (self.exponent_bits + self.fraction_bits)) - 1
        return (
            all_ones - {IEEE: 1 << self.fraction_bits, FN: 1, FNUZ: 0, ALL_FINITE: 0}[self.specials]
        )

    @property
    def max(self) -> float:
        return self.decode(self.max_pattern)

    @property
    def least_normal(self) -> float:
        """The smallest positive value of full precision."""
        return self.decode(1 << self.fraction_bits if self.subnormals else 0)

    @property
    def least_subnormal(self) -> float | None:
        """The smallest positive value, 2^(1 - bias - f), or None without subnormals."""
        return self.decode(1) if self.subnormals else None

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger value, 2^-f.

        Rounding errs by at most eps/2 of a normal value.
        """
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def has_inf(self) -> bool:
        return self.specials == IEEE

    @property
    def has_nan(self) -> bool:
        return self.specials != ALL_FINITE

    @property
    def has_signed_zero(self) -> bool:
        """True if +0 and -0 are two patterns."""
        return self.signed and self.subnormals and self.specials != FNUZ

    def decode(self, pattern: int) -> float:
        """The value of a bit pattern, exactly.

        Raises ValueError for a pattern of more than `bits` bits.

        >>> format_of("bf16").decode(0x3FC0)
        1.5
        """
        pattern = _validated_pattern(self, pattern)
        magnitude = pattern & ((1 << (self.exponent_bits + self.fraction_bits)) - 1)
        negative = magnitude != pattern
        if magnitude > self.max_pattern:
            value = math.inf if self.has_inf and magnitude == self.max_pattern + 1 else math.nan
        elif negative and magnitude == 0 and self.specials == FNUZ:
            return math.nan
        else:
            exponent, fraction = divmod(magnitude, 1 << self.fraction_bits)
            if exponent == 0 and self.subnormals:
                value = math.ldexp(fraction, 1 - self.bias - self.fraction_bits)
            else:
                value = math.ldexp(
                    (1 << self.fraction_bits) + fraction, exponent - self.bias - self.fraction_bits
                )
        return -value if negative else value

    def encode(self, value: float, overflow: str | None = None) -> int:
        """The pattern of the representable value nearest to `value`, ties to even.

        `overflow` decides above `max`: "inf" (the default if the format has one), "saturate" (the
        largest finite value) or "nan". Without an infinity it must be given, because vendors and
        versions differ: torch's cast to fp8_e4m3 gave NaN before 2.12 and saturates since. Infinity
        overflows too. NaN becomes the quiet NaN without payload and sign. A format without zero
        (e8m0) rounds zero to its least value.
        Raises ValueError for a policy that the format cannot follow, NaN if it has none, and a
        negative value if it has no sign. Raises TypeError for a value that is not a real number.

        >>> hex(format_of("fp16").encode(65519.0)), hex(format_of("fp16").encode(65520.0))
        ('0x7bff', '0x7c00')
        """
        policy = self._overflow_policy(overflow)
        value = validated_real("value", value)
        if math.isnan(value):
            return self._nan_pattern(value)
        if value < 0 and not self.signed:
            raise ValueError(
                f"value must not be negative for {self.name}, which has no sign, got {value!r}"
            )
        magnitude = self._nearest_magnitude(abs(value))
        if magnitude > self.max_pattern:
            magnitude = self.max_pattern + (policy == "inf")
            if policy == "nan":
                return self._nan_pattern(value)
        negative = math.copysign(1.0, value) < 0 and (magnitude > 0 or self.has_signed_zero)
        return magnitude | negative << (self.bits - 1)

    def rounded(self, value: float, overflow: str | None = None) -> float:
        """The representable value nearest to `value`, ties to even; `overflow` as in `encode`.

        >>> format_of("fp16").rounded(1e-8), format_of("bf16").rounded(1e-8)
        (0.0, 1.0011717677116394e-08)
        """
        return self.decode(self.encode(value, overflow))

    def _nearest_magnitude(self, magnitude: float) -> int:
        if magnitude == 0:
            return 0
        if math.isinf(magnitude):
            return self.max_pattern + 1
        least_exponent = 1 - self.bias if self.subnormals else -self.bias
        exponent = max(math.frexp(magnitude)[1] - 1, least_exponent)
        # Scaling up is exact, and scaling down ends at 2**fraction_bits or more: round() sees the
        # true significand.
        significand = round(math.ldexp(magnitude, self.fraction_bits - exponent))
        # Added rather than or-ed: a significand that rounds up to 2 carries into the exponent by
        # itself.
        pattern = ((exponent - least_exponent) << self.fraction_bits) + significand
        return pattern if self.subnormals else max(pattern - (1 << self.fraction_bits), 0)

    def _nan_pattern(self, value: float) -> int:
        if not self.has_nan:
            raise ValueError(
                f"value must be a number for {self.name}, which has no NaN, got {value!r}"
            )
        if self.specials == FNUZ:
            return 1 << (self.bits - 1)
        quiet_bit = 1 << (self.fraction_bits - 1) if self.specials == IEEE else 0
        return self.max_pattern + 1 + quiet_bit

    def _overflow_policy(self, overflow: str | None) -> str:
        policy = "inf" if overflow is None and self.has_inf else overflow
        valid = (
            (("inf",) if self.has_inf else ()) + ("saturate",) + (("nan",) if self.has_nan else ())
        )
        if policy not in valid:
            raise ValueError(
                f"overflow must be one of {', '.join(valid)} for {self.name}, got {overflow!r}"
            )
        return policy


@dataclass(frozen=True)
class IntegerFormat:
    """An integer format: two's complement where signed, from -2^(bits - 1) to 2^(bits - 1) - 1.

    >>> format_of("int4").min, format_of("int4").max
    (-8, 7)
    """

    name: str
    bits: int
    signed: bool
    torch_name: str | None
    padding_bits: int = 0

    def __post_init__(self) -> None:
        validate_fields(self, "bits", "padding_bits", flags=["signed"])

    @property
    def storage_bits(self) -> int:
        """Bits that an element occupies in memory."""
        return self.bits + self.padding_bits

    @property
    def max(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def min(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    def decode(self, pattern: int) -> int:
        """The value of a bit pattern. Raises ValueError for a pattern of more than `bits` bits.

        >>> format_of("int8").decode(0xFF)
        -1
        """
        pattern = _validated_pattern(self, pattern)
        return pattern if pattern <= self.max else pattern - (1 << self.bits)


def _validated_pattern(row: Format | IntegerFormat, pattern: int) -> int:
    pattern = validated_int("pattern", pattern)
    if pattern >> row.bits:
        raise ValueError(f"pattern must be below 2**{row.bits} for {row.name}, got {pattern}")
    return pattern


_TABLE: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
# torch.int4 exists as a name, but has no operations and an itemsize of a whole byte: not the
# table's int4.
_FLOATS = {name: Format(name, **row) for name, row in _TABLE["floats"].items()}
_INTEGERS = {name: IntegerFormat(name, **row) for name, row in _TABLE["integers"].items()}

# Every dtype name that accounting knows, and its row.
FORMATS: dict[str, Format | IntegerFormat] = {**_FLOATS, **_INTEGERS}

_NAMES = {row.torch_name: row.name for row in FORMATS.values() if row.torch_name} | {
    name: name for name in FORMATS
}


def dtype_name(dtype: Dtype, valid: Iterable[str] = FORMATS, argument: str = "dtype") -> str:
    """The name in `FORMATS` of a dtype.

    The dtype may be our or torch's name in any case, or an object of torch or numpy.

    Raises ValueError for a dtype that is unknown, not `valid` or ambiguous, with suggestions.

    >>> [dtype_name(dtype) for dtype in ("BF16", "float32", "torch.float8_e4m3fn")]
    ['bf16', 'fp32', 'fp8_e4m3']
    """
    # numpy's dtypes have the one, its classes the other.
    called = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    text = str(called or dtype).lower().removeprefix("torch.")
    name = _NAMES.get(text) or re.sub(r"^(float|f)(?=\d)", "fp", text)
    options = list(valid)
    if name in options:
        return name
    meant = [each for each in options if re.fullmatch(rf"{re.escape(name)}_e\dm\d", each)]
    if meant:
        choices = " or ".join(map(repr, meant))
        raise ValueError(
            f"{argument} must be one of {', '.join(options)}, got {dtype!r}; "
            f"did you mean {choices}?"
        )
    return validated_choice(argument, str(dtype), options)


def format_of(dtype: Dtype) -> Format | IntegerFormat:
    """The row of the format table for a dtype, or its name.

    >>> format_of("fp16").bits, format_of("int8").min
    (16, -128)
    """
    return FORMATS[dtype_name(dtype)]


def element_bits(dtype: Dtype) -> int:
    """Bits that one element of a dtype occupies in memory; no block scales (see `block_format_of`).

    >>> element_bits("fp32"), element_bits("tf32"), element_bits("bf16"), element_bits("fp4_e2m1")
    (32, 32, 16, 4)
    """
    return format_of(dtype).storage_bits


@dataclass(frozen=True)
class QuantisedBlocks:
    """The content of a block format: elements, a scale per block, and one of the tensor.

    >>> blocks = QuantisedBlocks(2, tensor_scale=1.0, scales=(4.0, 0.5), elements=(1.0, 6.0, 3.0))
    >>> blocks.values
    [4.0, 24.0, 1.5]
    """

    block_size: int
    tensor_scale: float
    scales: tuple[float, ...]
    elements: tuple[float, ...]

    @property
    def values(self) -> list[float]:
        """The values: element · scale of its block · scale of the tensor."""
        return [
            element * self.scales[i // self.block_size] * self.tensor_scale
            for i, element in enumerate(self.elements)
        ]


@dataclass(frozen=True)
class BlockFormat:
    """Small floats in blocks of `block_size` along one dimension, each block with its own scale.

    The scale moves the element's narrow range to its block's values. NVFP4's fine-grained e4m3
    scale has a short range, so it needs a second scale per tensor, in fp32. The power-of-two scales
    of the MX formats need none.
    Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.3; NVIDIA, Pretraining
    Large Language Models with NVFP4, 2025, arXiv:2509.25149, appendix B.

    >>> block_format_of("mxfp4").bits_per_element, block_format_of("nvfp4").bits_per_element
    (4.25, 4.5)
    """

    name: str
    element: Format
    block_size: int
    scale: Format
    tensor_scale: Format | None = None

    @property
    def bits_per_element(self) -> float:
        """Element bits + scale bits / block size.

        Ignored: the scale of the tensor, 32 bits in all.
        """
        return self.element.storage_bits + self.scale.storage_bits / self.block_size

    def storage_bits(self, elements: int) -> int:
        """Bits of `elements` elements with all their scales.

        A last, shorter block has a whole scale. Ignored: padding of scales in a kernel's memory
        layout.

        >>> block_format_of("nvfp4").storage_bits(1024)
        4640
        """
        elements = validated_int("elements", elements)
        blocks = -(-elements // self.block_size)
        tensor_bits = self.tensor_scale.storage_bits if self.tensor_scale else 0
        return elements * self.element.storage_bits + blocks * self.scale.storage_bits + tensor_bits

    def quantised(self, values: Sequence[float]) -> QuantisedBlocks:
        """The values in this format nearest to `values`, by the rule of its specification.

        MX: scale = 2^(floor(log2 of the block's largest magnitude) - exponent of the element's
        max). Such a scale may cut the largest values: 7.9 in a block of scale 1 becomes 6 in fp4.
        NVFP4: tensor scale = largest magnitude / (6 · 448), in fp32; block scale = its largest
        magnitude / 6 / tensor scale, rounded to e4m3. Elements are rounded to nearest even and
        saturate. Divisions are in fp64, the kernels' in fp32: a value next to a tie may round the
        other way there.
        Raises ValueError for NaN or infinity, TypeError for a value that is not a real number.

        >>> block_format_of("mxfp4").quantised([1.0, 5.0, -0.2, 48.0]).values
        [0.0, 4.0, -0.0, 48.0]
        """
        values = [validated_real("values", value) for value in values]
        if infinite := [value for value in values if not math.isfinite(value)]:
            raise ValueError(f"values must be finite, got {infinite[0]!r}")
        tensor_scale = self._scale_of_tensor(values)
        scales: list[float] = []
        elements: list[float] = []
        for start in range(0, len(values), self.block_size):
            block = values[start : start + self.block_size]
            scales.append(self._scale_of_block(max(map(abs, block)), tensor_scale))
            unit = scales[-1] * tensor_scale
            elements += [
                self.element.rounded(v / unit, overflow="saturate")
                if unit
                else math.copysign(0.0, v)
                for v in block
            ]
        return QuantisedBlocks(self.block_size, tensor_scale, tuple(scales), tuple(elements))

    def _scale_of_tensor(self, values: Sequence[float]) -> float:
        largest = max(map(abs, values), default=0.0)
        if self.tensor_scale is None or largest == 0:
            return 1.0
        scale = self.tensor_scale.rounded(
            largest / (self.element.max * self.scale.max), overflow="saturate"
        )
        return scale or self.tensor_scale.decode(1)

    def _scale_of_block(self, largest: float, tensor_scale: float) -> float:
        if self.scale.fraction_bits:
            return self.scale.rounded(
                largest / self.element.max / tensor_scale, overflow="saturate"
            )
        if largest == 0:
            return self.scale.decode(0)
        # The scale is 2 to the difference of two exponents: the largest value's and the element
        # max's.
        exponent = math.frexp(largest)[1] - math.frexp(self.element.max)[1]
        return self.scale.rounded(math.ldexp(1.0, exponent), overflow="saturate")


BLOCK_FORMATS: dict[str, BlockFormat] = {
    name: BlockFormat(name, **{key: _FLOATS.get(value, value) for key, value in row.items()})
    for name, row in _TABLE["blocks"].items()
}


def block_format_of(name: str) -> BlockFormat:
    """The block format called `name`.

    >>> block_format_of("nvfp4").block_size
    16
    """
    return BLOCK_FORMATS[validated_choice("block format", name, BLOCK_FORMATS)]
