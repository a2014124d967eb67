"""Claims about number formats: layout, range, rounding, and the needs of small formats."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from accounting.devices import ROWS, peak_flop_per_s
from accounting.formats import BLOCK_FORMATS, FORMATS, block_format_of, element_bits, format_of
from test_claims.oracles import numbers
from test_claims.oracles.kernels import has_bf16_unit, scaled_fp8_product
from test_claims.oracles.low_precision import E4M3, E5M2, NETS, trained_net
from test_claims.oracles.numbers import (
    cast,
    cast_of,
    disagreement,
    fields_counted,
    values_of_patterns,
)
from test_claims.oracles.tensors import difference
from test_claims.strategies import seeds, with_dtype

FP8 = ("fp8_e4m3", "fp8_e5m2")
fp8s = st.sampled_from([E4M3, E5M2])
signs = st.sampled_from([1, -1])


def dtype_of(name: str) -> torch.dtype:
    return getattr(torch, FORMATS[name].torch_name)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def applied(function, *operands):
    """The result of an operation, None where torch has no kernel for it."""
    try:
        return function(*operands)
    except (NotImplementedError, RuntimeError):
        return None


anywhere = st.integers(0, 2**32 - 1)
subnormal = st.integers(0, 2**23 - 1)
infinite_or_nan = st.integers(0x7F800000, 0x7FFFFFFF)


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=anywhere | subnormal | infinite_or_nan)
def test_fp32_reads_a_pattern_as_1_sign_8_exponent_and_23_fraction_bits(pattern):
    fp32 = format_of("fp32")
    read = values_of_patterns(torch.float32, [pattern], numbers.CPU).item()
    decoded = fp32.decode(pattern)
    assert (fp32.exponent_bits, fp32.fraction_bits) == (8, 23)

    same = decoded == read or (math.isnan(decoded) and math.isnan(read))
    assert same, f"decode={decoded!r}, but torch reads {read!r} [pattern={pattern:#010x}]"


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=st.integers(0, 0x7F7FFFFE), eighths=st.integers(0, 8), sign=signs)
# 1 + 2^-24: a tie, whose even neighbour is below.
@example(pattern=0x3F800000, eighths=4, sign=1)
def test_fp32_rounds_what_lies_between_two_values_to_nearest_even(pattern, eighths, sign):
    below, above = values_of_patterns(torch.float32, [pattern, pattern + 1], numbers.CPU).tolist()
    value = sign * (below + (above - below) / 8 * eighths)
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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.claim(c[0])) for n, c in LAYOUT_CLAIMS.items()]
)
def test_every_pattern_reads_as_the_fields_of_the_format_say(name, device):
    row = format_of(name)
    values = values_of_patterns(dtype_of(name), None, device)
    wrong = numbers.decode_disagreement(row, device) or numbers.published_disagreement(row)
    assert not wrong, wrong

    got = fields_counted(values, row.bits)
    fields = row.exponent_bits, row.fraction_bits
    assert got == fields == FIELDS[name], f"{got}, {fields=}, but should be {FIELDS[name]} bits"

    finite = values[values.isfinite()]
    normal = torch.finfo(dtype_of(name)).smallest_normal
    ends = finite.max().item(), normal, finite[finite > 0].min().item()
    assert ends == (row.max, row.least_normal, row.least_subnormal), f"{name} reaches {ends}"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.claim(*c)) for n, c in LAYOUT_CLAIMS.items()]
)
def test_a_cast_rounds_values_midpoints_and_neighbours_to_nearest_even(name, device):
    wrong = numbers.rounding_disagreement(format_of(name), device)
    assert not wrong, wrong


@pytest.mark.claim("dtype.bf16-layout", "dtype.bf16-33bit-exponent", "dtype.bf16-range")
def test_bf16_is_the_upper_half_of_an_fp32_whose_exponent_it_has(device):
    patterns = [pattern << 16 for pattern in range(2**16)]
    upper_halves = values_of_patterns(torch.float32, patterns, numbers.CPU)
    bf16 = values_of_patterns(torch.bfloat16, None, device)
    wrong = numbers.difference("bf16", bf16, upper_halves, "pattern {:#06x}".format)
    assert not wrong, wrong

    normal = bf16[(bf16 >= format_of("fp32").least_normal) & bf16.isfinite()]
    binades = len(normal.frexp().exponent.unique())
    assert binades == 2**8 - 2, f"bf16 has {binades} binades, not all of 8 bits but zeros and ones"


@pytest.mark.claim("dtype.bf16-reallocates", "dtype.bf16-33bit-exponent")
def test_bf16_gives_3_bits_of_the_fraction_of_fp16_to_the_exponent(device):
    for name, should in (("fp16", (5, 10)), ("bf16", (8, 7))):
        counted = fields_counted(values_of_patterns(dtype_of(name), None, device), 16)
        row = format_of(name)
        fields = row.exponent_bits, row.fraction_bits
        assert counted == fields == should, f"{name} has {counted} bits, {fields=}, not {should}"
    assert torch.finfo(torch.bfloat16).max > 2**111 * torch.finfo(torch.float16).max


OF_FP4 = pytest.param("fp4_e2m1", marks=pytest.mark.claim("dtype.fp4-block-scale"))


@pytest.mark.claim("dtype.finfo")
@pytest.mark.parametrize("name", [OF_FP4, *(name for name in FORMATS if name != "fp4_e2m1")])
def test_torch_and_the_specifications_agree_with_the_format_table(name, device):
    wrong = disagreement(FORMATS[name], device)
    assert not wrong, wrong


@pytest.mark.claim("dtype.finfo")
def test_finfo_does_not_tell_where_underflow_begins(device):
    below = torch.finfo(torch.float16).smallest_normal / 1024
    got = cast_of(below, torch.float16, device)
    assert got == below == format_of("fp16").least_subnormal, f"fp16 makes {got} of {below}"

    with pytest.raises(TypeError):
        torch.finfo(torch.int8)


@pytest.mark.claim("dtype.fp8-tradeoff")
@pytest.mark.parametrize("exponent", [-6, 0, 7])
@pytest.mark.parametrize("sign", [1, -1])
def test_e4m3_has_half_the_rounding_error_of_e5m2_and_half_its_octaves(device, exponent, sign):
    drawn = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    values = (1 + drawn) * sign * 2.0**exponent
    errors = {}
    octaves = {}
    for name, dtype in zip(FP8, (E4M3, E5M2), strict=True):
        row = format_of(name)
        error = ((cast(values, dtype, device) - values) / values).abs().max().item()
        # Of a tie at 1 + eps/2, the worst that can happen.
        most = row.eps / (2 + row.eps)
        assert 0.9 < error / most <= 1, f"{name} errs by {error}, but should by up to {most}"
        errors[name] = error
        table = values_of_patterns(dtype, None, device)
        octaves[name] = math.log2(table[table.isfinite()].max() / table[table > 0].min())
        should = math.log2(row.max / row.least_subnormal)
        assert octaves[name] == pytest.approx(should), f"{name} has {octaves[name]} octaves"

    for what in (errors, octaves):
        half = what["fp8_e4m3"] < 0.6 * what["fp8_e5m2"]
        assert half, f"e4m3 should have half of e5m2's: {errors=}, {octaves=}"


@pytest.mark.claim("dtype.fp8-overflow")
@pytest.mark.parametrize(
    ("dtype", "last", "policies"),
    [(E4M3, 464.0, {"saturate", "nan"}), (E5M2, 61439.996, {"inf"})],
    ids=FP8,
)
def test_what_rounds_beyond_the_fp8_maximum_becomes_one_thing_everywhere(
    dtype, last, policies, device, record_figure
):
    policy = numbers.overflow_policy(dtype, device)
    row = format_of("fp8_e4m3" if dtype == E4M3 else "fp8_e5m2")
    record_figure(f"{row.name} overflow: {policy}, infinity: {cast_of(math.inf, dtype, device)}")
    assert policy in policies, f"{row.name} overflows to {policy}, but should to one of {policies}"

    inside = cast(torch.tensor([row.max + 1, last, -last]), dtype, device).tolist()
    should = [row.max, row.max, -row.max]
    assert inside == should, f"casts below half a spacing past the maximum gave {inside}"

    first_beyond = torch.nextafter(torch.tensor(last), torch.tensor(math.inf))
    factors = 2.0 ** (torch.arange(180) / 3)
    beyond = first_beyond * torch.cat([factors, -factors])
    rounded = [row.rounded(x, overflow=policy) for x in beyond.tolist()]
    ours = torch.tensor(rounded, dtype=torch.float64)
    wrong = numbers.difference(row.name, ours, cast(beyond, dtype, device), "value {}".format)
    assert not wrong, wrong

    infinity = cast_of(math.inf, dtype, device)
    assert infinity in (math.inf, row.max) or math.isnan(infinity), f"infinity becomes {infinity}"
    assert math.isnan(cast_of(math.nan, dtype, device))


@pytest.mark.claim(
    "dtype.fp16-underflow-threshold", "dtype.fp16-rounds-down", "dtype.fp16-underflow-1e-8"
)
@pytest.mark.claim("dtype.bf16-sweet-spot", "amp.gradscaler", "loop.mixed-two-layer")
@given(
    magnitude=st.floats(2**-126, 2**-14, width=32) | st.floats(2**-27, 2**-23, width=32), sign=signs
)
@example(magnitude=2**-25, sign=-1)
# The float32 above it.
@example(magnitude=2**-25 * (1 + 2**-23), sign=1)
@example(magnitude=1e-8, sign=1)
@example(magnitude=2.98e-8, sign=1)
@example(magnitude=3e-8, sign=-1)
def test_fp16_makes_0_of_all_to_2_to_the_minus_25_and_bf16_of_none(device, magnitude, sign):
    value = sign * magnitude
    got = cast_of(value, torch.float16, device)
    formula = format_of("fp16").rounded(value)
    should = sign * round(magnitude * 2**24) / 2**24
    assert got == formula == should, f"fp16({value!r}) is {got!r}, {formula=}, not {should!r}"
    assert (got == 0) == (magnitude <= 2**-25), f"fp16 makes {got!r} of {value!r}"

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
    for name, bits, least in (("bf16", 7, -149), ("fp16", 10, -24), ("fp32", 23, -149)):
        got = cast_of(value, dtype_of(name), device)
        spacing = 2.0 ** max(exponent - bits, least)
        fits = name != "fp16" or abs(value) < 65520
        should = round(value / spacing) * spacing if fits else sign * math.inf
        formula = format_of(name).rounded(value)
        right = got == formula == should
        assert right, f"{name} makes {got!r} of {value!r}, {formula=}, not {should!r}"


@pytest.mark.claim("dtype.bf16-range", "dtype.bf16-keeps-1e-8")
@given(value=st.floats(2.0**-126, 2.0**127 * (2 - 2**-7), width=32), sign=signs)
@example(value=1e-8, sign=1)
@example(value=2.0**-126, sign=1)
@example(value=2.0**127 * (2 - 2**-7), sign=-1)
def test_normal_numbers_of_fp32_stay_normal_in_bf16_but_the_last(device, value, sign):
    off = abs(cast_of(sign * value, torch.bfloat16, device) / (sign * value) - 1)
    assert off <= 2**-8, f"bf16 is off by {off} at {sign * value!r}, more than half of its spacing"


@pytest.mark.claim("dtype.bf16-range", "dtype.bf16-keeps-1e-8")
def test_bf16_ends_four_thousandths_below_fp32_and_has_its_least_normal(device):
    bf16 = format_of("bf16")
    fp32 = format_of("fp32")
    ratio = torch.finfo(torch.bfloat16).max / torch.finfo(torch.float32).max
    should = (2 - 2**-7) / (2 - 2**-23)
    assert ratio == bf16.max / fp32.max == pytest.approx(should), f"ratio of maxima={ratio}"
    assert bf16.least_normal == fp32.least_normal

    for row, dtype, least in ((bf16, torch.bfloat16, 2.0**-133), (fp32, torch.float32, 2.0**-149)):
        casts = [cast_of(x, dtype, device) for x in (least, -least, least / 2)]
        should = [row.least_subnormal, -least, 0]
        assert casts == should, f"{row.name} makes {casts} of ±{least} and half of it"


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

    for dtype in (torch.float16, torch.bfloat16):
        half = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        numbers_of = ~half.isnan()
        back = half.float().to(dtype).view(torch.int16)
        wrong = difference(back[numbers_of], half.view(torch.int16)[numbers_of])
        assert not wrong, f"patterns of {dtype} through fp32 and back: {wrong}"


@pytest.mark.claim("dtype.lower-is-less-accurate")
@pytest.mark.parametrize(("m", "k", "n"), [(32, 32, 32), (200, 64, 33), (48, 200, 130)])
def test_a_linear_layer_errs_by_a_third_of_eps_in_every_format(device, m, k, n):
    x = seeded(m, k)
    w = seeded(k, n, seed=1) / math.sqrt(k)
    exact = x.double() @ w.double()
    last = 0.0
    for name, eps in (("fp16", 2**-10), ("bf16", 2**-7), ("fp8_e4m3", 2**-3), ("fp8_e5m2", 2**-2)):
        product = cast(x, dtype_of(name), device) @ cast(w, dtype_of(name), device)
        error = ((product - exact).norm() / exact.norm()).item()
        # Two factors, each off by a uniform ±eps/2 at the low end of a binade and half of that at
        # its high end.
        times = error / eps
        assert 0.25 < times < 0.37, f"{name} errs by {times:.2f} eps, but should by 0.3"
        assert last < error, f"{name} errs by {error}, not by more than the finer one's {last}"
        last = error
        taken = w.to(dtype_of(name)).nbytes
        should = element_bits(name) // 8 * k * n
        assert taken == should, f"{name} takes {taken} bytes, but should take {should}"


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
        got = cast_of(value, dtype_of(name), device)
        near = abs(got / value - 1) < 0.34
        assert near == fits, f"{name} makes {got} of 1.5 * 2^{exponent}, which {fits=}"


@pytest.mark.claim("dtype.lower-is-faster")
@pytest.mark.parametrize("times", [2, 3])
def test_a_large_bf16_matmul_is_faster_than_fp32_with_a_bf16_unit(device, isa, speed, times):
    if not has_bf16_unit(device, isa):
        pytest.skip(f"torch reports no bf16 unit here ({', '.join(isa) or device.type})")
    n = times * (256 if device.type == "cpu" else 2048)
    wide = torch.randn(n, n, device=device)
    narrow = wide.bfloat16()
    what = f"{n}^3 matmul in fp32 against bf16"
    speed.assert_slower(lambda: wide @ wide, lambda: narrow @ narrow, what)


@pytest.mark.claim("dtype.lower-is-faster")
# On some cards both have as many units.
@pytest.mark.needs("cpu")
@pytest.mark.parametrize("n", [256, 384])
def test_a_large_fp32_matmul_is_faster_than_fp64(speed, n):
    wide = torch.randn(n, n, dtype=torch.float64)
    narrow = wide.float()
    what = f"{n}^3 matmul in fp64 against fp32"
    speed.assert_slower(lambda: wide @ wide, lambda: narrow @ narrow, what)


@pytest.mark.claim("dtype.lower-is-faster")
# Elsewhere torch multiplies no fp8 without a unit for it.
@pytest.mark.needs("cpu")
@pytest.mark.parametrize("n", [64, 128])
def test_an_fp8_matmul_without_an_fp8_unit_is_slower_than_fp32(speed, isa, n):
    if any("fp8" in feature or "avx10" in feature for feature in isa):
        pytest.skip("this CPU has an fp8 unit")
    wide = torch.randn(n, n)
    narrow = wide.to(E4M3)
    if applied(torch.matmul, narrow, narrow) is None:
        pytest.skip("this torch multiplies no fp8 on a CPU")
    what = f"{n}^3 matmul in fp8 against fp32"
    speed.assert_slower(lambda: narrow @ narrow, lambda: wide @ wide, what, pairs=15)


@pytest.mark.claim("dtype.fp16-not-for-big-models")
def test_activations_overflow_in_fp16_before_any_loss_is_scaled(device):
    # 65520 is the square of 255.97.
    x = torch.linspace(200, 400, 33).half()
    exact = x.double() ** 2
    fp16 = numbers.on_the_host(x.to(device).square())
    wrong = difference(fp16.isinf(), exact >= 65520)
    assert not wrong, f"which squares overflow: {wrong}"

    bf16 = numbers.on_the_host(x.to(device, torch.bfloat16).square())
    off_by = (bf16 / exact - 1).abs().max().item()
    assert off_by <= 2**-6, f"squares in bf16 are {bf16}, off by {off_by}"


@pytest.mark.claim("dtype.fp16-not-for-big-models", "dtype.fp16-small-models")
@pytest.mark.claim("dtype.bf16-sweet-spot", "amp.gradscaler")
@pytest.mark.parametrize(
    ("words", "tokens", "log_scale"),
    [
        # Bytes in batches of 4096: far from it. The words of GPT-2: in one token more.
        (256, 4096, 0),
        (50_257, 667, 0),
        (50_257, 668, 0),
        (2, 2**20, 0),
        (4000, 2**14, 0),
        (4000, 2**20, 16),
        (4000, 2**19, 16),
    ],
)
def test_fp16_flushes_gradients_of_logits_from_2_to_the_25_words_by_tokens(
    device, words, tokens, log_scale
):
    """Before training a word has a chance of 1/V: a mean of T tokens gives each wrong one 1/VT."""
    should = 2.0**log_scale / (words * tokens)
    label = torch.zeros(1, dtype=torch.long, device=device)
    for dtype, least in ((torch.float16, 2**-25), (torch.bfloat16, 0)):
        logits = torch.zeros(1, words, dtype=dtype, device=device, requires_grad=True)
        loss = torch.nn.functional.cross_entropy(logits.float(), label)
        # One token's share of the mean, scaled.
        (loss * (2.0**log_scale / tokens)).backward()
        held = logits.grad[0, 1:].float()
        flushed = not held.any()
        assert flushed == (should < least), f"{dtype} holds {held.max()}, but {should=}, {least=}"
        off_by = (held - should).abs().max().item()
        assert off_by <= least + should * 2**-8, f"gradients in {dtype} are {held}, not {should}"


OF_FP16 = pytest.mark.claim("dtype.fp16-small-models", "dtype.fp16-not-for-big-models")
OF_BF16 = pytest.mark.claim("dtype.bf16-suffices")


@pytest.mark.parametrize(
    ("seed", "hidden"),
    [(1, (32,)), *((0, hidden) for hidden in NETS.values())],
    ids=["1", *NETS],
)
@pytest.mark.parametrize("loss_factor", [1.0, 1e-8])
@pytest.mark.parametrize(
    "name", [pytest.param("fp16", marks=OF_FP16), pytest.param("bf16", marks=OF_BF16)]
)
def test_a_net_trains_in_16_bits_but_in_fp16_on_tiny_gradients(
    device, record_figure, name, loss_factor, seed, hidden
):
    train = partial(trained_net, device, loss_factor=loss_factor, seed=seed, hidden=hidden)
    _, (first, *_, fp32) = train()
    _, (low_first, *_, low) = train(dtype_of(name))
    ends = f"{first:.3f} to {fp32:.3f} in fp32, {low:.3f} in {name}"
    record_figure(f"loss {ends} [times {loss_factor}, {hidden=}]")
    assert fp32 < 0.1 * first, f"in fp32 the loss fell only from {first} to {fp32}"

    gained = (low_first - low) / (first - fp32)
    trains = name == "bf16" or loss_factor == 1
    right = 0.8 < low / fp32 < 1.25 if trains else gained < 0.1
    assert right, f"the loss went from {ends}, {gained:.0%} of the way; should train: {trains}"


@pytest.mark.claim("dtype.bf16-suffices")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("length", [1, 257, 4097, 2**13 + 1])
def test_a_tensor_of_16_bits_is_added_up_in_more_bits_and_rounded_once(device, name, length, dim):
    values = torch.randint(0, 8, (length,))
    x = values.to(device, dtype_of(name))
    got = x.sum() if dim is None else torch.stack([x, x, x], 1 - dim).sum(dim)[1]
    should = format_of(name).rounded(float(values.sum()))
    assert got.item() == should, f"{length} values of {name} add up to {got.item()}, not {should}"


@pytest.mark.claim("dtype.default-fp16-misconception")
@pytest.mark.parametrize(
    ("loss", "far"), [("mse_loss", 200.0), ("l1_loss", 4e4), ("cross_entropy", 4e4)]
)
@pytest.mark.parametrize("rows", [16, 33])
def test_with_fp16_by_default_a_loss_overflows_in_one_term(device, default_dtype, loss, far, rows):
    term = (2 * far) ** 2 if loss == "mse_loss" else 2 * far
    for dtype, should in ((torch.float32, term / rows), (torch.float16, math.inf)):
        torch.set_default_dtype(dtype)
        out = torch.zeros(rows, 2, device=device)
        out[0, 0] = -far
        out[0, 1] = far
        first = torch.zeros(rows, dtype=torch.long, device=device)
        mean = getattr(torch.nn.functional, loss)(out, first if loss == "cross_entropy" else -out)
        assert mean.dtype == dtype, f"{loss} is of {mean.dtype}, not of {dtype}, the default"
        near = mean.item() == pytest.approx(should, rel=1e-3)
        assert near, f"{loss} is {mean} in {dtype}, but should be {should}"


@pytest.mark.claim("dtype.default-fp16-misconception")
@pytest.mark.parametrize("adam", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
@pytest.mark.parametrize("log_size", [-12, -8, -7, 7])
def test_with_fp16_by_default_adams_moments_are_fp16_and_it_divides_by_0(
    device, default_dtype, adam, log_size
):
    moments = {}
    for dtype in (torch.float32, torch.float16):
        torch.set_default_dtype(dtype)
        weight = torch.nn.Linear(11, 3, device=device).weight
        weight.grad = torch.full_like(weight, 2.0**log_size)
        optimizer = adam([weight])
        optimizer.step()
        moments[dtype] = optimizer.state[weight]

    assert weight.dtype == torch.float16, f"the weight is {weight.dtype}"

    for name in ("exp_avg", "exp_avg_sq"):
        half = moments[torch.float16][name]
        assert half.dtype == torch.float16, f"{name} is {half.dtype}"
        wrong = difference(half, moments[torch.float32][name].half())
        assert not wrong, f"{name} against fp32, rounded: {wrong}"

    finite = bool(weight.isfinite().all())
    should = 0.001 * 4.0**log_size > 2**-25
    assert finite == should, f"{weight} after a gradient of 2^{log_size}"


@pytest.mark.claim("dtype.fp8-not-previous-gen", "dtype.fp8-h100-only")
def test_sheets_have_fp8_rates_from_compute_capability_8_9_on():
    having = set()
    lacking = set()
    for row in ROWS:
        if row.arch[0].isdigit():
            (having if peak_flop_per_s(row, "fp8_e4m3") else lacking).add(float(row.arch))

    from_8_9 = {arch for arch in having | lacking if arch >= 8.9}
    assert {8.9, 9.0} <= having <= from_8_9, f"{having} have fp8 rates"
    assert any(8 <= arch < 8.9 for arch in lacking), f"{lacking} have no fp8 rates"

    for row in ROWS:
        if row.arch.startswith("gfx"):
            has = any("fp8" in dtype for dtype in row.peaks)
            assert has == (row.label >= "MI300"), f"{row.label} has fp8 rates: {has}"


@pytest.mark.claim("dtype.fp8-h100-only", "dtype.fp8-not-previous-gen")
@pytest.mark.needs("cuda")
def test_fp8_is_multiplied_from_compute_capability_8_9_on(device):
    if torch.version.hip:
        pytest.skip("compute capabilities are NVIDIA's")
    capability = torch.cuda.get_device_capability(device)
    ones = torch.ones(16, 32, device=device).to(E4M3)
    product = applied(scaled_fp8_product, ones, ones, 2.0, 3.0)
    right = product is None if capability < (8, 9) else (product == 192).all()
    assert right, f"on compute capability {capability} the product is {product}"


# By what they take, of which x and y are tensors: operations that torch has for wider floats alone.
WITHOUT_FP8 = {
    "x": "neg exp log sqrt sin erf sign floor round square sum mean prod amax amin argmax sort"
    " relu sigmoid tanh gelu",
    "x y": "add sub div maximum minimum lt le gt ge pow fmod hypot mse_loss",
    "x 0": "softmax log_softmax cumsum",
}
# For fp8 too: on a CPU; elsewhere not all of them.
WITH_FP8 = {"x": "abs isnan", "x y": "mul eq ne linear"}


def named(table):
    """The names of operations in a table, each with what it takes."""
    return [(name, takes) for takes, names in table.items() for name in names.split()]


def result_of(name, takes, given):
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    return applied(function, *(given[each] for each in takes.split()))


@pytest.mark.claim("dtype.fp8-special-handling")
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=FP8)
@pytest.mark.parametrize("shape", [(2, 2), (6, 40), (33, 64)])
def test_most_operations_have_no_kernel_for_fp8_and_the_others_round(device, shape, dtype):
    # Their sums are exact.
    quarters = torch.randint(-8, 9, (2, *shape), generator=torch.Generator().manual_seed(0)) / 4
    x, y = quarters.to(with_dtype(device, dtype))
    wide = {"x": x, "y": y, "0": 0}
    narrow = {"x": x.to(dtype), "y": y.to(dtype), "0": 0}
    for name, takes in named(WITHOUT_FP8):
        should = result_of(name, takes, wide)
        assert should is not None, f"{name} fails in fp32, too"
        got = result_of(name, takes, narrow)
        assert got is None, f"{name} gives {got}, but should have no kernel"

    for name, takes in named(WITH_FP8):
        got = result_of(name, takes, narrow)
        if got is not None:
            should = result_of(name, takes, wide).to(dtype).float()
            wrong = difference(got.float(), should)
            assert not wrong, f"{name}: {wrong}"


@pytest.mark.claim("dtype.fp8-special-handling", "dtype.fp8-h100-only")
@given(exponent=st.integers(-100, 100) | st.integers(-17, 17), dtype=fp8s, seed=seeds)
@example(exponent=-6, dtype=E4M3, seed=0)
@example(exponent=-14, dtype=E5M2, seed=0)
def test_a_cpu_multiplies_fp8_at_any_magnitude_if_it_is_scaled(exponent, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    m, k, n = torch.randint(1, 41, (3,), generator=generator).tolist()
    unit = 0.5 + torch.rand((), generator=generator).item()
    x = (1 + torch.rand(m, k, generator=generator)) * 2.0**exponent
    w = 1 + torch.rand(n, k, generator=generator)
    # The binades of normal numbers, and half of eps.
    least, most, off = {E4M3: (-6, 7, 2**-4), E5M2: (-14, 14, 2**-3)}[dtype]
    # Between, a part of the values fits.
    assume(not (least - 5 < exponent < least or most < exponent < most + 3))
    for scale, fits in ((1.0, least <= exponent <= most), (unit * 2.0**exponent, True)):
        narrow = (x / scale).to(dtype)
        weight = (w / unit).to(E4M3)
        product = applied(scaled_fp8_product, narrow, weight, scale, unit)
        if product is None:
            pytest.skip("this torch multiplies no fp8 on a CPU")
        off_by = (product / (x.double() @ w.double().T) - 1).abs().max().item()
        right = off_by <= (1 + off) * (1 + 2**-4) * (1 + 2**-8) - 1
        said = f"at 2^{exponent} with {scale=} the product of {dtype} is off by"
        assert right == fits, f"{said} {off_by} [{unit=}, {seed=}]"
        if fits:
            held = (narrow.double() * scale) @ (weight.double() * unit).T
            rounding = (product / held - 1).abs().max().item()
            assert rounding <= 2**-8, f"{said} {rounding} from that of what fp8 holds [{seed=}]"


@pytest.mark.claim("dtype.fp8-special-handling", "dtype.fp8-not-previous-gen")
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=FP8)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (6, 5), (40, 300)])
def test_storing_moving_and_slicing_fp8_needs_no_recipe(device, rows, columns, dtype):
    values = cast(seeded(rows, columns), dtype, device).float()
    wide = values.to(with_dtype(device, dtype)).t()
    narrow = wide.to(dtype)
    moved = torch.cat([narrow[1:], narrow[:1]]).float()
    wrong = difference(moved, torch.cat([wide[1:], wide[:1]]))
    assert not wrong, f"fp8 transposed, sliced and joined: {wrong}"


large = st.floats(2.0**-66, 2.0**20, width=32)
finite = st.just(0.0) | large | large.map(lambda value: -value)


@pytest.mark.claim("dtype.fp4-block-scale")
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@given(values=st.lists(finite, min_size=1, max_size=70))
def test_a_block_format_stores_and_returns_what_its_specification_says(name, values):
    wrong = numbers.block_disagreement(block_format_of(name), values)
    assert not wrong, wrong


@pytest.mark.claim("dtype.fp4-block-scale-range")
def test_over_six_decades_one_scale_loses_blocks_that_block_scales_keep(record_figure):
    """Each row of `x` is a block: a coarser one would hold magnitudes decades apart."""
    x = numbers.blocks_over(decades=6)
    one_scale = x.abs().max() / 6
    grid = torch.tensor(numbers.E2M1_GRID, dtype=torch.float64)
    single = numbers.nearest_even(x / one_scale, grid) * one_scale
    zeros = (single == 0).double().mean().item()
    error = numbers.block_errors(single, x)
    record_figure(f"one scale: mean error of a block {error:.3f}, {zeros:.0%} zeros")
    assert min(error, zeros) > 0.7, f"one scale: {error=:.3f}, {zeros:.0%} zeros, not most"

    blocks = {"mxfp4": x, "nvfp4": numbers.blocks_over(decades=6, width=16)}
    for name, rows in blocks.items():
        kept = numbers.kept_by(name, rows)
        error = numbers.block_errors(kept, rows)
        record_figure(f"{name}: mean error of a block {error:.3f}")
        assert error < 0.2, f"{name}: the mean relative error of a block is {error}, not below 0.2"
        specified = numbers.blocks_quantised(name, rows.flatten().tolist()).view_as(rows)
        wrong = difference(kept, specified)
        assert not wrong, f"{name} against its specification: {wrong}"


@pytest.mark.claim("dtype.fp4-block-scale-range")
def test_nvfp4_loses_blocks_below_the_reach_of_its_scale():
    x = numbers.blocks_over(decades=12)
    scale = format_of("fp8_e4m3")
    largest = x.view(-1, 16).abs().amax(dim=1)
    below = largest / x.abs().max() <= scale.least_subnormal / 2 / scale.max
    share = below.double().mean().item()
    assert share > 0.3, f"{share:.0%} of the blocks are beyond the range of an e4m3 scale"

    def lost(name):
        return (numbers.kept_by(name, x).view(-1, 16) == 0).all(dim=1)

    wrong = difference(lost("nvfp4"), below)
    assert not wrong, f"NVFP4 should lose the blocks 2^18.8 below the largest: {wrong}"

    count = int(lost("mxfp4").sum())
    assert count == 0, f"MXFP4 loses {count} blocks, but should keep all"

    # 254 binades of scales.
    ends = torch.tensor([[6 * 2.0**127], [2.0**-128]], dtype=torch.float64).expand(2, 32)
    wrong = difference(numbers.kept_by("mxfp4", ends), ends)
    assert not wrong, f"MXFP4 at the ends of its range: {wrong}"


CAST_FROM_FP4 = """
import sys, torch
packed = torch.arange(256, dtype=torch.uint8, device=sys.argv[1]).view(torch.float4_e2m1fn_x2)
print(packed.float().cpu().numel())
"""


def values_of_a_cast_from_fp4(packed):
    """How many values a cast to fp32 gives; None where it fails.

    In a process of its own for a GPU: on CUDA (torch 2.11) the cast ends in a device-side assert,
    which takes the GPU away from the process.
    """
    if packed.device.type == "cpu":
        values = applied(torch.Tensor.float, packed)
        return None if values is None else values.numel()

    command = [sys.executable, "-c", CAST_FROM_FP4, str(packed.device)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(ran.stdout) if ran.returncode == 0 else None


@pytest.mark.claim("dtype.fp4-in-torch")
def test_torch_packs_two_fp4_values_into_each_element_of_one_byte(device, record_figure):
    dtype = getattr(torch, "float4_e2m1fn_x2", None)
    if dtype is None:
        pytest.skip("this torch has no fp4 dtype (it came with 2.8)")
    bits = torch.arange(256, dtype=torch.uint8, device=device).view(16, 16)
    packed = bits.view(dtype)
    wrong = difference(packed.t().contiguous().view(torch.uint8), bits.t())
    assert not wrong, f"bits of fp4, transposed: {wrong}"

    logical = 2 * packed.numel()
    held = packed.untyped_storage().nbytes()
    formula = logical * element_bits("fp4_e2m1") // 8
    assert held == formula == 256, f"{logical} fp4 values in {held} B, not in 256 ({formula=})"

    values = values_of_a_cast_from_fp4(packed)
    record_figure(f"a cast of {logical} values gives {values or 'none'}")
    assert values in (None, logical), f"a cast of {logical} fp4 values gives {values}"

    cast_to = applied(torch.ones(16).to, dtype)
    assert cast_to is None, f"a CPU casts to fp4: {cast_to}"
