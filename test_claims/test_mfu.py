"""Claims about utilisation: simulated and published runs, and causes of a low share."""

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
from accounting.devices.floors import published_mfu
from accounting.flops import linear_step, matmul_flops
from accounting.roofline import hfu, mfu
from prooflops import counted
from prooflops.precision import Float32Products
from test_claims.oracles import published
from test_claims.oracles.dispatched import counting, linear_net
from test_claims.oracles.kernels import flop_per_s, product
from test_claims.oracles.messages import agree, at_least, at_most, between, close, equal
from test_claims.oracles.ranks import beside_a_second_rank
from test_claims.strategies import fewer, sizes

H100 = ACCELERATORS["H100 SXM5 80GB"]
# The lecture multiplies this product on an H100.
EXAMPLE = (16384, 32768, 8192)
FP32_S, BF16_S = 0.16, 0.03
# Its time in fp32 and bf16, and the shares of the peak: the lecture's, and this suite's own
# measurement of an H200 with torch 2.11 (26 November 2026).
TAKEN = {
    "H100 SXM5 80GB": ((FP32_S, 0.82), (BF16_S, 0.30)),
    "H200 SXM 141GB": ((0.167, 0.79), (0.0120, 0.74)),
}


def shares_of_peak():
    """Measured products of fp32 and bf16 as a share of the card's peak, by card and dtype."""
    shares = {}
    for row in published.PRODUCTS:
        for dtype in ("fp32", "bf16"):
            peak = peak_flop_per_s(ACCELERATORS[row.card], dtype)
            if peak:
                shares[f"{row.card} {dtype}"] = getattr(row, dtype) * 1e12 / peak
    return shares


@pytest.mark.claim("mfu.definition", "mfu.hfu")
@given(
    busy_s=st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
    idle_s=st.floats(0, 100),
    peak=st.integers(10**9, 10**15),
    unit_s=st.sampled_from([1e-9, 1, 1e9]),
    repeated=st.fractions(0, 1),
)
def test_mfu_is_the_share_of_time_that_devices_at_their_peak_would_work(
    busy_s, idle_s, peak, unit_s, repeated
):
    """Each device works at its peak or not at all; after the last one an idle time follows."""
    seconds = max(busy_s) + idle_s
    flops = round(sum(busy * peak for busy in busy_s))
    share = sum(busy / seconds for busy in busy_s) / len(busy_s)
    run = seconds * unit_s, peak / unit_s, len(busy_s)
    close(mfu(flops, *run), share, "mfu")
    again = round(flops * repeated)
    close(hfu(flops - again, again, *run), share, "hfu of the same work, a part of it repeated")


@pytest.mark.claim("mfu.definition", "mfu.hfu")
@pytest.mark.parametrize(
    "run", published.RUNS, ids=lambda run: f"{run.model} {run.sequence} {run.dtype} {run.card}"
)
def test_mfu_and_hfu_of_a_published_run_are_those_printed(run):
    flops = 60 * run.flops_per_token * run.tokens_per_s
    recomputed = flops // 3 if run.checkpointing else 0
    peak = peak_flop_per_s(ACCELERATORS[run.card], run.dtype)
    formula = [
        100 * mfu(flops, 60, peak, run.devices),
        100 * hfu(flops, recomputed, 60, peak, run.devices),
    ]

    close(formula, [run.mfu, run.hfu], "mfu and hfu", rel=2e-3)


some_widths = st.lists(sizes(), min_size=2, max_size=5)


def recomputing(device, batch, widths, layers, reentrant=False):
    """FLOPs counted in a training step without and with recomputation of the first layers."""
    net = linear_net(widths, device)
    x = torch.rand(batch, widths[0], device=device, requires_grad=True)
    totals = []
    for recomputed in (0, layers):
        with set_checkpoint_early_stop(False), counting() as counter:
            y = net[recomputed:](checkpoint(net[:recomputed], x, use_reentrant=reentrant))
            y.backward(torch.ones_like(y))
        totals.append(int(counter.get_total_flops()))
    return totals


@pytest.mark.claim("mfu.hfu", "mfu.low-causes")
@fewer
@given(
    batch=sizes(),
    widths=some_widths,
    layers=sizes(0, 4),
    reentrant=st.booleans(),
    seconds=st.floats(0.01, 100),
)
def test_recomputing_all_makes_hfu_four_thirds_of_mfu_and_layers_a_share(
    device, batch, widths, layers, reentrant, seconds
):
    model, hardware = recomputing(device, batch, widths, layers, reentrant)
    products = [2 * batch * m * n for m, n in pairwise(widths)]
    formula = sum(
        linear_step(batch, m, n, recomputed=place < layers)
        for place, (m, n) in enumerate(pairwise(widths))
    )
    equal((formula.model, formula.hardware), (model, hardware), "linear_step")
    should = 3 * sum(products) / seconds / 1e9
    # The factor is 4/3 if all layers are recomputed.
    times = 1 + Fraction(sum(products[:layers]), sum(products)) / 3
    close(mfu(model, seconds, 1e9), should, "mfu")
    close(hfu(model, hardware - model, seconds, 1e9), should * float(times), "hfu")


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
    error = (got - should).abs().max().item()

    at_most(error, 1e-12, "the error of attention by blocks")

    done = int(counter.get_total_flops())
    # Pairs beyond a window count, too.
    model = attention_flops(Attention(1, 1, tokens, width, window=block))
    # The device runs at the share `rate` of its peak.
    peak = 1e6
    seconds = done / (rate * peak)
    mfu_of_model = mfu(model, seconds, peak)
    mfu_of_done = mfu(done, seconds, peak)

    close(mfu_of_done, rate, "the share of the device's peak")

    # The ratio of all pairs of blocks to those on and below the diagonal.
    credited = Fraction(2 * blocks, blocks + 1)
    close(mfu_of_model, float(rate * credited), "mfu")


@pytest.mark.claim("mfu.term-for-kernel")
@fewer
@given(m=sizes(), widths=some_widths)
def test_the_models_flops_are_the_kernels_for_a_single_product_alone(device, m, widths):
    kernel = matmul_flops(m, *widths[:2])
    equal(hfu(kernel, 0, 1.0, 1e6), mfu(kernel, 1.0, 1e6), "hfu of one product")
    model, hardware = recomputing(device, m, widths, 1)
    at_least(hardware, model + 1, "FLOPs of a run's kernels")


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

    equal(ends, [0.21, 0.56, 0.29, 0.46], "ends of large runs, and of those on H100s")

    for run in published_mfu():
        for share in run["mfu"]:
            between(share, 0.21, 0.56, "the MFU of a large run", **run)

    everything = [*large, *(run.mfu for run in published.RUNS)]
    good = sum(percent >= 50 for percent in everything)
    record_figure(f"published: {min(everything)} to {max(everything)} %, {good} reach 50 %")
    at_least(min(everything), 5, "the least published MFU in %")
    between(good, 1, len(everything) - 1, "published runs that reach 50 %")
    at_most(median(large), 50, "the median of large runs in %")

    a100 = [run.mfu >= 50 for run in of_16_bits if run.card == "A100 SXM4 80GB"]
    at_least(sum(a100), len(a100) / 2, "runs on A100s that reach 50 %")


@pytest.mark.claim("mfu.never-near-one")
def test_no_published_run_comes_near_one_and_some_products_do(record_figure):
    runs = [percent / 100 for percent, _ in published.LARGE_RUNS.values()]
    for run in published.RUNS:
        runs += [run.mfu / 100, run.hfu / 100]
    near = {name: round(share, 2) for name, share in shares_of_peak().items() if share > 0.9}
    record_figure(f"training up to {max(runs):.2f}; products above 0.9: {near}")

    at_most(max(runs), 0.9, "the highest published utilisation of training")

    # A GeForce card runs above its nominal clock.
    steady = {name: share for name, share in near.items() if "RTX" not in name}
    equal(steady, {"A100 SXM4 80GB fp32": 0.98, "H20 bf16": 0.96}, "products above 0.9 of the peak")

    for card, dtype in (name.rsplit(" ", 1) for name in steady):
        rows = [
            ACCELERATORS[row.card]
            for row in published.PRODUCTS
            if peak_flop_per_s(ACCELERATORS[row.card], dtype)
        ]
        lowest = min(rows, key=lambda row: peak_flop_per_s(row, dtype) / bandwidth_bytes_per_s(row))
        equal(lowest.label, card, f"the least peak for its bandwidth in {dtype}")


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
    equal(round(peak / 1e12), 67, "the peak of fp32 in TFLOP/s")

    formula = mfu(example_flops, FP32_S, peak)
    record_figure(f"{example_flops / FP32_S:.2e} FLOP/s, {formula:.3f}")
    should = 2 * 16384 * 32768 * 8192
    agree("FLOPs", counted=example_flops, formula=matmul_flops(*EXAMPLE), should=should)
    equal(round(example_flops / 5.4e13, 2), FP32_S, "seconds at 5.4e13 FLOP/s")
    agree("mfu", formula=round(formula, 1), printed=round(5.4e13 / 67e12, 1), should=0.8)


@pytest.mark.claim("mfu.bf16-example", "mfu.fp32-example")
def test_the_product_in_0_03_s_has_a_higher_rate_and_a_lower_share(example_flops, record_figure):
    for name, taken in TAKEN.items():
        card = ACCELERATORS[name]
        (fp32_s, fp32), (bf16_s, bf16) = taken
        for dtype, (seconds, should), clock_mhz in zip(
            ("fp32", "bf16"), taken, card.clocks_mhz, strict=True
        ):
            share = mfu(example_flops, seconds, peak_flop_per_s(card, dtype))
            record_figure(f"{name} {dtype}: {example_flops / seconds:.2e} FLOP/s, {share:.3f}")
            cycles = example_flops / (card.units * FLOP_PER_CLOCK[card.die][dtype])
            close(share, cycles / (clock_mhz * 1e6) / seconds, "mfu", rel=2e-3, dtype=dtype)
            equal(round(share, 2), should, "mfu", dtype=dtype, card=name)

        at_least(fp32_s / bf16_s, 5, "the rate of bf16 over that of fp32")
        assert bf16 < fp32, f"on an {name} bf16 has a share of {bf16}, fp32 one of {fp32}"

    sparse = mfu(example_flops, BF16_S, H100.peaks["bf16"].sparse * 1e12)
    equal(round(sparse, 2), 0.15, "mfu of the sparse peak")


@pytest.mark.claim("mfu.lecture-product-here")
@pytest.mark.timed
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_card_at_hand_reaches_a_tenth_of_its_peak_in_it(
    device, dtype, peak_flop_per_s, record_figure
):
    with Float32Products():
        rate = flop_per_s(device, dtype, *EXAMPLE)
    record_figure(f"{matmul_flops(*EXAMPLE) / rate * 1e3:.1f} ms, {rate / 1e12:.1f} TFLOP/s")
    peak = peak_flop_per_s(dtype)
    if peak is None:
        pytest.skip("no peak of this device is on record")
    # A card at a raised clock exceeds its nominal peak.
    between(mfu(matmul_flops(*EXAMPLE), matmul_flops(*EXAMPLE) / rate, peak), 0.1, 1.2, "mfu")


@pytest.mark.claim("mfu.lecture-product-here")
def test_on_the_card_at_hand_bf16_is_faster_than_fp32_at_it(device, speed):
    with Float32Products():
        speed.assert_slower(
            product(device, "fp32", *EXAMPLE),
            product(device, "bf16", *EXAMPLE),
            "fp32 against bf16",
            at_least=1.2,
        )


@pytest.mark.claim("mfu.bf16-example")
def test_a_well_fed_product_of_bf16_has_no_lower_share_than_one_of_fp32(record_figure):
    fp32, bf16 = (shares_of_peak()[f"{H100.label} {dtype}"] for dtype in ("fp32", "bf16"))
    record_figure(f"measured on another H100: {fp32:.2f} in fp32, {bf16:.2f} in bf16")
    equal((round(fp32, 2), round(bf16, 2)), (0.78, 0.79), "shares of the peak in fp32 and bf16")


@pytest.mark.claim("mfu.higher-if-matmul")
@pytest.mark.parametrize("times", [1, 2])
def test_norms_and_activations_between_the_products_lower_the_utilisation(device, speed, times):
    """Even where their FLOPs count as the model's, their share of the time is larger."""
    # An accelerator's cache cannot contain all of these rows. With so few columns a norm takes long
    # compared with a product.
    rows, dim, dtype = 2**16, 512 * times, torch.bfloat16
    if device.type == "cpu":
        rows, dim, dtype = 128, 64 * times, torch.float32
    x = torch.randn(rows, dim, device=device, dtype=dtype)
    weights = torch.randn(4, dim, dim, device=device, dtype=dtype)

    def products(y=x):
        for weight in weights:
            y = y @ weight

    def mlp(y=x):
        for weight in weights:
            y = nn.functional.gelu(nn.functional.layer_norm(y, (dim,)) @ weight)

    with counted.flops() as dispatched:
        mlp()

    equal(dispatched.total, len(weights) * matmul_flops(rows, dim, dim), "FLOPs of products")

    with_all = (dispatched.total + dispatched.elementwise) / dispatched.total
    at_most(with_all, 1.08, "all FLOPs over those of products")
    speed.assert_slower(
        mlp, products, "products with norms and GELU against products alone", at_least=1.08
    )


@pytest.mark.claim("mfu.low-causes")
def test_a_product_of_little_work_per_byte_lowers_it(device, speed):
    """Bandwidth: the same FLOPs, row by row, fetch the matrix once a row."""
    rows = 32
    dim = 512 if device.type == "cpu" else 4096
    x = torch.rand(rows, dim, device=device)
    weight = torch.rand(dim, dim, device=device)
    what = f"{rows} rows times a matrix, one by one, against all at once"

    speed.assert_slower(
        lambda: [x[i : i + 1] @ weight for i in range(rows)], lambda: x @ weight, what, at_least=1.2
    )


@pytest.mark.claim("mfu.low-causes", "roof.below-is-memory-bound")
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
def test_communication_lowers_it(device, speed, gloo, fresh_process):
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

    *_, process = fresh_process
    with beside_a_second_rank(process, weight.numel()):
        step()
        should = weight.grad + 1
        equal(step_and_all_reduce(), should, "gradients added up")
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
    cards = [name.removesuffix(" fp32") for name in shares if name.endswith("fp32")]
    gains = {card: shares[f"{card} bf16"] / shares[f"{card} fp32"] for card in cards}
    ends = f"{min(shares.values()):.2f} to {max(shares.values()):.2f}"
    record_figure(f"shares of the peak {ends}; gains: {gains}")
    kept = [card for card, gain in gains.items() if abs(gain - 1) < 0.01]
    assert not kept, f"from fp32 to bf16 these cards gain what is promised: {kept}"
    at_least(max(shares.values()), 2 * min(shares.values()), "the highest share")
