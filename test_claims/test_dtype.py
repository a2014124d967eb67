"""Claims about number formats: layout, range, rounding, underflow and overflow, and the needs of small formats."""

import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from accounting.devices import ROWS, peak_flop_per_s
from accounting.formats import BLOCK_FORMATS, FORMATS, block_format_of, element_bits, format_of
from test_claims.oracles import numbers
from test_claims.oracles.kernels import has_bf16_unit, scaled_fp8_product
from test_claims.oracles.low_precision import E4M3, E5M2, NETS, trained_net
from test_claims.oracles.numbers import cast, cast_of, disagreement, fields_counted, values_of_patterns
from test_claims.oracles.tensors import difference
from test_claims.strategies import in_fp64, seeds, sizes, with_dtype

FP8 = ("fp8_e4m3", "fp8_e5m2")


def dtype_of(name: str) -> torch.dtype:
    return getattr(torch, FORMATS[name].torch_name)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=st.integers(0, 2**32 - 1))
def test_fp32_reads_a_pattern_as_1_sign_8_exponent_and_23_fraction_bits(pattern):
    fp32 = format_of("fp32")
    read = values_of_patterns(torch.float32, [pattern], numbers.CPU).item()
    decoded = fp32.decode(pattern)
    assert (fp32.exponent_bits, fp32.fraction_bits) == (8, 23)
    same = decoded == read or (math.isnan(decoded) and math.isnan(read))
    assert same, f"decode={decoded!r}, but torch reads {read!r} [pattern={pattern:#010x}]"


@pytest.mark.claim("dtype.fp32-layout")
@given(pattern=st.integers(0, 0x7F7FFFFE), eighths=st.integers(0, 8), sign=st.sampled_from([1, -1]))
@example(pattern=0x3F800000, eighths=4, sign=1)  # 1 + 2^-24: a tie, whose even neighbour is below
def test_fp32_rounds_what_lies_between_two_of_its_values_to_the_nearer_or_the_even_one(pattern, eighths, sign):
    below, above = values_of_patterns(torch.float32, [pattern, pattern + 1], numbers.CPU).tolist()
    value = sign * (below + (above - below) / 8 * eighths)
    rounded, cast_value = format_of("fp32").rounded(value), torch.tensor(value, dtype=torch.float64).float().item()
    assert rounded == cast_value, f"rounded={rounded!r}, but torch casts to {cast_value!r} [{value=!r}]"


LAYOUT_CLAIMS = {
    "fp16": ["dtype.fp16-layout", "dtype.fp16-underflow-threshold", "dtype.fp16-rounds-down"],
    "bf16": ["dtype.bf16-layout"],
    "fp8_e4m3": ["dtype.e4m3-layout", "dtype.fp8-rounding"],
    "fp8_e5m2": ["dtype.e5m2-layout", "dtype.fp8-rounding"],
}
FIELDS = {"fp16": (5, 10), "bf16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}  # exponent and fraction bits


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.claim(c[0])) for n, c in LAYOUT_CLAIMS.items()])
def test_every_pattern_reads_as_the_fields_of_the_format_say(name, device):
    row, values = format_of(name), values_of_patterns(dtype_of(name), None, device)
    wrong = numbers.decode_disagreement(row, device) or numbers.published_disagreement(row)
    assert wrong is None, wrong
    got = fields_counted(values, row.bits)
    assert got == FIELDS[name] == (row.exponent_bits, row.fraction_bits), f"{got}, but should be {FIELDS[name]} bits"
    finite = values[values.isfinite()]
    ends = (finite.max().item(), torch.finfo(dtype_of(name)).smallest_normal, finite[finite > 0].min().item())
    assert ends == (row.max, row.least_normal, row.least_subnormal), f"{name} reaches {ends}"


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.claim(*c)) for n, c in LAYOUT_CLAIMS.items()])
def test_a_cast_rounds_every_value_every_midpoint_and_their_neighbours_to_nearest_even(name, device):
    wrong = numbers.rounding_disagreement(format_of(name), device)
    assert wrong is None, wrong


@pytest.mark.claim("dtype.bf16-33bit-exponent", "dtype.bf16-range")
def test_bf16_has_an_8_bit_exponent_and_no_room_for_33_bits(device):
    values = values_of_patterns(torch.bfloat16, None, device)
    normals = values[(values >= torch.finfo(torch.bfloat16).smallest_normal) & values.isfinite()]
    binades = normals.frexp().exponent.unique().numel()
    assert 8 * torch.bfloat16.itemsize < 1 + 33, "a sign and a 33-bit exponent would fit into bf16"
    assert format_of("bf16").exponent_bits == 8
    assert binades == 2**8 - 2, f"bf16 has {binades} binades, but should have all of 8 bits but zeros and ones"


@pytest.mark.claim("dtype.bf16-reallocates")
def test_bf16_takes_3_bits_from_the_fraction_of_fp16_and_gives_them_to_the_exponent(device):
    fp16, bf16 = (fields_counted(values_of_patterns(d, None, device), 16) for d in (torch.float16, torch.bfloat16))
    assert (fp16, bf16) == ((5, 10), (8, 7)), f"exponent and fraction bits are {fp16} in fp16 and {bf16} in bf16"
    assert format_of("bf16").max > format_of("fp16").max


@pytest.mark.claim("dtype.finfo")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.claim("dtype.fp4-block-scale")] * (n == "fp4_e2m1")) for n in FORMATS]
)
def test_torch_and_the_specifications_agree_with_every_row_of_the_format_table(name, device):
    wrong = disagreement(FORMATS[name], device)
    assert wrong is None, wrong


@pytest.mark.claim("dtype.finfo")
def test_finfo_does_not_tell_where_underflow_begins(device):
    fp16 = format_of("fp16")
    below = torch.finfo(torch.float16).smallest_normal / 1024
    assert cast_of(below, torch.float16, device) == below == fp16.least_subnormal, f"fp16 lost {below}"
    with pytest.raises(TypeError):
        torch.finfo(torch.int8)


@pytest.mark.claim("dtype.fp8-tradeoff")
def test_e4m3_has_half_the_rounding_error_of_e5m2_and_half_its_octaves(device, record_figure):
    values = 1 + torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    errors = [((cast(values, d, device) - values) / values).abs().max().item() for d in (E4M3, E5M2)]
    tables = (values_of_patterns(dtype, None, device) for dtype in (E4M3, E5M2))
    positive = (table[(table > 0) & table.isfinite()] for table in tables)
    octaves = [math.log2(table.max() / table.min()) for table in positive]
    record_figure(f"largest relative errors {errors[0]:.4f}, {errors[1]:.4f}; octaves {octaves}")
    for name, error in zip(FP8, errors, strict=True):
        eps = format_of(name).eps
        # A tie at 1 + eps/2 is the worst that can happen: eps/2 / (1 + eps/2).
        assert 0.9 < error / (eps / (2 + eps)) <= 1, f"{name} errs by {error}, not by up to {eps / (2 + eps)}"
    formula = [math.log2(format_of(name).max / format_of(name).least_subnormal) for name in FP8]
    assert octaves == pytest.approx(formula), f"octaves={octaves}, but should be {formula}"


@pytest.mark.claim("dtype.fp8-overflow")
@pytest.mark.parametrize(
    ("dtype", "last", "policies"), [(E4M3, 464.0, {"saturate", "nan"}), (E5M2, 61439.996, {"inf", "saturate"})], ids=FP8
)
def test_what_rounds_beyond_the_fp8_maximum_becomes_one_thing_everywhere(dtype, last, policies, device, record_figure):
    policy, row = numbers.overflow_policy(dtype, device), format_of("fp8_e4m3" if dtype == E4M3 else "fp8_e5m2")
    record_figure(f"{row.name} overflow: {policy}, infinity: {cast_of(math.inf, dtype, device)}")
    assert policy in policies, f"{row.name} overflows to {policy}, but should overflow to one of {policies}"
    inside = cast(torch.tensor([row.max + 1, last, -last]), dtype, device).tolist()
    assert inside == [row.max, row.max, -row.max], f"casts below half a spacing past the maximum gave {inside}"
    beyond = torch.nextafter(torch.tensor(last), torch.tensor(math.inf)) * torch.tensor([1.0, -1.0, 2.0, 1000.0])
    ours = torch.tensor([row.rounded(x, overflow=policy) for x in beyond.tolist()], dtype=torch.float64)
    wrong = numbers.difference(row.name, ours, cast(beyond, dtype, device), lambda i: f"of {beyond[i].item()!r}")
    assert wrong is None, wrong
    assert cast_of(math.inf, dtype, device) in (math.inf, row.max) or math.isnan(cast_of(math.inf, dtype, device))
    assert math.isnan(cast_of(math.nan, dtype, device))


CASTS = {
    "dtype.fp16-underflow-1e-8": [("fp16", 1e-8, 0.0)],
    "dtype.fp16-underflow-threshold": [("fp16", 2**-25, 0.0), ("fp16", 2**-25 * (1 + 2**-10), 2**-24)],
    "dtype.fp16-rounds-down": [("fp16", 2.98e-8, 0.0), ("fp16", 3e-8, 2**-24), ("fp16", -3e-8, -(2**-24))],
    "dtype.bf16-keeps-1e-8": [("bf16", 1e-8, 1.0011717677116394e-08)],
    "dtype.bf16-range": [("bf16", 2.0**-133, 2.0**-133), ("bf16", 2.0**-134, 0.0), ("fp32", 2.0**-149, 2.0**-149)],
}


@pytest.mark.parametrize(
    ("name", "value", "should"),
    [
        pytest.param(*row, marks=pytest.mark.claim(claim), id=f"{row[0]}({row[1]:.6g})")
        for claim, rows in CASTS.items()
        for row in rows
    ],
)
def test_a_cast_and_the_format_make_this_of_the_value(name, value, should, device):
    got, formula = cast_of(value, dtype_of(name), device), format_of(name).rounded(value)
    assert got == formula == should, f"{name}({value!r}) is {got!r}, {formula=}, but both should be {should!r}"


@pytest.mark.claim("dtype.bf16-resolution")
@given(fraction=st.integers(0, 2**23 - 1), exponent=st.integers(-14, 14), sign=st.sampled_from([1, -1]))
def test_of_23_fraction_bits_bf16_keeps_7_and_fp16_10_rounded_to_the_nearest(device, fraction, exponent, sign):
    value = sign * math.ldexp(2**23 + fraction, exponent - 23)
    for name, bits in (("bf16", 7), ("fp16", 10), ("fp32", 23)):
        got, spacing = cast_of(value, dtype_of(name), device), 2.0 ** (exponent - bits)
        should, formula = round(value / spacing) * spacing, format_of(name).rounded(value)
        assert got == formula == should, f"{name} makes {got!r} of {value!r}, {formula=}, not {should!r} [{bits=}]"


@pytest.mark.claim("dtype.bf16-range")
@given(value=st.floats(2.0**-126, 2.0**127 * (2 - 2**-7), width=32), sign=st.sampled_from([1, -1]))
@example(value=2.0**-126, sign=1)
@example(value=2.0**127 * (2 - 2**-7), sign=-1)
def test_normal_numbers_of_fp32_stay_normal_in_bf16_but_the_last_four_thousandths(device, value, sign):
    bf16, fp32 = format_of("bf16"), format_of("fp32")
    off = abs(cast_of(sign * value, torch.bfloat16, device) / (sign * value) - 1)
    assert off <= 2**-8, f"bf16 is off by {off} at {sign * value!r}, more than half of its spacing"
    ratio = torch.finfo(torch.bfloat16).max / torch.finfo(torch.float32).max
    assert ratio == bf16.max / fp32.max == pytest.approx((2 - 2**-7) / (2 - 2**-23)), f"ratio of maxima={ratio}"
    assert bf16.least_normal == fp32.least_normal


@pytest.mark.claim("dtype.fp32-full-precision")
def test_fp64_is_2_to_the_29_times_finer_than_fp32_and_counts_where_fp32_stops():
    finer = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
    assert finer == 2**29 == format_of("fp32").eps / format_of("fp64").eps, f"ratio of eps={finer}, but should be 2**29"
    beyond = 2**24 + 1
    casts = [torch.tensor(beyond, dtype=dtype).item() for dtype in (torch.float32, torch.float64)]
    assert casts == [2**24, beyond], f"fp32 and fp64 cast 2**24 + 1 to {casts}"
    # "Full" against the 16-bit formats, which fp32 contains.
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        back, patterns = (of.view(torch.int16)[~half.isnan()] for of in (half.float().to(dtype), half))
        wrong = difference(back, patterns)
        assert not wrong, f"patterns of {dtype} through fp32 and back: {wrong}"


@pytest.mark.claim("dtype.lower-is-less-accurate")
@given(m=sizes(32, 200), k=sizes(32, 200), n=sizes(32, 200), seed=seeds)
def test_a_linear_layer_errs_by_a_third_of_eps_and_takes_its_bits_in_every_format(device, m, k, n, seed):
    x, w = seeded(m, k, seed=seed), seeded(k, n, seed=seed + 1) / math.sqrt(k)
    exact, last = x.double() @ w.double(), 0.0
    for name, nbytes, eps in (("fp16", 2, 2**-10), ("bf16", 2, 2**-7), ("fp8_e4m3", 1, 2**-3), ("fp8_e5m2", 1, 2**-2)):
        product = cast(x, dtype_of(name), device) @ cast(w, dtype_of(name), device)
        error, taken = ((product - exact).norm() / exact.norm()).item(), w.to(dtype_of(name)).nbytes
        # Two factors, each off by a uniform ±eps/2 at the low end of a binade and half of that at its high end.
        assert 0.25 < error / eps < 0.37, f"{name} errs by {error / eps:.2f} eps, not 0.3 [{m=}, {k=}, {n=}, {seed=}]"
        assert last < error, f"{name} errs by {error}, but should by more than the finer format before: {last}"
        assert taken == nbytes * k * n == element_bits(name) // 8 * k * n, f"{name} takes {taken} bytes [{k=}, {n=}]"
        last = error


@pytest.mark.claim("dtype.lower-is-less-accurate")
@given(exponent=st.integers(-155, 127) | st.integers(-28, 20))
def test_the_fewer_exponent_bits_a_format_has_the_sooner_a_value_leaves_it(device, exponent):
    value = 1.5 * 2.0**exponent  # three quarters of the least subnormal, at least, round up to it
    for name, bits, fraction in (("fp32", 8, 23), *((name, *FIELDS[name]) for name in FIELDS)):
        bias, got = 2 ** (bits - 1) - 1, cast_of(value, dtype_of(name), device)
        fits = -bias - fraction <= exponent <= bias + (name == "fp8_e4m3")  # whose highest exponent has numbers, too
        assert (abs(got / value - 1) < 0.34) == fits, f"{name} makes {got} of 1.5 * 2^{exponent}, which {fits=}"


@pytest.mark.claim("dtype.fp16-overflow", "dtype.lower-is-less-accurate")
@given(value=st.floats(2**-14, 2**17, width=32) | st.floats(2**16, 2.0**127, width=32), sign=st.sampled_from([1, -1]))
@example(value=65504.0, sign=1)
@example(value=65520 - 2**-8, sign=1)  # the float32 below it
@example(value=65520.0, sign=-1)
def test_fp16_is_nearer_than_bf16_below_65520_and_infinite_from_there_on(device, value, sign):
    fp16, bf16 = (cast_of(sign * value, d, device) for d in (torch.float16, torch.bfloat16))
    spacing = 2.0 ** (math.frexp(value)[1] - 11)
    should = sign * (round(value / spacing) * spacing if value < 65520 else math.inf)
    assert fp16 == should, f"fp16 makes {fp16} of {sign * value!r}, but should make {should}"
    nearer = abs(fp16 - sign * value) <= abs(bf16 - sign * value)
    assert nearer == (value < 65520) or fp16 == bf16, f"of {sign * value!r} fp16 makes {fp16} and bf16 {bf16}"


@pytest.mark.claim("dtype.lower-is-faster")
@pytest.mark.parametrize("times", [2, 3, 4])
def test_a_large_bf16_matmul_is_faster_than_fp32_where_there_is_a_bf16_unit(device, isa, speed, times):
    if not has_bf16_unit(device, isa):
        pytest.skip(f"torch reports no bf16 unit on this device ({', '.join(isa) or device.type})")
    n = times * (256 if device.type == "cpu" else 2048)
    wide = torch.randn(n, n, device=device)
    narrow = wide.bfloat16()
    speed.assert_slower(lambda: wide @ wide, lambda: narrow @ narrow, f"{n}^3 matmul in fp32 against bf16")


@pytest.mark.claim("dtype.lower-is-faster")
@pytest.mark.needs("cpu")  # on some cards both have as many units
@pytest.mark.parametrize("n", [256, 384, 512])
def test_a_large_fp32_matmul_is_faster_than_fp64(speed, n):
    wide = torch.randn(n, n, dtype=torch.float64)
    narrow = wide.float()
    speed.assert_slower(lambda: wide @ wide, lambda: narrow @ narrow, f"{n}^3 matmul in fp64 against fp32")


@pytest.mark.claim("dtype.lower-is-faster")
@pytest.mark.needs("cpu")  # elsewhere torch multiplies no fp8 without a unit for it
@pytest.mark.parametrize("n", [64, 128, 192])
def test_an_fp8_matmul_without_an_fp8_unit_is_slower_than_fp32(speed, isa, n):
    if any("fp8" in feature or "avx10" in feature for feature in isa):
        pytest.skip("this CPU has an fp8 unit")
    wide = torch.randn(n, n)
    narrow = wide.to(E4M3)
    try:
        narrow @ narrow
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"this torch multiplies no fp8 on a CPU: {error}")
    what = f"{n}^3 matmul on one CPU core in fp8 against fp32"
    speed.assert_slower(lambda: narrow @ narrow, lambda: wide @ wide, what, pairs=15)


@pytest.mark.claim("dtype.bf16-sweet-spot", "amp.gradscaler", "loop.mixed-two-layer")
@given(log_size=st.floats(-11, -4), seed=seeds)
@example(log_size=-7.0, seed=0)  # a quarter of them
def test_fp16_flushes_the_gradients_within_2_to_the_minus_25_and_bf16_none(device, log_size, seed):
    gradients = seeded(10_000, seed=seed) * 10**log_size
    gradients = gradients[gradients != 0]  # which randn draws now and then
    fp16, bf16 = ((cast(gradients, d, device) == 0).double().mean().item() for d in (torch.float16, torch.bfloat16))
    should = math.erf(2**-25 / 10**log_size / math.sqrt(2))  # of a normal within ±2^-25
    off = 7 * math.sqrt(should * (1 - should) / 10_000) + 2e-3  # seven deviations and, of rare ones, a few
    assert abs(fp16 - should) < off, f"fp16 flushes {fp16:.2%}, but should {should:.2%} [{log_size=}, {seed=}]"
    assert bf16 == 0, f"bf16 flushes {bf16:.2%}, but should flush none [{log_size=}, {seed=}]"


@pytest.mark.claim("dtype.fp16-not-for-big-models", "amp.gradscaler")
def test_scaling_the_loss_repairs_the_underflow_of_fp16_gradients_and_not_the_overflow_of_activations(device):
    x = (seeded(20_000) * 1e-7).to(device)
    flushed = {}
    for scale in (1.0, 2.0**16):
        weight = torch.ones(20_000, dtype=torch.float16, device=device, requires_grad=True)
        (weight.float() * x * scale).sum().backward()  # d loss / d weight = x, stored in fp16
        flushed[scale] = in_fp64(weight.grad == 0).mean().item()
    assert flushed[1.0] > 0.2, f"{flushed[1.0]:.1%} of the unscaled gradients are flushed, but should be a quarter"
    assert flushed[2.0**16] < 1e-3, f"{flushed[2.0**16]:.1%} of the scaled gradients are flushed, but should be none"
    activation = torch.full((4,), 300.0, dtype=torch.float16, device=device)
    squares = [activation.square()[0].item(), activation.bfloat16().square()[0].item()]
    assert squares == [math.inf, 90112.0], f"300^2 is {squares} in fp16 and bf16, but should be infinite and 90112"


@pytest.mark.claim("dtype.fp16-not-for-big-models", "dtype.fp16-small-models")
@given(words=sizes(2, 4000), log_tokens=st.integers(0, 20), log_scale=st.sampled_from([0, 16]))
@example(words=256, log_tokens=12, log_scale=0)  # bytes in batches of 4096: far from it
@example(words=50_257, log_tokens=10, log_scale=0)  # GPT-2, 1024 tokens
@example(words=50_257, log_tokens=10, log_scale=16)
def test_fp16_flushes_gradients_of_logits_from_2_to_the_25_words_by_tokens(device, words, log_tokens, log_scale):
    """Before training every word has a chance of 1/V: the mean loss of T tokens gives each wrong one 1/(V·T)."""
    assume(abs(math.log2(words) + log_tokens - log_scale - 25) > 1e-3)
    logits = torch.zeros(1, words, dtype=torch.float16, device=device, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.zeros(1, dtype=torch.long, device=device))
    (loss * 2.0 ** (log_scale - log_tokens)).backward()  # one token's share of the mean, scaled
    flushed = int((logits.grad == 0).sum())
    should = words - 1 if math.log2(words) + log_tokens - log_scale > 25 else 0
    said = f"[{words=}, 2^{log_tokens} tokens, scale 2^{log_scale}]"
    assert flushed == should, f"{flushed} of {words} gradients are 0 in fp16, but should be {should} {said}"


@pytest.mark.claim("dtype.fp16-small-models", "dtype.fp16-not-for-big-models")
@pytest.mark.parametrize(("loss_factor", "trains"), [(1.0, True), (1e-8, False)])
def test_a_small_net_trains_in_fp16_unscaled_unless_its_gradients_are_tiny(device, record_figure, loss_factor, trains):
    for hidden in ((32,), *NETS.values()):
        (first, *_, fp32), (fp16_first, *_, fp16) = (
            trained_net(device, dtype, loss_factor=loss_factor, hidden=hidden)[1] for dtype in (None, torch.float16)
        )
        said = f"[times {loss_factor}, {hidden=}]"
        record_figure(f"loss {first:.3f} to {fp32:.3f} in fp32, {fp16:.3f} in fp16 {said}")
        assert fp32 < 0.1 * first, f"in fp32 the loss fell only from {first} to {fp32} {said}"
        gained, as_low = (fp16_first - fp16) / (first - fp32), 0.8 < fp16 / fp32 < 1.25
        right = as_low if trains else gained < 0.1
        assert right, f"fp16 ends at {fp16}, {gained:.0%} of the way, fp32 at {fp32}; should train: {trains} {said}"


@pytest.mark.claim("dtype.bf16-suffices")
@pytest.mark.parametrize(
    ("seed", "hidden"), [(1, (32,)), (2, (32,)), *((0, hidden) for hidden in NETS.values())], ids=["1", "2", *NETS]
)
def test_a_net_trained_with_bf16_products_ends_where_one_of_fp32_does(device, record_figure, seed, hidden):
    fp32, bf16 = (trained_net(device, of, seed=seed, hidden=hidden)[1] for of in (None, torch.bfloat16))
    record_figure(f"loss {fp32[0]:.3f} to {fp32[-1]:.3f} in fp32, {bf16[-1]:.3f} with bf16 products")
    assert fp32[-1] < 0.1 * fp32[0], f"in fp32 the loss fell only from {fp32[0]} to {fp32[-1]} [{seed=}]"
    assert 0.8 < bf16[-1] / fp32[-1] < 1.25, f"in bf16 it ends at {bf16[-1]}, but should near {fp32[-1]} [{seed=}]"


@pytest.mark.claim("dtype.bf16-suffices")
@given(name=st.sampled_from(["bf16", "fp16"]), length=sizes(most=6000), dim=st.sampled_from([None, 0, 1]))
def test_a_whole_tensor_of_16_bits_is_added_up_in_more_bits_and_rounded_once(device, name, length, dim):
    values = torch.randint(0, 8, (length,))
    x = values.to(device, dtype_of(name))
    got = x.sum() if dim is None else torch.stack([x, x, x], 1 - dim).sum(dim)[1]
    should = format_of(name).rounded(float(sum(values.tolist())))
    assert got.item() == should, f"{length} values of {name} add up to {got.item()}, but should be {should} [{dim=}]"


@pytest.mark.claim("dtype.default-fp16-misconception")
@pytest.mark.parametrize("adam", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
@pytest.mark.parametrize(("width", "classes"), [(1, 2), (8, 4), (33, 100)])
def test_with_fp16_by_default_losses_and_adam_moments_are_fp16_too(device, default_dtype, adam, width, classes):
    torch.set_default_dtype(torch.float16)
    model = torch.nn.Linear(width, classes, device=device)
    optimizer = adam(model.parameters())
    out = model(torch.randn(16, width, device=device))
    of_classes = torch.nn.functional.cross_entropy(out, torch.zeros(16, dtype=torch.long, device=device))
    losses = [getattr(torch.nn.functional, name)(out, torch.zeros_like(out)) for name in ("mse_loss", "l1_loss")]
    losses.append(of_classes)
    sum(losses).backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    found = {tensor.dtype for tensor in (*losses, model.weight, state["exp_avg"], state["exp_avg_sq"])}
    assert found == {torch.float16}, f"losses, weights and moments are {found}, but should all be fp16, none fp32"


@pytest.mark.claim("dtype.fp8-h100-only")
def test_a_cpu_multiplies_fp8_too():
    try:
        product = scaled_fp8_product(numbers.CPU)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"this torch has no fp8 matmul for the CPU: {error}")
    assert (product == 192).all(), f"the scaled fp8 product on a CPU is {product[0, 0]}, but should be 192"


@pytest.mark.claim("dtype.fp8-not-previous-gen", "dtype.fp8-h100-only")
def test_the_vendors_sheets_have_fp8_rates_from_compute_capability_8_9_on_and_none_below():
    nvidia = [row for row in ROWS if row.arch[0].isdigit()]
    sheets = {row.label: (float(row.arch), peak_flop_per_s(row, "fp8_e4m3")) for row in nvidia}
    wrong = {label: rate for label, (capability, rate) in sheets.items() if rate and capability < 8.9}
    assert not wrong, f"cards below compute capability 8.9 have fp8 rates: {wrong}"
    for least, most in ((8.0, 8.7), (8.9, 8.9), (9.0, 9.0)):
        rates = [rate is not None for capability, rate in sheets.values() if least <= capability <= most]
        assert any(rates) == (least >= 8.9), f"{sum(rates)} of {len(rates)} cards of {least} to {most} have fp8 rates"
    amds = {row.label: any("fp8" in of for of in row.peaks) for row in ROWS if row.arch.startswith("gfx")}
    wrong = [label for label, has in amds.items() if has != (label >= "MI300")]
    assert not wrong, f"of AMD's cards those from the MI300 on should have fp8 rates, unlike {wrong} of {amds}"


@pytest.mark.claim("dtype.fp8-h100-only", "dtype.fp8-not-previous-gen")
@pytest.mark.needs("cuda")
def test_fp8_is_multiplied_from_compute_capability_8_9_on_and_rejected_below(device):  # not run: no GPU at hand
    if torch.version.hip:
        pytest.skip("compute capabilities are NVIDIA's")
    capability = torch.cuda.get_device_capability(device)
    if capability >= (8, 9):
        assert (scaled_fp8_product(device) == 192).all(), f"fp8 fails on compute capability {capability}"
    else:
        with pytest.raises((RuntimeError, NotImplementedError)):
            scaled_fp8_product(device)


@pytest.mark.claim("dtype.fp8-special-handling")
@pytest.mark.parametrize("operation", [lambda x: x + x, torch.exp, torch.sum, torch.tanh, torch.nn.functional.gelu])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=FP8)
def test_arithmetic_that_is_no_product_has_no_kernel_for_fp8(device, operation, dtype):
    operand = torch.ones(4, 4, device=with_dtype(device, dtype)).to(dtype)
    with pytest.raises((NotImplementedError, RuntimeError)):
        operation(operand)


@pytest.mark.claim("dtype.fp8-special-handling")
@given(exponent=st.integers(-100, 100) | st.integers(-17, 17), dtype=st.sampled_from([E4M3, E5M2]), seed=seeds)
@example(exponent=-6, dtype=E4M3, seed=0)
@example(exponent=-14, dtype=E5M2, seed=0)
def test_fp8_keeps_magnitudes_beyond_its_range_with_a_scale_alone(device, exponent, dtype, seed):
    values = (1 + torch.rand(64, generator=torch.Generator().manual_seed(seed))) * 2.0**exponent
    least, most, off = ((-6, 7, 2**-4), (-14, 14, 2**-3))[dtype == E5M2]  # the binades of normal numbers
    assume(exponent != most + 1)  # of which a part fits
    for scale, fits in ((0, least <= exponent <= most), (-exponent, True)):
        error = (cast(values * 2.0**scale, dtype, device) / 2.0**scale / values - 1).abs().max().item()
        assert (error <= off) == fits, f"{dtype} is off by {error} at 2^{exponent} times 2^{scale} [{seed=}]"


@pytest.mark.claim("dtype.fp8-special-handling", "dtype.fp8-not-previous-gen")
@given(seed=seeds, rows=sizes(), columns=sizes(), dtype=st.sampled_from([E4M3, E5M2]))
def test_storing_moving_and_slicing_fp8_needs_no_recipe(device, seed, rows, columns, dtype):
    wide = cast(seeded(rows, columns, seed=seed), dtype, device).float().to(with_dtype(device, dtype))
    moved, should = (torch.cat([x.t()[1:], x.t()[:1]]) for x in (wide.to(dtype), wide))
    wrong = difference(moved.float(), should)
    assert not wrong, f"fp8 values transposed, sliced and joined: {wrong} [{seed=}]"


finite = st.floats(-1e6, 1e6, width=32, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-20)


@pytest.mark.claim("dtype.fp4-block-scale")
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@given(values=st.lists(finite, min_size=1, max_size=70))
def test_a_block_format_stores_and_returns_what_its_specification_says(name, values):
    wrong = numbers.block_disagreement(block_format_of(name), values)
    assert wrong is None, wrong


@pytest.mark.claim("dtype.fp4-block-scale-range")
def test_over_six_decades_one_scale_per_tensor_loses_most_blocks_and_one_per_block_keeps_them(record_figure):
    """Each row of `x` is a block: a coarser one would hold magnitudes decades apart."""
    x = numbers.blocks_over(decades=6)
    one_scale = x.abs().max() / 6
    single = numbers.nearest_even(x / one_scale, torch.tensor(numbers.E2M1_GRID, dtype=torch.float64)) * one_scale
    zeros = (single == 0).double().mean().item()
    blocks = {"mxfp4": x, "nvfp4": numbers.blocks_over(decades=6, width=16)}
    kept = {name: numbers.kept_by(name, rows) for name, rows in blocks.items()}
    errors = {name: numbers.block_errors(kept[name], rows) for name, rows in blocks.items()}
    error = numbers.block_errors(single, x)
    blocked = ", ".join(f"{name} {of_blocks:.3f}" for name, of_blocks in errors.items())
    record_figure(f"mean error of a block: one scale {error:.3f} ({zeros:.0%} zeros), {blocked}")
    assert min(error, zeros) > 0.7, f"one scale: {error=:.3f}, {zeros:.0%} zeros, but should lose most of the tensor"
    assert max(errors.values()) < 0.2, f"mean relative error of a block: {errors}, but should be below 0.2"
    for name, rows in blocks.items():
        specified = numbers.blocks_quantised(name, rows.flatten().tolist()).view_as(rows)
        assert not (wrong := difference(kept[name], specified)), f"{name} against its specification: {wrong}"


@pytest.mark.claim("dtype.fp4-block-scale-range")
def test_nvfp4_loses_blocks_further_below_the_largest_than_its_scale_reaches_and_mxfp4_does_not():
    x = numbers.blocks_over(decades=12)
    scale = format_of("fp8_e4m3")
    below = x.view(-1, 16).abs().amax(dim=1) / x.abs().max() <= scale.least_subnormal / 2 / scale.max
    lost = {name: (numbers.kept_by(name, x).view(-1, 16) == 0).all(dim=1) for name in ("mxfp4", "nvfp4")}
    assert lost["nvfp4"].tolist() == below.tolist(), "NVFP4 should lose the blocks 2^18.8 below the largest"
    assert below.double().mean() > 0.3, "the blocks should reach beyond the range of an e4m3 scale"
    assert not lost["mxfp4"].any(), f"MXFP4 loses {int(lost['mxfp4'].sum())} blocks, but should keep all"
    ends = torch.tensor([[6 * 2.0**127], [2.0**-128]], dtype=torch.float64).expand(2, 32)  # 254 binades of scales
    assert not (wrong := difference(numbers.kept_by("mxfp4", ends), ends)), f"MXFP4 at the ends of its range: {wrong}"


@pytest.mark.claim("dtype.fp4-in-torch")
def test_torch_packs_two_fp4_values_into_each_element_of_one_byte(device):
    dtype = getattr(torch, "float4_e2m1fn_x2", None)
    if dtype is None:
        pytest.skip("this torch has no fp4 dtype (it came with 2.8)")
    packed = torch.arange(16, dtype=torch.uint8, device=device).view(dtype)
    assert packed.view(torch.uint8).tolist() == list(range(16)), "fp4 does not keep its bits"
    held, logical = packed.untyped_storage().nbytes(), 2 * packed.numel()
    assert held == logical * element_bits("fp4_e2m1") // 8 == 16, f"{logical} fp4 values in {held} B, not in 16"
    try:
        cast_to = packed.float().numel()
    except (NotImplementedError, RuntimeError):
        return
    assert device.type != "cpu", "a CPU casts fp4, but should have no cast"
    assert cast_to == logical, f"a cast of {logical} fp4 values gives {cast_to}"
