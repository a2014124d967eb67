"""Utilisation: simulated and published runs against the formula, and causes of a low share."""

from fractions import Fraction
from itertools import pairwise
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accounting.attention import Attention, attention_flops
from accounting.devices import ACCELERATORS, FLOP_PER_CLOCK, bandwidth_bytes_per_s, peak_flop_per_s
from accounting.flops import matmul_flops
from accounting.roofline import hfu, mfu
from prooflops import counted
from test_claims.oracles import published
from test_claims.oracles.dispatched import counting, linear_net
from test_claims.oracles.kernels import product
from test_claims.oracles.sharding import beside_a_second_rank
from test_claims.oracles.tensors import difference
from test_claims.strategies import (
    fewer,
    sizes,
)

H100 = ACCELERATORS["H100 SXM5 80GB"]
EXAMPLE = (16384, 32768, 8192)  # the lecture's product
FP32_S, BF16_S = 0.16, 0.03  # times on the lecture's H100


def shares_of_peak():
    """Measured products of fp32 and bf16 as a share of the card's peak, by card and dtype."""
    return {
        f"{card.card} {dtype}": getattr(card, dtype) * 1e12 / peak
        for card in published.PRODUCTS
        for dtype in ("fp32", "bf16")
        if (peak := peak_flop_per_s(ACCELERATORS[card.card], dtype))
    }


@pytest.mark.claim("mfu.definition")
@given(
    busy_s=st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
    idle_s=st.floats(0, 100),
    peak=st.integers(10**9, 10**15),
)
def test_mfu_is_the_share_of_time_that_devices_at_their_peak_would_work(busy_s, idle_s, peak):
    """Devices that work at their peak or not at all, until the last is done and an idle time has
    passed.
    """
    seconds = max(busy_s) + idle_s
    flops = round(sum(busy * peak for busy in busy_s))
    share = sum(busy / seconds for busy in busy_s) / len(busy_s)
    formula = mfu(flops, seconds, float(peak), devices=len(busy_s))
    assert formula == pytest.approx(share, rel=1e-6), (
        f"mfu={formula}, but should be {share} [{busy_s=}, {seconds=}]"
    )


@pytest.mark.claim("mfu.definition", "mfu.hfu")
@pytest.mark.parametrize(
    "run", published.RUNS, ids=lambda run: f"{run.model} {run.sequence} {run.dtype} {run.card}"
)
def test_mfu_and_hfu_of_a_published_run_are_those_printed(run):
    flops = 60 * run.flops_per_token * run.tokens_per_s
    again = flops // 3 if run.checkpointing else 0
    peak = peak_flop_per_s(ACCELERATORS[run.card], run.dtype)
    formula = [
        100 * mfu(flops, 60, peak, run.devices),
        100 * hfu(flops, again, 60, peak, run.devices),
    ]
    assert formula == pytest.approx([run.mfu, run.hfu], rel=2e-3), (
        f"mfu, hfu={formula}, but other are printed [{run}]"
    )


some_widths = st.lists(sizes(), min_size=2, max_size=5)


def recomputing(device, batch, widths, layers):
    """Counted FLOPs of one training step without and with recomputation of the first layers:
    (model, hardware).
    """
    net = linear_net(widths, device)
    x = torch.rand(batch, widths[0], device=device, requires_grad=True)
    totals = []
    for again in (0, layers):
        with set_checkpoint_early_stop(False), counting() as counter:
            y = net[again:](checkpoint(net[:again], x, use_reentrant=False))
            y.backward(torch.ones_like(y))
        totals.append(int(counter.get_total_flops()))
    return totals


@pytest.mark.claim("mfu.hfu", "mfu.low-causes")
@fewer
@given(batch=sizes(), widths=some_widths, layers=sizes(0, 4), seconds=st.floats(0.01, 100))
def test_recomputing_all_makes_hfu_four_thirds_of_mfu_and_layers_a_share(
    device, batch, widths, layers, seconds
):
    model, hardware = recomputing(device, batch, widths, layers)
    utilisation = mfu(model, seconds, 1e9)
    of_hardware = hfu(model, hardware - model, seconds, 1e9)
    products = [2 * batch * m * n for m, n in pairwise(widths)]
    times = (
        Fraction(sum(products[:layers]), sum(products)) / 3 + 1
    )  # 4/3 where all layers are recomputed
    should = [float(3 * sum(products) * each / Fraction(seconds) / 10**9) for each in (1, times)]
    assert [utilisation, of_hardware] == pytest.approx(should), (
        f"{utilisation}, {of_hardware}, not {should} [{widths=}]"
    )


def attention_by_blocks(query, key, value, block):
    """Causal attention that leaves out the pairs behind the last query of each block."""
    parts = []
    for start in range(0, query.shape[0], block):
        end = start + block
        scores = query[start:end] @ key[:end].T / query.shape[1] ** 0.5
        future = torch.ones_like(scores).triu(start + 1).bool()
        parts.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value[:end])
    return torch.cat(parts)


@pytest.mark.claim("mfu.credits-avoided")
@given(blocks=sizes(), block=sizes(2, 8), width=sizes(2, 8), rate=st.floats(0.1, 1))
def test_products_that_attention_leaves_out_count_as_done(device, blocks, block, width, rate):
    tokens = blocks * block
    query, key, value = torch.randn(3, tokens, width, dtype=torch.float64, device=device)
    with counting() as counter:
        got = attention_by_blocks(query, key, value, block)
    should = nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], is_causal=True
    )[0]
    off = (got - should).abs().max().item()
    assert off < 1e-12, f"by blocks attention is off by {off:.2g} [{blocks=}, {block=}, {width=}]"
    done = int(counter.get_total_flops())
    model = attention_flops(Attention(1, 1, tokens, width))
    # The seconds of a device that does `rate` of its peak.
    peak = 1e6
    seconds = done / (rate * peak)
    of_model = mfu(model, seconds, peak)
    of_hardware = mfu(done, seconds, peak)
    assert of_hardware == pytest.approx(rate), (
        f"the device does {of_hardware} of its peak, but should do {rate}"
    )
    # All pairs of blocks, over those on and below the diagonal.
    credited = Fraction(2 * blocks, blocks + 1)
    should_be = pytest.approx(rate * credited)
    assert of_model == should_be, f"mfu={of_model}, not {credited} times {rate} [{blocks=}]"
    # At 1 rounding would decide.
    if should_be != 1:
        assert (of_model > 1) == (rate * credited > 1), (
            f"mfu={of_model} is on the other side of 1 than {should_be}"
        )


@pytest.mark.claim("mfu.term-for-kernel")
@given(m=sizes(), widths=some_widths)
def test_the_models_flops_are_the_kernels_for_a_single_product_alone(device, m, widths):
    k, n = widths[:2]
    with counting() as counter:
        torch.rand(m, k, device=device) @ torch.rand(k, n, device=device)
    kernel = int(counter.get_total_flops())
    assert kernel == matmul_flops(m, k, n), (
        f"the kernel does {kernel} FLOPs, but should do those of the product"
    )
    model, hardware = recomputing(device, m, widths, 1)
    assert hfu(kernel, 0, 1.0, 1e6) == mfu(kernel, 1.0, 1e6), (
        "for one product both utilisations should be the same"
    )
    assert hardware > model, (
        f"a run's kernels do {hardware} FLOPs, but should do more than the model's {model}"
    )


@pytest.mark.claim("mfu.target")
def test_the_best_runs_reach_half_the_peak_and_all_pass_a_twentieth(record_figure):
    large = [percent for percent, _ in published.LARGE_RUNS.values()]
    llama = [
        percent for percent, source in published.LARGE_RUNS.values() if source == "llama3-2024"
    ]
    of_16_bits = [run for run in published.RUNS if run.dtype == "bf16"]
    on_h100 = [*llama, *(run.mfu for run in of_16_bits if run.card == H100.label)]
    ends = []
    for percents in (large, on_h100):
        ends += [round(min(percents) / 100, 2), round(max(percents) / 100, 2)]
    assert ends == [0.21, 0.56, 0.29, 0.46], f"large runs and those on H100s reach {ends}"
    everything = [*large, *(run.mfu for run in published.RUNS)]
    good = sum(percent >= 50 for percent in everything)
    record_figure(
        f"published: {min(everything)} to {max(everything)} %, {good} of {len(everything)} reach "
        f"50 %"
    )
    assert min(everything) > 5, (
        f"the least published MFU is {min(everything)} %, but should be far above 5 %"
    )
    assert 0 < good < len(everything), (
        f"{good} of {len(everything)} published runs reach 50 %, but some should"
    )
    assert median(large) < 50, (
        f"the median of large runs is {median(large)} %: 50 % should be better than typical"
    )
    a100 = [run.mfu >= 50 for run in of_16_bits if run.card == "A100 SXM4 80GB"]
    assert sum(a100) > len(a100) / 2, (
        f"{sum(a100)} of {len(a100)} runs on A100s reach 50 %, but most should"
    )


@pytest.mark.claim("mfu.never-near-one")
def test_no_published_run_comes_near_one_and_some_products_do(record_figure):
    runs = [percent / 100 for percent, _ in published.LARGE_RUNS.values()]
    for run in published.RUNS:
        runs += [run.mfu / 100, run.hfu / 100]
    near = {name: round(share, 2) for name, share in shares_of_peak().items() if share > 0.9}
    record_figure(f"training up to {max(runs):.2f}; products above 0.9: {near}")
    assert max(runs) < 0.9, (
        f"the highest published utilisation of training is {max(runs)}, but should be below 0.9"
    )
    steady = {
        name: share for name, share in near.items() if "RTX" not in name
    }  # those run above their nominal clock
    assert steady == {"A100 SXM4 80GB fp32": 0.98, "H20 bf16": 0.96}, (
        f"products above 0.9 of the peak are {near}"
    )
    for card, dtype in (name.rsplit(" ", 1) for name in steady):
        rows = [
            ACCELERATORS[of.card]
            for of in published.PRODUCTS
            if peak_flop_per_s(ACCELERATORS[of.card], dtype)
        ]
        lowest = min(rows, key=lambda row: peak_flop_per_s(row, dtype) / bandwidth_bytes_per_s(row))
        assert lowest.label == card, (
            f"of {dtype} {lowest.label} has the least peak for its bandwidth, not {card}"
        )


@pytest.fixture(scope="module")
def example_flops():
    """FLOPs that torch dispatches for the lecture's product, on the meta device."""
    m, k, n = EXAMPLE
    with counted.flops() as dispatched:
        torch.empty(m, k, device="meta") @ torch.empty(k, n, device="meta")
    return dispatched.total


@pytest.mark.claim("mfu.fp32-example")
def test_the_product_in_0_16_s_is_0_8_of_the_fp32_peak(example_flops, record_figure):
    peak = peak_flop_per_s(H100, "fp32")
    assert round(peak / 1e12) == 67, f"the peak of fp32 is {peak}, but should round to 67e12"

    formula = mfu(example_flops, FP32_S, peak)
    record_figure(f"{example_flops / FP32_S:.2e} FLOP/s, {formula:.3f}")
    assert example_flops == matmul_flops(*EXAMPLE) == 2 * 16384 * 32768 * 8192, (
        f"{example_flops} FLOPs are dispatched"
    )
    assert round(example_flops / 5.4e13, 2) == FP32_S, "5.4e13 FLOP/s should take 0.16 s, rounded"
    assert round(formula, 1) == round(5.4e13 / 67e12, 1) == 0.8, (
        f"mfu={formula:.3f}, but should round to 0.8"
    )


@pytest.mark.claim("mfu.bf16-example")
def test_the_product_in_0_03_s_has_a_higher_rate_and_a_lower_share(example_flops, record_figure):
    fp32, bf16 = (
        mfu(example_flops, seconds, peak_flop_per_s(H100, dtype))
        for seconds, dtype in ((FP32_S, "fp32"), (BF16_S, "bf16"))
    )
    record_figure(f"{example_flops / BF16_S:.2e} FLOP/s, {bf16:.3f} of the dense peak")
    for dtype, seconds, share in (("fp32", FP32_S, fp32), ("bf16", BF16_S, bf16)):
        clock_mhz = H100.clocks_mhz[dtype == "bf16"]
        cycles = example_flops / (H100.units * FLOP_PER_CLOCK[H100.die][dtype])
        busy = cycles / (clock_mhz * 1e6) / seconds
        assert share == pytest.approx(busy, rel=2e-3), (
            f"mfu={share}, but the units are busy for {busy} [{dtype}]"
        )
    assert example_flops / BF16_S > 5 * example_flops / FP32_S, (
        "bf16 should have more than five times the rate of fp32"
    )
    sparse = mfu(example_flops, BF16_S, H100.peaks["bf16"].sparse * 1e12)
    assert (round(bf16, 3), round(sparse, 2)) == (0.296, 0.15), (
        f"mfu={bf16:.3f}, and of the sparse peak {sparse:.3f}"
    )
    assert bf16 < fp32, f"mfu={bf16:.3f} in bf16, but should be below {fp32:.2f}"
    tf32 = published.H100_FP32_WITH_TF32_ALLOWED * 1e12 / peak_flop_per_s(H100, "fp32")
    assert tf32 > 6, (
        f"with tf32 allowed products of fp32 reach {tf32:.1f} of its peak, but should be far above "
        f"it"
    )


@pytest.mark.claim("mfu.bf16-example")
def test_a_well_fed_product_of_bf16_has_no_lower_share_than_one_of_fp32(record_figure):
    fp32, bf16 = (shares_of_peak()[f"{H100.label} {dtype}"] for dtype in ("fp32", "bf16"))
    record_figure(f"measured on another H100: {fp32:.2f} in fp32, {bf16:.2f} in bf16")
    assert (round(fp32, 2), round(bf16, 2)) == (0.78, 0.79), (
        f"of their peaks fp32 reaches {fp32:.3f}, bf16 {bf16:.3f}"
    )


@pytest.mark.claim("mfu.higher-if-matmul")
@pytest.mark.parametrize("times", [1, 2])
def test_norms_and_activations_between_the_products_lower_the_utilisation(device, speed, times):
    """Even where their own FLOPs count as the model's: they take more of the time than of the
    FLOPs.
    """
    # On an accelerator more rows than its cache holds, of so few columns that a norm takes long
    # beside a product.
    rows, dim, dtype = (
        (128, 64, torch.float32) if device.type == "cpu" else (2**16, 512, torch.bfloat16)
    )
    dim *= times
    x, weights = (
        torch.randn(*shape, device=device, dtype=dtype) for shape in ((rows, dim), (4, dim, dim))
    )

    def products(y=x):
        for weight in weights:
            y = y @ weight

    def mlp(y=x):
        for weight in weights:
            y = nn.functional.gelu(nn.functional.layer_norm(y, (dim,)) @ weight)

    with counted.flops() as dispatched:
        mlp()
    assert dispatched.total == len(weights) * matmul_flops(rows, dim, dim), (
        "both should do the same products"
    )
    with_all = (dispatched.total + dispatched.elementwise) / dispatched.total
    assert with_all < 1.08, (
        f"norms and GELU should be a small share of the FLOPs, but make them {with_all:.2f}-fold"
    )
    speed.assert_slower(
        mlp, products, "products with norms and GELU against products alone", at_least=1.08
    )


@pytest.mark.claim("mfu.low-causes")
@pytest.mark.parametrize("times", [1, 2])
def test_a_product_of_little_work_per_byte_lowers_it(device, speed, times):
    """Bandwidth: the same FLOPs, row by row, fetch the matrix once a row."""
    rows = 32
    dim = times * (512 if device.type == "cpu" else 4096)
    x = torch.rand(rows, dim, device=device)
    weight = torch.rand(dim, dim, device=device)
    what = f"{rows} rows times a matrix, one by one, against all at once"
    speed.assert_slower(
        lambda: [x[i : i + 1] @ weight for i in range(rows)], lambda: x @ weight, what, at_least=1.2
    )


@pytest.mark.claim("mfu.low-causes")
@pytest.mark.parametrize("each", [16, 64])
def test_many_tiny_operations_lower_it(device, speed, each):
    """Launch and Python overhead: the same additions in pieces."""
    x = torch.rand(2**12, device=device)
    pieces = x.split(each)
    what = f"adding to {x.numel()} elements in {len(pieces)} calls against one"
    speed.assert_slower(
        lambda: [piece.add_(1) for piece in pieces], lambda: x.add_(1), what, at_least=5
    )


@pytest.mark.claim("mfu.low-causes")
def test_communication_lowers_it(device, speed, gloo):
    """Data parallelism: after each backward pass two processes add up their gradients."""
    width = 256
    net = linear_net((width, width), device)
    weight = net[0].weight
    x = torch.rand(8, width, device=device)

    def step():
        net.zero_grad()
        net(x).sum().backward()

    def step_and_all_reduce():
        step()
        gradient = weight.grad.cpu()
        torch.distributed.all_reduce(gradient)
        return gradient.to(device)

    with beside_a_second_rank(weight.numel()):
        step()
        should = weight.grad + 1
        wrong = difference(step_and_all_reduce(), should)
        assert not wrong, f"gradients added up: {wrong}"
        what = "a step whose gradients two processes add up against one alone"
        speed.assert_slower(step_and_all_reduce, step, what)


@pytest.mark.claim("mfu.low-causes", "mfu.benchmark-yourself")
@pytest.mark.parametrize("times", [1, 2])
def test_the_same_flops_in_another_shape_take_far_longer(device, speed, times):
    """Shapes: few outputs, each of a very long sum, against a square of the same FLOPs."""
    square, thin = (64 * times, 2 * times) if device.type == "cpu" else (1024 * times, 8 * times)
    long = square**3 // thin**2
    what = f"({thin}, {long}) by ({long}, {thin}) against the square of the same FLOPs"
    speed.assert_slower(
        product(device, "fp32", thin, long, thin),
        product(device, "fp32", square),
        what,
        at_least=1.5,
    )


@pytest.mark.claim("mfu.benchmark-yourself")
def test_no_card_gains_from_bf16_what_the_peaks_promise(record_figure):
    shares = shares_of_peak()
    gains = {
        name: shares[name[:-4] + "bf16"] / share for name, share in shares.items() if "fp32" in name
    }
    record_figure(
        f"shares of the peak {min(shares.values()):.2f} to {max(shares.values()):.2f}; gains: "
        f"{gains}"
    )
    kept = {card: gain for card, gain in gains.items() if abs(gain - 1) < 0.01}
    assert not kept, (
        f"from fp32 to bf16 these cards gain {kept} of what is promised, but should gain more or "
        f"less"
    )
    assert 2 * min(shares.values()) < max(shares.values()), (
        f"the shares should differ twofold, but are {shares}"
    )
