"""Claims about number formats: layout, range and rounding."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.formats import FORMATS, format_of
from test_claims.oracles import numbers
from test_claims.oracles.messages import agree, close, equal
from test_claims.oracles.numbers import cast_of, fields_counted, values_of_patterns
from test_claims.strategies import TORCH_DTYPES, with_dtype

signs = st.sampled_from([1, -1])
anywhere = st.integers(0, 2**32 - 1)
subnormal = st.integers(0, 2**23 - 1)
infinite_or_nan = st.integers(0x7F800000, 0x7FFFFFFF)


def assert_cast(device, name, value, should):
    """That torch casts a value to this one, and the format table rounds to it."""
    __tracebackhide__ = True
    got = cast_of(value, TORCH_DTYPES[name], device)
    formula = format_of(name).rounded(value)
    agree(f"{name} of {value!r}", torch=got, table=formula, should=should)


def values_of(name, device):
    """The values of all patterns of a format."""
    return values_of_patterns(TORCH_DTYPES[name], None, device)


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=anywhere | subnormal | infinite_or_nan)
def test_fp32_reads_a_pattern_as_1_sign_8_exponent_and_23_fraction_bits(pattern):
    fp32 = format_of("fp32")
    read = values_of_patterns(torch.float32, [pattern], numbers.CPU).item()
    decoded = fp32.decode(pattern)
    equal((fp32.exponent_bits, fp32.fraction_bits), (8, 23), "exponent and fraction bits")

    equal(repr(decoded), repr(read), "decode")


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=st.integers(0, 0x7F7FFFFE), eighths=st.integers(0, 8), sign=signs)
# 1 + 2^-24: a tie, whose even neighbour is below.
@example(pattern=0x3F800000, eighths=4, sign=1)
def test_fp32_rounds_what_lies_between_two_values_to_nearest_even(pattern, eighths, sign):
    neighbours = [pattern, pattern + 1]
    below, above = values_of_patterns(torch.float32, neighbours, numbers.CPU).tolist()
    magnitude = below + (above - below) / 8 * eighths
    value = sign * magnitude
    rounded = format_of("fp32").rounded(value)
    should = torch.tensor(value, dtype=torch.float64).float().item()
    equal(rounded, should, "rounded")


# Exponent and fraction bits.
FIELDS = {"fp16": (5, 10), "bf16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
LAYOUT_CLAIMS = {
    "fp16": (
        "dtype.fp16-layout",
        "dtype.fp16-underflow-threshold",
        "dtype.fp16-rounds-down",
        "dtype.bf16-reallocates",
    ),
    "bf16": ("dtype.bf16-layout", "dtype.bf16-reallocates", "dtype.bf16-33bit-exponent"),
    "fp8_e4m3": ("dtype.e4m3-layout", "dtype.fp8-rounding", "dtype.fp8-overflow"),
    "fp8_e5m2": ("dtype.e5m2-layout", "dtype.fp8-rounding", "dtype.fp8-overflow"),
}
LAYOUTS = [
    pytest.param(name, marks=pytest.mark.claim(*claims)) for name, claims in LAYOUT_CLAIMS.items()
]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_pattern_reads_as_the_fields_of_the_format_say(name, device):
    row = format_of(name)
    numbers.check_decoding(row, device)
    numbers.check_published(row)

    values = values_of(name, device)
    fields = row.exponent_bits, row.fraction_bits
    counted = fields_counted(values, row.bits)
    agree("exponent and fraction bits", torch=counted, table=fields, should=FIELDS[name])
    largest = values[values.isfinite()].max().item()
    least = values[values > 0].min().item()
    normal = torch.finfo(TORCH_DTYPES[name]).smallest_normal
    ends = largest, normal, least
    should = row.max, row.least_normal, row.least_subnormal
    equal(ends, should, "the largest, the least normal and the least number")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_cast_rounds_values_midpoints_and_neighbours_to_nearest_even(name, device):
    numbers.check_rounding(format_of(name), device)


@pytest.mark.claim("dtype.bf16-layout", "dtype.bf16-33bit-exponent", "dtype.bf16-range")
def test_bf16_is_the_upper_half_of_an_fp32_whose_exponent_it_has(device):
    patterns = range(0, 2**32, 2**16)
    upper_halves = values_of_patterns(torch.float32, patterns, numbers.CPU)
    bf16 = values_of("bf16", device)
    numbers.equal_numbers(bf16, upper_halves, "bf16", patterns)
    # A zero has a sign too.
    bits = upper_halves.float().to(device, torch.bfloat16).view(torch.int16).cpu()
    should = torch.arange(2**16).to(torch.int16)
    number = ~upper_halves.isnan()
    equal(bits[number], should[number], "the bits of a cast")

    finite = bf16[bf16.isfinite()]
    normal = finite[finite >= format_of("fp32").least_normal]
    exponents = normal.frexp().exponent
    # Zeros and ones are no exponents of normal numbers.
    equal(len(exponents.unique()), 2**8 - 2, "binades")


OF_FP4 = pytest.param("fp4_e2m1", marks=pytest.mark.claim("dtype.fp4-block-scale"))


@pytest.mark.claim("dtype.finfo")
@pytest.mark.parametrize("name", [OF_FP4, *(name for name in FORMATS if name != "fp4_e2m1")])
def test_torch_and_the_specifications_agree_with_the_format_table(name, device):
    numbers.check(FORMATS[name], device)


@pytest.mark.claim("dtype.finfo")
def test_finfo_does_not_tell_where_underflow_begins(device):
    below = torch.finfo(torch.float16).smallest_normal / 1024
    assert_cast(device, "fp16", below, format_of("fp16").least_subnormal)

    with pytest.raises(TypeError):
        torch.finfo(torch.int8)


small = st.floats(2**-126, 2**-14, width=32)
near_the_threshold = st.floats(2**-27, 2**-23, width=32)


@pytest.mark.claim(
    "dtype.fp16-underflow-threshold", "dtype.fp16-rounds-down", "dtype.fp16-underflow-1e-8"
)
@pytest.mark.claim(
    "dtype.bf16-sweet-spot", "dtype.bf16-keeps-1e-8", "amp.gradscaler", "loop.mixed-two-layer"
)
@given(magnitude=small | near_the_threshold, sign=signs)
@example(magnitude=2**-25, sign=-1)
# The float32 above it.
@example(magnitude=2**-25 * (1 + 2**-23), sign=1)
@example(magnitude=1e-8, sign=1)
@example(magnitude=2.98e-8, sign=1)
@example(magnitude=3e-8, sign=-1)
def test_fp16_makes_0_of_all_to_2_to_the_minus_25_and_bf16_of_none(device, magnitude, sign):
    value = sign * magnitude
    units = round(magnitude * 2**24)
    assert_cast(device, "fp16", value, sign * units / 2**24)
    equal(units == 0, magnitude <= 2**-25, "whether it vanishes in fp16")

    bf16 = cast_of(value, torch.bfloat16, device)
    close(bf16, value, "the value in bf16", rel=2**-8)


@pytest.mark.claim("dtype.bf16-resolution", "dtype.fp16-overflow", "dtype.lower-is-less-accurate")
@given(
    fraction=st.integers(0, 2**23 - 1),
    exponent=st.integers(-126, 126) | st.integers(-27, 17),
    sign=signs,
)
# In this case fp16's spacing is twice bf16's; and the float32 below 65520.
@example(fraction=0, exponent=-18, sign=1)
@example(fraction=2**23 - 2**12 - 1, exponent=15, sign=1)
@example(fraction=2**23 - 2**12, exponent=15, sign=-1)
def test_of_23_fraction_bits_bf16_keeps_7_and_fp16_10_up_to_65520(device, fraction, exponent, sign):
    value = sign * math.ldexp(2**23 + fraction, exponent - 23)
    # The last is the exponent of the least subnormal number.
    for name, bits, least in (
        ("bf16", 7, -149),
        ("fp16", 10, -24),
        ("fp32", 23, -149),
    ):
        spacing = 2.0 ** max(exponent - bits, least)
        should = round(value / spacing) * spacing
        if name == "fp16" and abs(value) >= 65520:
            should = sign * math.inf
        assert_cast(device, name, value, should)


@pytest.mark.claim("dtype.bf16-range", "dtype.bf16-keeps-1e-8")
def test_bf16_ends_four_thousandths_below_fp32_and_has_its_least_normal(device):
    bf16 = format_of("bf16")
    fp32 = format_of("fp32")
    ratio = torch.finfo(torch.bfloat16).max / torch.finfo(torch.float32).max
    should = (2 - 2**-7) / (2 - 2**-23)
    close((ratio, bf16.max / fp32.max), (should, should), "bf16's maximum over fp32's")
    equal(bf16.least_normal, fp32.least_normal, "bf16's least normal number")

    for row, least in ((bf16, 2.0**-133), (fp32, 2.0**-149)):
        assert_cast(device, row.name, least, row.least_subnormal)
        assert_cast(device, row.name, -least, -row.least_subnormal)
        assert_cast(device, row.name, least / 2, 0)


def results_of(dtype, device, x, y):
    """The result of each operation on two numbers in this dtype: one pair, and 600 at once.

    A product of matrices has one term, or else it would be a sum.
    """
    for rows in (1, 600):
        a, b = (torch.full((rows, 1), each, dtype=dtype, device=device) for each in (x, y))
        both = torch.cat([a, b], dim=1)
        yield {
            "x * y": a * b,
            "prod": both.prod(1),
            "x @ y": a @ b[:1],
            "linear": torch.nn.functional.linear(a, b[:1]),
            "with a bias": torch.nn.functional.linear(a, b[:1], 0 * b[0]),
            "x / y": a / b,
            "x + y": a + b,
            "x - y": a - -b,
            "sum": both.sum(1),
            "cumsum": both.cumsum(1)[:, 1],
        }


PRODUCT = ["x * y", "prod", "x @ y", "linear", "with a bias"]
SUM = ["x + y", "x - y", "sum", "cumsum"]


def assert_results(dtype, device, x, y, should):
    __tracebackhide__ = True
    for results in results_of(dtype, device, x, y):
        for name, result in results.items():
            if name in should:
                equal(result.unique().tolist(), [should[name]], name, x=x, y=y, dtype=dtype)


@pytest.mark.claim("dtype.bf16-range", "dtype.bf16-keeps-1e-8")
@given(a=st.integers(-126, 127), b=st.integers(-126, 127))
@example(a=-60, b=-60)
@example(a=63, b=64)
def test_operations_in_bf16_reach_as_far_as_its_numbers(device, a, b):
    """Powers of two are exact, so only the range can change a product, a quotient or a sum."""
    should = {}
    if -126 <= a + b <= 127:
        should |= dict.fromkeys(PRODUCT, 2.0 ** (a + b))
    if -126 <= a - b <= 127:
        should["x / y"] = 2.0 ** (a - b)
    assert_results(torch.bfloat16, device, 2.0**a, 2.0**b, should)
    half = 2.0 ** max(a - 1, -126)
    assert_results(torch.bfloat16, device, half, half, dict.fromkeys(SUM, 2 * half))


@pytest.mark.claim(
    "dtype.fp16-underflow-threshold", "dtype.fp16-rounds-down", "dtype.fp16-overflow"
)
@pytest.mark.parametrize(
    ("x", "y", "names", "should"),
    [
        (2.0**-12, 2.0**-13, PRODUCT, 0.0),
        (2.0**-12, 2.0**-12, PRODUCT, 2.0**-24),
        (-(2.0**-13), 1.5 * 2.0**-12, PRODUCT, -(2.0**-24)),
        (2.0**-12, 2.0**13, ["x / y"], 0.0),
        (256.0, 256.0, PRODUCT, math.inf),
        (256.0, 255.5, PRODUCT, 65408.0),
        (-256.0, 2.0**-8, ["x / y"], -math.inf),
        (65504.0, 16.0, SUM, math.inf),
        (65504.0, 15.0, SUM, 65504.0),
    ],
)
def test_operations_in_fp16_vanish_and_overflow_where_its_casts_do(device, x, y, names, should):
    assert_results(torch.float16, device, x, y, dict.fromkeys(names, should))


@pytest.mark.claim(
    "dtype.bf16-resolution", "dtype.lower-is-less-accurate", "dtype.fp32-full-precision"
)
@pytest.mark.parametrize(("name", "bits"), [("fp64", 52), ("fp32", 23), ("fp16", 10), ("bf16", 7)])
def test_a_sum_and_a_product_keep_so_many_fraction_bits(device, name, bits):
    """A step above 1 is kept; half of it, a tie, goes to the even neighbour."""
    step = 2.0**-bits
    dtype = TORCH_DTYPES[name]
    device = with_dtype(device, dtype)
    assert_results(dtype, device, 1.0, step, dict.fromkeys(SUM, 1 + step))
    assert_results(dtype, device, 1.0, step / 2, dict.fromkeys(SUM, 1.0))
    # The square has 2·step and the square of step, which is lost.
    assert_results(dtype, device, 1 + step, 1 + step, dict.fromkeys(PRODUCT, 1 + 2 * step))


@pytest.mark.claim("dtype.fp32-full-precision")
@given(half=st.integers(0, 2**24) | st.integers(0, 2**52 - 1))
@example(half=2**23 - 1)
@example(half=2**23)
def test_from_2_to_the_24_on_odd_integers_need_fp64(half):
    odd = 2 * half + 1
    for name, dtype, bits in (("fp32", torch.float32, 24), ("fp64", torch.float64, 53)):
        got = torch.tensor(odd).to(dtype).item()
        formula = format_of(name).rounded(odd)
        equal(got, formula, "the integer kept", name=name)
        equal(got == odd, odd < 2**bits, "whether it is odd", name=name)


@pytest.mark.claim("dtype.fp32-full-precision")
def test_fp64_is_2_to_the_29_finer_than_fp32():
    finer = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
    ours = format_of("fp32").eps / format_of("fp64").eps
    agree("fp32's eps over fp64's", torch=finer, table=ours, should=2**29)
