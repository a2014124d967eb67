"""Claims about formats of 8 and 4 bits: range, overflow, scales, and torch's operations."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from accounting.devices import ROWS, peak_flop_per_s
from accounting.formats import BLOCK_FORMATS, block_format_of, element_bits, format_of
from test_claims.oracles import numbers
from test_claims.oracles.kernels import applied, scaled_fp8_product
from test_claims.oracles.low_precision import E4M3, E5M2
from test_claims.oracles.messages import agree, at_least, at_most, between, close, equal
from test_claims.oracles.mixed_precision import seeded
from test_claims.oracles.numbers import cast, cast_of, values_of_patterns
from test_claims.strategies import TORCH_DTYPES, fewer, seeds, sizes, with_dtype

FP8 = ("fp8_e4m3", "fp8_e5m2")
fp8s = st.sampled_from([E4M3, E5M2])


@pytest.mark.claim("dtype.fp8-tradeoff")
@pytest.mark.parametrize("exponent", [-6, 0, 7])
@pytest.mark.parametrize("sign", [1, -1])
def test_e4m3_has_half_the_rounding_error_of_e5m2_and_half_its_octaves(device, exponent, sign):
    drawn = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    values = (1 + drawn) * sign * 2.0**exponent
    errors = {}
    octaves = {}
    for name in FP8:
        row = format_of(name)
        dtype = TORCH_DTYPES[name]
        off = cast(values, dtype, device) / values - 1
        error = off.abs().max().item()
        # A tie at 1 + eps/2 errs most.
        most = row.eps / (2 + row.eps)
        between(error / most, 0.9, 1, "the largest error over half a spacing", name=name)
        errors[name] = error
        table = values_of_patterns(dtype, None, device)
        largest = table[table.isfinite()].max()
        least = table[table > 0].min()
        octaves[name] = math.log2(largest / least)
        close(octaves[name], math.log2(row.max / row.least_subnormal), "octaves", name=name)

    for what in (errors, octaves):
        at_most(what["fp8_e4m3"], 0.6 * what["fp8_e5m2"], "e4m3's error, and its octaves")


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
    equal(inside, [row.max, row.max, -row.max], "casts below half a spacing past the maximum")

    first_beyond = torch.nextafter(torch.tensor(last), torch.tensor(math.inf))
    thirds_of_octaves = torch.arange(180) / 3
    factors = 2.0**thirds_of_octaves
    beyond = first_beyond * torch.cat([factors, -factors])
    rounded = [row.rounded(x, overflow=policy) for x in beyond.tolist()]
    ours = torch.tensor(rounded, dtype=torch.float64)
    numbers.equal_numbers(ours, cast(beyond, dtype, device), row.name, beyond)

    for source in (torch.float16, torch.bfloat16, torch.float64):
        given = beyond.to(source)
        got = cast(given, dtype, device)
        should = cast(given.float(), dtype, device)
        numbers.equal_numbers(got, should, f"{source} cast to {row.name}", given)

    assert math.isnan(cast_of(math.nan, dtype, device))


@pytest.mark.claim("dtype.fp8-not-previous-gen", "dtype.fp8-h100-only")
def test_sheets_have_fp8_rates_from_compute_capability_8_9_on():
    having = set()
    lacking = set()
    for row in ROWS:
        if not row.arch[0].isdigit():
            continue
        group = having if peak_flop_per_s(row, "fp8_e4m3") else lacking
        group.add(float(row.arch))

    from_8_9 = {arch for arch in having | lacking if arch >= 8.9}
    assert {8.9, 9.0} <= having <= from_8_9, f"{having} have fp8 rates"
    assert any(8 <= arch < 8.9 for arch in lacking), f"{lacking} have no fp8 rates"

    for row in ROWS:
        if row.arch.startswith("gfx"):
            has = any("fp8" in dtype for dtype in row.peaks)
            equal(has, row.label >= "MI300", "whether it has fp8 rates", label=row.label)


@pytest.mark.claim("dtype.fp8-h100-only", "dtype.fp8-not-previous-gen")
@pytest.mark.needs("cuda")
def test_fp8_is_multiplied_from_compute_capability_8_9_on(device):
    if torch.version.hip:
        pytest.skip("only NVIDIA GPUs have a compute capability")
    capability = torch.cuda.get_device_capability(device)
    ones = torch.ones(16, 32, device=device).to(E4M3)
    product = applied(scaled_fp8_product, ones, ones, 2.0, 3.0)
    if capability < (8, 9):
        equal(product, None, "the product")
    else:
        equal(product, torch.full_like(product, 192), "the product")


# Operations that torch has for wider floats alone, by their operands; x and y are tensors.
WITHOUT_FP8 = {
    "x": "neg exp log sqrt sin erf sign floor round square sum mean prod amax amin argmax sort"
    " relu sigmoid tanh gelu",
    "x y": "add sub div maximum minimum lt le gt ge pow fmod hypot mse_loss",
    "x 0": "softmax log_softmax cumsum",
}
# Operations that a CPU has for fp8 too, and other devices in part.
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
        equal(result_of(name, takes, narrow), None, f"what {name} gives")

    for name, takes in named(WITH_FP8):
        got = result_of(name, takes, narrow)
        if got is None:
            continue
        should = result_of(name, takes, wide).to(dtype)
        equal(got.float(), should.float(), name)


# The binades of normal numbers, and half of eps.
BINADES = {E4M3: (-6, 7, 2**-4), E5M2: (-14, 14, 2**-3)}


@pytest.mark.claim("dtype.fp8-special-handling", "dtype.fp8-h100-only")
@fewer
@given(
    exponent=st.integers(-100, 100) | st.integers(-17, 17),
    dtype=fp8s,
    m=sizes(most=100),
    k=sizes(most=100),
    n=sizes(most=100),
    seed=seeds,
)
@example(exponent=-6, dtype=E4M3, m=70, k=90, n=80, seed=9)
@example(exponent=-14, dtype=E5M2, m=70, k=90, n=80, seed=9)
def test_a_cpu_multiplies_fp8_at_any_magnitude_if_it_is_scaled(exponent, dtype, m, k, n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = (1 + torch.rand(m, k, generator=generator)) * 2.0**exponent
    w = 1 + torch.rand(n, k, generator=generator)
    exact = x.double() @ w.double().T
    least, most, off = BINADES[dtype]
    # Between, a part of the values fits.
    assume(not least - 5 < exponent < least)
    assume(not most < exponent < most + 3)
    bound = (1 + off) * (1 + 2**-4) * (1 + 2**-8) - 1
    by_rows = 2.0 ** (exponent - torch.arange(m) % 2)[:, None]
    for scale, half, fits in (
        (1.0, 0.5, least <= exponent <= most),
        (2.0**exponent, 0.5, True),
        (by_rows, torch.full((1, n), 0.5), True),
    ):
        narrow = (x / scale).to(dtype)
        product = applied(scaled_fp8_product, narrow, (2 * w).to(E4M3), scale, half)
        if product is None and torch.__version__ < (2, 13):
            pytest.skip("this torch has no fp8 product on a CPU")
        error = (product / exact - 1).abs().max().item()
        equal(error <= bound, fits, "whether the product is right", error=error, scale=scale)


@pytest.mark.claim("dtype.fp8-special-handling", "dtype.fp8-not-previous-gen")
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=FP8)
@pytest.mark.parametrize(("rows", "columns"), [(6, 5), (300, 701)])
def test_storing_moving_and_slicing_fp8_needs_no_recipe(device, rows, columns, dtype):
    drawn = seeded((rows, columns), 0, numbers.CPU)
    values = cast(drawn, dtype, device).float()
    wide = values.to(with_dtype(device, dtype)).t()
    narrow = wide.to(dtype)
    moved = torch.cat([narrow[1:], narrow[:1]])
    should = torch.cat([wide[1:], wide[:1]])
    equal(moved.float(), should, "fp8 transposed, sliced and joined")


large = st.floats(2.0**-66, 2.0**20, width=32)
negative = large.map(lambda value: -value)
finite = st.just(0.0) | large | negative


@pytest.mark.claim("dtype.fp4-block-scale")
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@fewer
@given(values=st.lists(finite, min_size=1, max_size=70))
# Blocks of one sign, of zeros, of one number, and one that is cut off.
@example(values=[-6.0, -0.5] * 17)
@example(values=[6.0, 0.5] * 17)
@example(values=[0.0] * 32 + [-3.0] * 32 + [1.5])
def test_a_block_format_stores_and_returns_what_its_specification_says(name, values):
    numbers.check_blocks(block_format_of(name), values)


@pytest.mark.claim("dtype.fp4-block-scale-range")
def test_over_six_decades_one_scale_loses_blocks_that_block_scales_keep(record_figure):
    """Each row of `x` is a block: a coarser one would hold magnitudes decades apart."""
    x = numbers.blocks_over(decades=6)
    one_scale = x.abs().max() / 6
    grid = torch.tensor(numbers.E2M1_GRID, dtype=torch.float64)
    single = one_scale * numbers.nearest_even(x / one_scale, grid)
    is_zero = single == 0
    zeros = is_zero.double().mean().item()
    error = numbers.block_errors(single, x)
    record_figure(f"one scale: mean error of a block {error:.3f}, {zeros:.0%} zeros")
    at_least(min(error, zeros), 0.7, "one scale's error, and its share of zeros")

    blocks = {"mxfp4": x, "nvfp4": numbers.blocks_over(decades=6, width=16)}
    for name, rows in blocks.items():
        kept = numbers.kept_by(name, rows)
        error = numbers.block_errors(kept, rows)
        record_figure(f"{name}: mean error of a block {error:.3f}")
        at_most(error, 0.2, "the mean relative error of a block", name=name)
        specified = numbers.blocks_quantised(name, rows.flatten().tolist()).view_as(rows)
        equal(kept, specified, "what is kept", name=name)


@pytest.mark.claim("dtype.fp4-block-scale-range")
def test_nvfp4_loses_blocks_below_the_reach_of_its_scale():
    x = numbers.blocks_over(decades=12)
    scale = format_of("fp8_e4m3")
    largest = x.view(-1, 16).abs().amax(dim=1)
    below = largest / x.abs().max() <= scale.least_subnormal / 2 / scale.max
    share = below.double().mean().item()
    at_least(share, 0.3, "the share of blocks beyond an e4m3 scale")

    def lost(name):
        return (numbers.kept_by(name, x).view(-1, 16) == 0).all(dim=1)

    # Those 2^18.8 below the largest.
    equal(lost("nvfp4"), below, "blocks that NVFP4 loses")

    equal(int(lost("mxfp4").sum()), 0, "blocks that MXFP4 loses")

    # 254 binades of scales.
    ends = torch.tensor([[6 * 2.0**127], [2.0**-128]], dtype=torch.float64).expand(2, 32)
    equal(numbers.kept_by("mxfp4", ends), ends, "MXFP4 at the ends of its range")


CAST_FROM_FP4 = """
import sys, torch
packed = torch.arange(256, dtype=torch.uint8, device=sys.argv[1]).view(torch.float4_e2m1fn_x2)
print(packed.float().cpu().numel())
"""


def values_of_a_cast_from_fp4(packed):
    """The number of values that a cast to fp32 returns; None where it fails.

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
        pytest.skip("this torch has no fp4 dtype: needs torch 2.8 or later")
    bits = torch.arange(256, dtype=torch.uint8, device=device).view(16, 16)
    packed = bits.view(dtype)
    equal(packed.t().contiguous().view(torch.uint8), bits.t(), "bits transposed")

    logical = 2 * packed.numel()
    held = packed.untyped_storage().nbytes()
    formula = logical * element_bits("fp4_e2m1") // 8
    elements = packed.numel() * packed.element_size()
    agree("bytes", held=held, elements=elements, formula=formula, should=256)

    values = values_of_a_cast_from_fp4(packed)
    record_figure(f"a cast of {logical} values gives {values or 'none'}")
    assert values in (None, logical), f"a cast of {logical} fp4 values gives {values}"

    equal(applied(torch.ones(16).to, dtype), None, "a cast to fp4 on a CPU")
