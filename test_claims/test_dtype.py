"""Claims about number formats: layout, range and rounding."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.formats import FORMATS, format_of
from test_claims.oracles import numbers
from test_claims.oracles.numbers import cast_of, disagreement, fields_counted, values_of_patterns
from test_claims.oracles.tensors import difference
from test_claims.strategies import TORCH_DTYPES

signs = st.sampled_from([1, -1])
LARGEST_OF_BF16 = 2.0**127 * (2 - 2**-7)
anywhere = st.integers(0, 2**32 - 1)
subnormal = st.integers(0, 2**23 - 1)
infinite_or_nan = st.integers(0x7F800000, 0x7FFFFFFF)


def assert_cast(device, name, value, should):
    """That torch casts a value to this one, and the format table rounds to it."""
    __tracebackhide__ = True
    got = cast_of(value, TORCH_DTYPES[name], device)
    formula = format_of(name).rounded(value)
    right = got == formula == should
    assert right, f"{name} makes {got!r} of {value!r}, {formula=}, not {should!r}"


def values_of(name, device):
    """The values of all patterns of a format."""
    return values_of_patterns(TORCH_DTYPES[name], None, device)


def assert_fields(device, name, should):
    """That patterns have so many exponent and fraction bits, as the format table says."""
    __tracebackhide__ = True
    row = format_of(name)
    values = values_of(name, device)
    counted = fields_counted(values, row.bits)
    fields = row.exponent_bits, row.fraction_bits
    assert counted == fields == should, f"{name} has {counted} bits, {fields=}, not {should}"


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=anywhere | subnormal | infinite_or_nan)
def test_fp32_reads_a_pattern_as_1_sign_8_exponent_and_23_fraction_bits(pattern):
    fp32 = format_of("fp32")
    read = values_of_patterns(torch.float32, [pattern], numbers.CPU).item()
    decoded = fp32.decode(pattern)
    assert (fp32.exponent_bits, fp32.fraction_bits) == (8, 23)

    both_nan = math.isnan(decoded) and math.isnan(read)
    same = decoded == read or both_nan
    assert same, f"decode={decoded!r}, but torch reads {read!r} [pattern={pattern:#010x}]"


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
    assert rounded == should, f"rounded={rounded!r}, but torch casts to {should!r} [{value=!r}]"


LAYOUT_CLAIMS = {
    "fp16": ["dtype.fp16-layout", "dtype.fp16-underflow-threshold", "dtype.fp16-rounds-down"],
    "bf16": ["dtype.bf16-layout"],
    "fp8_e4m3": ["dtype.e4m3-layout", "dtype.fp8-rounding"],
    "fp8_e5m2": ["dtype.e5m2-layout", "dtype.fp8-rounding"],
}
# Exponent and fraction bits.
FIELDS = {"fp16": (5, 10), "bf16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}


LAYOUTS = []
CASTS = []
for name, claims in LAYOUT_CLAIMS.items():
    of_layout = pytest.mark.claim(claims[0])
    of_cast = pytest.mark.claim(*claims)
    LAYOUTS.append(pytest.param(name, marks=of_layout))
    CASTS.append(pytest.param(name, marks=of_cast))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_pattern_reads_as_the_fields_of_the_format_say(name, device):
    row = format_of(name)
    wrong = numbers.decode_disagreement(row, device) or numbers.published_disagreement(row)
    assert not wrong, wrong

    assert_fields(device, name, FIELDS[name])
    values = values_of(name, device)
    largest = values[values.isfinite()].max().item()
    least = values[values > 0].min().item()
    normal = torch.finfo(TORCH_DTYPES[name]).smallest_normal
    ends = largest, normal, least
    should = row.max, row.least_normal, row.least_subnormal
    assert ends == should, f"{name} reaches {ends}, but should reach {should}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_large_tensor_reads_as_its_patterns_do(name, device):
    values = values_of(name, device)
    times = 2**17 // len(values)
    patterns = range(len(values))
    many = values_of_patterns(TORCH_DTYPES[name], [*patterns] * times, device)
    wrong = numbers.difference(name, many, values.repeat(times), "place {}".format)
    assert not wrong, wrong


@pytest.mark.claim("dtype.e5m2-layout")
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_cast_to_e5m2_keeps_infinity(device, value):
    assert_cast(device, "fp8_e5m2", value, value)


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_rounds_values_midpoints_and_neighbours_to_nearest_even(name, device):
    wrong = numbers.rounding_disagreement(format_of(name), device)
    assert not wrong, wrong


@pytest.mark.claim("dtype.bf16-layout", "dtype.bf16-33bit-exponent", "dtype.bf16-range")
def test_bf16_is_the_upper_half_of_an_fp32_whose_exponent_it_has(device):
    patterns = range(0, 2**32, 2**16)
    upper_halves = values_of_patterns(torch.float32, patterns, numbers.CPU)
    bf16 = values_of("bf16", device)
    wrong = numbers.difference("bf16", bf16, upper_halves, "pattern {:#06x}".format)
    assert not wrong, wrong

    finite = bf16[bf16.isfinite()]
    normal = finite[finite >= format_of("fp32").least_normal]
    exponents = normal.frexp().exponent
    binades = len(exponents.unique())
    assert binades == 2**8 - 2, f"bf16 has {binades} binades, not all of 8 bits but zeros and ones"


@pytest.mark.claim("dtype.bf16-reallocates", "dtype.bf16-33bit-exponent")
def test_bf16_gives_3_bits_of_the_fraction_of_fp16_to_the_exponent(device):
    assert_fields(device, "fp16", (5, 10))
    assert_fields(device, "bf16", (8, 7))
    reach = torch.finfo(torch.bfloat16).max / torch.finfo(torch.float16).max
    assert reach > 2**111, f"bf16 reaches only {reach} times as far"


OF_FP4 = pytest.param("fp4_e2m1", marks=pytest.mark.claim("dtype.fp4-block-scale"))


@pytest.mark.claim("dtype.finfo")
@pytest.mark.parametrize("name", [OF_FP4, *(name for name in FORMATS if name != "fp4_e2m1")])
def test_torch_and_the_specifications_agree_with_the_format_table(name, device):
    wrong = disagreement(FORMATS[name], device)
    assert not wrong, wrong


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
@pytest.mark.claim("dtype.bf16-sweet-spot", "amp.gradscaler", "loop.mixed-two-layer")
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
    vanishes = units == 0
    assert vanishes == (magnitude <= 2**-25), f"fp16 makes {units} · 2^-24 of {value!r}"

    bf16 = cast_of(value, torch.bfloat16, device)
    assert abs(bf16 / value - 1) <= 2**-8, f"bf16 makes {bf16} of {value!r}"


@pytest.mark.claim("dtype.bf16-resolution", "dtype.fp16-overflow", "dtype.lower-is-less-accurate")
@given(
    fraction=st.integers(0, 2**23 - 1),
    exponent=st.integers(-126, 126) | st.integers(-27, 17),
    sign=signs,
)
# Where fp16's spacing is twice bf16's; and the float32 below 65520.
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


OUTER = "outer product"
ARITHMETIC = {"sum": torch.add, "product": torch.mul, OUTER: torch.matmul}


@pytest.mark.claim("dtype.fp16-overflow")
@pytest.mark.parametrize("elements", [7, 100])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_results_of_fp16_overflow_where_their_rounding_does(device, name, elements):
    """Neither is rounded in fp32: integers below 2^16 have sums of 17 bits, products of 22."""
    x = torch.linspace(1, 65504, elements).half().round()
    y = x.flip(0)
    if name == OUTER:
        x = x[:, None]
        y = y[None, :]
    operation = ARITHMETIC[name]
    exact = operation(x.double(), y.double()).flatten()
    should = [format_of("fp16").rounded(value) for value in exact.tolist()]
    assert 0 < should.count(math.inf) < len(should), f"no {name} overflows, or each does"

    got = numbers.on_the_host(operation(x.to(device), y.to(device))).flatten()
    expected = torch.tensor(should, dtype=torch.float64)
    wrong = numbers.difference(f"{name} in fp16", got, expected, "place {}".format)
    assert not wrong, wrong


@pytest.mark.claim("dtype.bf16-range", "dtype.bf16-keeps-1e-8")
@given(value=st.floats(2.0**-126, LARGEST_OF_BF16, width=32), sign=signs)
@example(value=1e-8, sign=1)
@example(value=2.0**-126, sign=1)
@example(value=LARGEST_OF_BF16, sign=-1)
def test_normal_numbers_of_fp32_stay_normal_in_bf16_but_the_last(device, value, sign):
    signed = sign * value
    got = cast_of(signed, torch.bfloat16, device)
    off = abs(got / signed - 1)
    assert off <= 2**-8, f"bf16 is off by {off} at {signed!r}, more than half of its spacing"


@pytest.mark.claim("dtype.bf16-range", "dtype.bf16-keeps-1e-8")
def test_bf16_ends_four_thousandths_below_fp32_and_has_its_least_normal(device):
    bf16 = format_of("bf16")
    fp32 = format_of("fp32")
    ratio = torch.finfo(torch.bfloat16).max / torch.finfo(torch.float32).max
    ours = bf16.max / fp32.max
    should = (2 - 2**-7) / (2 - 2**-23)
    assert ratio == ours == pytest.approx(should), f"ratio of maxima={ratio}, {ours=}"
    assert bf16.least_normal == fp32.least_normal

    for row, least in ((bf16, 2.0**-133), (fp32, 2.0**-149)):
        assert_cast(device, row.name, least, row.least_subnormal)
        assert_cast(device, row.name, -least, -row.least_subnormal)
        assert_cast(device, row.name, least / 2, 0)


@pytest.mark.claim("dtype.fp32-full-precision")
@given(half=st.integers(0, 2**24) | st.integers(0, 2**52 - 1))
@example(half=2**23 - 1)
@example(half=2**23)
def test_from_2_to_the_24_on_odd_integers_need_fp64(half):
    odd = 2 * half + 1
    for name, dtype, bits in (("fp32", torch.float32, 24), ("fp64", torch.float64, 53)):
        got = torch.tensor(odd, dtype=dtype).item()
        formula = format_of(name).rounded(odd)
        assert got == formula, f"{name} makes {got} of {odd}, but {formula=}"
        kept = got == odd
        assert kept == (odd < 2**bits), f"{name} makes {got} of {odd}, not only from 2^{bits} on"


@pytest.mark.claim("dtype.fp32-full-precision")
def test_fp64_is_2_to_the_29_finer_than_fp32_which_holds_16_bit_floats():
    finer = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
    ours = format_of("fp32").eps / format_of("fp64").eps
    assert finer == ours == 2**29, f"ratio of eps={finer}, {ours=}, but should be 2**29"

    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        half = patterns.view(dtype)
        is_number = ~half.isnan()
        wide = half.float()
        back = wide.to(dtype).view(torch.int16)
        wrong = difference(back[is_number], patterns[is_number])
        assert not wrong, f"patterns of {dtype} through fp32 and back: {wrong}"


@pytest.mark.claim("dtype.lower-is-less-accurate")
@given(exponent=st.integers(-155, 127) | st.integers(-28, 20))
def test_the_fewer_exponent_bits_a_format_has_the_sooner_a_value_leaves_it(device, exponent):
    # Three quarters of the least subnormal, at least, round up to it.
    value = 1.5 * 2.0**exponent
    for name, (bits, fraction) in {"fp32": (8, 23), **FIELDS}.items():
        bias = 2 ** (bits - 1) - 1
        # The highest exponent of e4m3 has numbers, too.
        highest = bias + (name == "fp8_e4m3")
        fits = -bias - fraction <= exponent <= highest
        got = cast_of(value, TORCH_DTYPES[name], device)
        near = abs(got / value - 1) < 0.34
        assert near == fits, f"{name} makes {got} of 1.5 * 2^{exponent}, which {fits=}"
