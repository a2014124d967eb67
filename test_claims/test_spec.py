"""Claims about specifications: printed peaks against the chip's units and clock.

A peak is derived again from the numbers of the vendors' data sheets: streaming multiprocessors
(SMs), their tensor cores or vector lanes, multiply-adds of each a clock, and the clock in MHz.
"""

import math
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting.devices import (
    ACCELERATORS,
    ROWS,
    clock_scaled_peak_flop_per_s,
    device_named,
    memory_bytes,
    peak_flop_per_s,
)
from prooflops.precision import Float32Products
from test_claims.oracles import published
from test_claims.oracles.kernels import flop_per_s, product
from test_claims.oracles.messages import at_least, at_most, between, close, equal
from test_claims.strategies import TORCH_DTYPES

A100, H100, H100_PCIE = (
    ACCELERATORS[name] for name in ("A100 SXM4 80GB", "H100 SXM5 80GB", "H100 PCIe 80GB")
)
# The side of a product that fills any GPU.
LARGE_SIDE = 8192


def tera(row, dtype, **options):
    """The peak on record in TFLOP/s."""
    return peak_flop_per_s(row, dtype, **options) / 1e12


def rederived(units, multiply_adds_per_clock, clock_mhz):
    """TFLOP/s of `units` units that each do `multiply_adds_per_clock`."""
    return units * multiply_adds_per_clock * 2 * clock_mhz * 1e6 / 1e12


def printed_sparse(figure):
    """The figure with sparsity, where the vendor prints one."""
    return figure.printed if figure.kind == "sparse" else figure.sparse


def measured_share(card):
    """Measured over dense peak of bf16, for a card of `published.PRODUCTS`."""
    return card.bf16 / tera(ACCELERATORS[card.card], "bf16")


@pytest.mark.claim("spec.a100-312")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.die == "GA100"], ids=lambda row: row.label
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_a100_has_312_dense_teraflop_per_s_in_16_bits(row, dtype):
    # 108 SMs of 4 tensor cores.
    units = rederived(108 * 4, 256, 1410)
    equal(tera(row, dtype), 312, "the peak in TFLOP/s")
    close(units, 312, "TFLOP/s of its units", rel=1e-3)


@pytest.mark.claim("spec.a100-312", "spec.tensor-core")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.label.startswith("A100")], ids=lambda row: row.label
)
def test_other_figures_of_the_a100_are_not_312(row):
    sparse = [printed_sparse(row.peaks[dtype]) for dtype in ("bf16", "fp16")]
    got = [tera(row, "fp32"), tera(row, "tf32"), *sparse]
    vector_units = rederived(108 * 64, 1, 1410)
    tf32_cores = rederived(108 * 4, 128, 1410)
    sparse_cores = rederived(108 * 4, 512, 1410)
    units = [vector_units, tf32_cores, sparse_cores, sparse_cores]

    equal(got, [19.5, 156, 624, 624], "fp32, tf32 and both with sparsity")
    close(units, got, "TFLOP/s of its units", rel=2e-3)


@pytest.mark.claim("spec.h100-1979", "spec.h100-989", "spec.tensor-core")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_h100_has_989_dense_and_twice_that_with_sparsity_in_16_bits(dtype):
    dense = tera(H100, dtype)
    sparse = printed_sparse(H100.peaks[dtype])
    units = rederived(132 * 4, 512, 1830)
    close(dense, units, "the dense peak", rel=1e-3)
    close(sparse, 1979, "the figure with sparsity", within=0.5)
    close(2 * dense, sparse, "twice the dense peak", within=0.2)


@pytest.mark.claim("spec.h100-1979")
def test_1979_is_neither_another_h100_nor_another_dtype_with_sparsity():
    pcie = printed_sparse(H100_PCIE.peaks["bf16"])
    nvl = printed_sparse(ACCELERATORS["H100 NVL 94GB"].peaks["bf16"])
    got = [pcie, tera(H100_PCIE, "bf16")]
    equal(got, [1513, 756], "the PCIe board with sparsity and without")

    others = pcie, nvl, 2 * tera(H100, "tf32"), 2 * tera(H100, "fp8_e4m3")
    near = [figure for figure in others if figure == pytest.approx(1979, rel=0.1)]
    assert not near, f"with sparsity {near} TFLOP/s are near 1979"
    close(tera(H100, "fp8_e4m3"), 1979, "dense fp8", within=0.5)


@pytest.mark.claim("spec.mixed-comparison")
def test_like_for_like_an_h100_does_three_times_an_a100_not_six():
    dense = tera(H100, "bf16") / tera(A100, "bf16")
    units = rederived(132, 512, 1830) / rederived(108, 256, 1410)
    sparse = printed_sparse(H100.peaks["bf16"]) / printed_sparse(A100.peaks["bf16"])
    mixed = printed_sparse(H100.peaks["bf16"]) / tera(A100, "bf16")
    close(dense, sparse, "dense against dense", rel=1e-3)
    close([dense, mixed], [units, 2 * units], "like for like, and mixed", rel=1e-3)
    equal((round(dense, 1), round(mixed, 1)), (3.2, 6.3), "like for like, and mixed")


@pytest.mark.claim("spec.halved-in-practice")
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if any(figure.sparse for figure in row.peaks.values())],
    ids=lambda row: row.label,
)
def test_dense_is_half_of_sparse_but_for_fp4_of_a_b300(row):
    """Within rounding; one row has figures at two clocks, 1.2 % apart."""
    times = {
        dtype: figure.sparse / figure.value for dtype, figure in row.peaks.items() if figure.sparse
    }
    fp4 = times.pop("fp4") if row.die == "GB110" else 1
    close(times, dict.fromkeys(times, 2), "sparse over dense", rel=0.0125)
    assert fp4 < 1.4, f"sparse fp4 is {fp4} times dense"


@pytest.mark.claim("spec.halved-in-practice", "spec.sparsity-unused")
@pytest.mark.parametrize("card", published.PRODUCTS, ids=lambda card: card.card)
def test_practice_keeps_more_than_half_of_the_dense_peak_alone(card):
    # GeForce cards run above the clock that their peak is stated for.
    most = 1.2 if card.card.startswith("RTX") else 1
    between(measured_share(card), 0.7, most, "measured over dense peak")


@pytest.mark.claim("spec.h100-fp32-67", "spec.fp32-slower", "spec.tensor-core")
def test_67_teraflop_per_s_are_the_vector_units_of_the_sxm_board():
    sxm, pcie = (tera(row, "fp32", path="vector") for row in (H100, H100_PCIE))
    equal((tera(H100, "fp32"), tera(H100_PCIE, "fp32")), (sxm, pcie), "fp32 without tf32")
    # 132 and 114 SMs of 128 vector lanes, at each board's highest clock.
    units = [rederived(132 * 128, 1, 1980), rederived(114 * 128, 1, 1755)]
    close([sxm, pcie], units, "fp32 of SXM and PCIe", rel=1e-3)
    equal((round(sxm), round(pcie)), (67, 51), "fp32 of SXM and PCIe")
    equal(round(tera(H100, "tf32")), 495, "tf32")
    equal(peak_flop_per_s(H100, "bf16", path="vector"), None, "bf16 of vector units")


@pytest.mark.claim("spec.fp32-orders-worse")
def test_on_paper_fp32_is_one_order_of_magnitude_below_fp16_not_several(record_figure):
    dense = tera(H100, "fp16") / tera(H100, "fp32")
    sparse = printed_sparse(H100.peaks["fp16"]) / tera(H100, "fp32")
    record_figure(f"{dense:.1f}x dense, {sparse:.1f}x against the figure with sparsity")
    units = rederived(132 * 4, 512, 1830) / rederived(132 * 128, 1, 1980)
    close([dense, sparse], [units, 2 * units], "fp16 over fp32, dense and sparse", rel=1e-3)
    equal((round(dense, 1), round(sparse, 1)), (14.8, 29.6), "fp16 over fp32, dense and sparse")


@pytest.mark.claim("spec.fp32-slower", "spec.dtype-dependent")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_the_fewer_bits_the_higher_the_peak_of_every_accelerator(row):
    dtypes = [
        dtype for dtype in ("fp32", "tf32", "bf16", "fp8_e4m3") if peak_flop_per_s(row, dtype)
    ]
    ladder = [(dtype, tera(row, dtype)) for dtype in dtypes]
    for (wide, slow), (narrow, fast) in pairwise(ladder):
        at_least(fast, slow, "TFLOP/s", of=narrow, against=wide)

    fp32 = dict(ladder).get("fp32")
    if fp32 is None:
        return
    narrow = [dtype for dtype in row.peaks if not re.search("32|64", dtype)]
    slow = [dtype for dtype in narrow if row.peaks[dtype].value <= fp32]

    assert not slow, f"{slow} have no more TFLOP/s than the {fp32} of fp32"


NVIDIA_FLAGSHIPS = "V100 SXM2", "A100 SXM4 80GB", "H100 SXM5 80GB", "B200"
AMD_FLAGSHIPS = "MI250X", "MI300X", "MI355X"


@pytest.mark.claim("spec.newer-faster")
@pytest.mark.parametrize("flagships", [NVIDIA_FLAGSHIPS, AMD_FLAGSHIPS])
def test_each_flagship_exceeds_the_one_before_in_16_bits(flagships):
    for older, newer in pairwise(ACCELERATORS[name] for name in flagships):
        assert older.arch < newer.arch or older.arch[0] == "9", f"{newer.label} is not newer"
        gain = tera(newer, "fp16") / tera(older, "fp16")
        between(gain, 1.5, 10, "the gain in fp16", of=newer.label)


@pytest.mark.claim("spec.newer-faster")
@pytest.mark.parametrize(
    ("dtype", "older", "newer"),
    [
        ("fp64", "H100 SXM5 80GB", "B200"),
        ("fp64", "B200", "B300 SXM6"),
        ("int8", "B200", "B300 SXM6"),
        ("fp64", "MI300X", "MI355X"),
    ],
)
def test_the_newer_flagship_is_slower_in_what_was_given_up(dtype, older, newer):
    at_most(tera(ACCELERATORS[newer], dtype), 0.6 * tera(ACCELERATORS[older], dtype), "TFLOP/s")


@pytest.mark.claim("spec.dtype-dependent", "spec.fp8-faster")
def test_the_h100_doubles_its_peak_with_each_halving_of_the_bits():
    peaks = [tera(H100, dtype) for dtype in ("fp32", "tf32", "bf16", "fp8_e4m3")]
    steps = [round(fast / slow, 2) for slow, fast in pairwise(peaks)]
    equal(steps, [7.39, 2.0, 2.0], "growth from fp32 to tf32, bf16 and fp8")
    close(peaks[-1], rederived(132 * 4, 1024, 1830), "TFLOP/s of fp8", rel=1e-3)
    with_fp64 = [row for row in ROWS if row.die in ("GA100", "GH100") and "fp64" in row.peaks]
    times = {row.label: tera(row, "fp64") / tera(row, "fp64", path="vector") for row in with_fp64}
    close(times, dict.fromkeys(times, 2), "fp64 of matrix over vector units", rel=0.02)


@pytest.mark.claim("spec.fp8-faster")
@pytest.mark.needs("cuda", "sm>=8.9")
def test_products_of_fp8_are_faster_than_those_of_fp16_here(device, speed):
    fp16 = product(device, "fp16", LARGE_SIDE)
    fp8 = product(device, "fp8_e4m3", LARGE_SIDE)
    speed.assert_slower(fp16, fp8, f"a product of side {LARGE_SIDE}, fp16 against fp8")


@pytest.mark.claim("spec.fp32-slower", "spec.fp32-orders-worse")
@pytest.mark.needs("cuda")
def test_products_of_fp32_are_slower_than_of_fp16_but_not_by_orders(device, speed, peak_flop_per_s):
    side = LARGE_SIDE // 2
    low = peak_flop_per_s("fp32")
    high = peak_flop_per_s("fp16")
    usual = (high / low / 2, high / low * 2) if low and high else (0, math.inf)
    with Float32Products():
        fp32 = product(device, "fp32", side)
        fp16 = product(device, "fp16", side)
        what = f"a product of side {side}, fp32 against fp16"
        speed.assert_slower(fp32, fp16, what, at_most=100, usual=usual)


@pytest.mark.claim("spec.h100-80gb")
def test_an_h100_has_80_gb_unless_it_is_the_nvl_and_an_h200_has_more():
    rows = [row for row in ROWS if row.label.startswith(("H100", "H200"))]
    got = {row.label: memory_bytes(row) / 2**30 for row in rows}
    should = {
        "H100 SXM5 80GB": 80,
        "H100 PCIe 80GB": 80,
        "H100 NVL 94GB": 94,
        "H200 SXM 141GB": 141,
        "H200 NVL 141GB": 141,
    }
    equal(got, should, "GB on record")


@pytest.mark.claim("spec.h100-80gb")
@pytest.mark.needs("cuda")
def test_this_device_has_the_memory_that_its_label_says(device, record_figure):
    facts = torch.cuda.get_device_properties(device)
    row = device_named(facts.name, f"{facts.major}.{facts.minor}", facts.multi_processor_count)
    record_figure(f"{facts.name}: {facts.total_memory / 2**30:.1f} GiB")
    if row is not None and row.memory_sizes:
        shares = [facts.total_memory / size for size in row.memory_sizes]
        assert any(0.85 < share < 1.1 for share in shares), f"{shares} of {row.memory}"


def of_patterns(patterns, dtype=torch.float16):
    """A matrix with a group of four for each pattern: not zero where the pattern's bits are 1."""
    groups = (*patterns.shape, 4)
    signs = 1 - 2 * torch.randint(2, groups)
    values = torch.randint(1, 100, groups) * signs
    bits = patterns[..., None] >> torch.arange(4) & 1
    return (values * bits).flatten(-2).to(dtype)


@pytest.mark.claim("spec.sparsity-2of4")
@given(
    drawn=st.sets(st.integers(0, 15), min_size=1),
    dtype=st.sampled_from(["fp16", "bf16", "int8", "fp32"]),
)
def test_two_values_of_each_four_survive_compression(drawn, dtype):
    # torch's own compression, in a module that a later torch may move.
    conversions = pytest.importorskip("torch.sparse._semi_structured_conversions")
    patterns = torch.tensor(sorted(drawn))[torch.randint(len(drawn), (32, 256))]
    dense = of_patterns(patterns, TORCH_DTYPES[dtype])
    kept, places = conversions.sparse_semi_structured_from_dense_cutlass(dense)

    equal(kept.numel(), dense.numel() // 2, "values kept")

    restored = conversions.sparse_semi_structured_to_dense_cutlass(kept, places)
    # One value of each two survives in fp32.
    group = 2 if dtype == "fp32" else 4
    before = dense.view(-1, group)
    after = restored.view(-1, group)
    is_restored = (before == after).all(-1)
    fits = (before != 0).sum(-1) <= group // 2
    wrong = is_restored != fits

    assert not wrong.any(), (
        f"{before[wrong][:1].tolist()} comes back as {after[wrong][:1].tolist()}"
    )


@pytest.mark.claim("spec.sparsity-2of4")
@pytest.mark.needs("cuda", "sm>=8.0")
@pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor")
def test_a_sparse_product_is_right_for_two_values_in_four_not_three(device):
    x = torch.randn(128, 128, device=device, dtype=torch.float16)
    for pattern, right in ((0b1010, True), (0b1011, False)):
        weight = of_patterns(torch.full((128, 32), pattern)).to(device)
        got = torch.sparse.to_sparse_semi_structured(weight) @ x
        should = weight @ x
        error = ((got - should).norm() / should.norm()).item()
        equal(error < 0.01, right, "a right product", error=error, pattern=pattern)


@pytest.mark.claim("spec.sparsity-unused", "spec.h100-989")
@pytest.mark.parametrize("run", published.RUNS[:4], ids=lambda run: f"{run.model} {run.sequence}")
def test_published_utilisation_is_held_against_the_dense_peak(run):
    rate = run.flops_per_token * run.tokens_per_s / run.devices
    peak = rate / (run.mfu / 100) / 1e12
    close(peak, tera(ACCELERATORS[run.card], run.dtype), "the peak implied in TFLOP/s", rel=0.01)


@pytest.mark.claim("spec.peak-is-bound")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.timed
def test_no_product_here_exceeds_what_the_units_can_do(
    device, bound_flop_per_s, peak_flop_per_s, record_figure, dtype
):
    sides = (64, 128, 256) if device.type == "cpu" else (LARGE_SIDE // 4, LARGE_SIDE // 2)
    bound = bound_flop_per_s(dtype)
    peak = peak_flop_per_s(dtype)
    with Float32Products():
        rate = max(flop_per_s(device, dtype, side) for side in sides)
    of_peak = f", {rate / peak:.2f} of the peak" if peak else ""
    record_figure(f"{dtype}: {rate / 1e12:.3g} TFLOP/s{of_peak}")
    if bound is None:
        what = "FLOPs per clock" if device.type == "cpu" else "peak or highest clock"
        pytest.skip(f"unknown bound of {dtype}: its {what} on this device are not on record")

    at_most(rate, bound, "FLOP/s of a product")


@pytest.mark.claim("spec.peak-is-bound")
def test_a_nominal_peak_is_exceeded_at_another_clock_or_dtype():
    geforce = next(card for card in published.PRODUCTS if card.card == "RTX 4090")
    share = measured_share(geforce)
    at_least(share, 1, "an RTX 4090's share of its nominal peak")
    sxm = next(card.bf16 for card in published.PRODUCTS if card.card == H100.label)
    at_least(sxm, tera(H100_PCIE, "bf16"), "TFLOP/s of an SXM board")
    tf32 = published.H100_FP32_WITH_TF32_ALLOWED
    between(tf32, 6 * tera(H100, "fp32"), tera(H100, "tf32"), "TFLOP/s of fp32 with TF32 allowed")
    for dtype, units in {"bf16": (132 * 4, 512), "fp32": (132 * 128, 1)}.items():
        scaled = clock_scaled_peak_flop_per_s(H100, dtype, 1500e6) / 1e12
        close(scaled, rederived(*units, 1500), "TFLOP/s at 1500 MHz", rel=1e-3, dtype=dtype)


@pytest.mark.claim("spec.tensor-core")
@pytest.mark.needs("cuda", "sm>=8.0")
@pytest.mark.timed
def test_a_product_of_bf16_does_more_than_the_vector_units_could(
    device, peak_flop_per_s, record_figure
):
    rate = flop_per_s(device, "bf16", LARGE_SIDE)
    vector = peak_flop_per_s("fp32")
    record_figure(f"bf16 product: {rate / 1e12:.0f} TFLOP/s")
    if vector is not None:
        at_least(rate, vector, "FLOP/s of a bf16 product")
