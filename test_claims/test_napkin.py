"""Claims about napkin estimates: exact fractions, a simulated run, real tensors, counted FLOPs."""

import math
from datetime import timedelta
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from accounting import devices, planning
from accounting.models import DeepLinear, Transformer, parameter_count
from prooflops import counted
from test_claims.oracles import published, tensors
from test_claims.oracles.kernels import product
from test_claims.oracles.messages import agree, at_least, at_most, between, close, equal
from test_claims.strategies import fewer, sizes

H100 = "NVIDIA H100 80GB HBM3"
# The lecture's: printed with sparsity, halved.
DENSE_PEAK = Fraction(1979 * 10**12, 2)
PARAMETERS = 70 * 10**9
TOKENS = 15 * 10**12
DEVICES = 1024
MFU = Fraction(1, 2)
ONE_DAY_S = int(timedelta(days=1).total_seconds())

ONLY_PRODUCTS = DeepLinear(dim=16, layers=4)
ATTENDING = Transformer(vocab_size=8, layers=2, dim=16, heads=4, hidden=64, tied_embedding=True)

nets = st.builds(DeepLinear, dim=st.integers(1, 16), layers=st.integers(1, 4))


def dispatched_per_token(workloads, net):
    """Parameters of a net, and the FLOPs that torch dispatches to train it on one token."""
    model = workloads.build(net, device="meta")
    with counted.flops() as count:
        model(torch.empty(1, net.inputs, device="meta", requires_grad=True)).sum().backward()
    return sum(parameter.numel() for parameter in model.parameters()), count.total


@pytest.fixture(scope="module")
def flops_per_token(workloads):
    """Of a net of 70e9 parameters."""
    parameters, flops = dispatched_per_token(workloads, DeepLinear(dim=10**5, layers=7))
    equal(round(parameters / 1e9), 70, "billions of parameters")
    return flops


def simulated_days(flops_per_token, tokens, device_count, peak, mfu, stalled_s_per_day=0):
    """Days until a run that trains day by day has seen all its tokens.

    A part of each day it stands still.
    """
    tokens_per_day = device_count * peak * mfu / flops_per_token * (ONE_DAY_S - stalled_s_per_day)
    day = 0
    while tokens > tokens_per_day:
        tokens -= tokens_per_day
        day += 1
    return day + tokens / tokens_per_day


@pytest.mark.claim("napkin.144-days", "napkin.time-formula")
@pytest.mark.parametrize(
    ("peak", "days"),
    [
        (DENSE_PEAK, 144),
        (devices.peak_flop_per_s(H100, "bf16"), 144),
        (132 * 4096 * 1830 * 10**6, 144),
        (2 * DENSE_PEAK, 72),
    ],
    ids=["1979/2", "peak table", "132 SMs of 4096 FLOPs at 1830 MHz", "the sparse peak"],
)
def test_a_70b_model_on_15t_tokens_takes_1024_h100s_144_days(
    flops_per_token, record_figure, peak, days
):
    simulated = simulated_days(flops_per_token, TOKENS, DEVICES, Fraction(peak), MFU)
    formula = planning.training_days(PARAMETERS, TOKENS, DEVICES, float(peak), float(MFU))
    record_figure(f"{formula:.2f} days")
    close(formula, float(simulated), "training_days", rel=1e-5)
    equal(round(formula), days, "training_days, rounded")

    affordable = planning.affordable_flops(formula, DEVICES, float(peak), float(MFU))
    close(affordable, float(TOKENS * flops_per_token), "affordable_flops of these days", rel=1e-5)


@pytest.mark.claim("napkin.ignores", "napkin.time-formula", "napkin.energy-per-token")
@given(
    net=nets,
    tokens=st.integers(1, 10**10),
    peak=st.integers(10**9, 10**18),
    mfu=st.fractions(Fraction(1, 100), 1),
    stalls=st.tuples(*[st.integers(0, 5 * 60 * 60)] * 4),
)
def test_training_days_are_those_of_a_run_that_never_waits(
    workloads, net, tokens, peak, mfu, stalls
):
    """Seconds of each day go to communication, checkpoints, failures and data."""
    parameters, each = dispatched_per_token(workloads, net)
    days = partial(planning.training_days, parameters, tokens, DEVICES, float(peak))
    formula = days(float(mfu))
    run = each, tokens, DEVICES, peak, mfu
    without = float(simulated_days(*run))
    real = float(simulated_days(*run, sum(stalls)))

    close(formula, without, "training_days, in which no stall counts")
    rate = planning.tokens_per_s(parameters, DEVICES, float(peak), float(mfu))
    close(tokens / rate / ONE_DAY_S, formula, "days by tokens_per_s")
    assert real > formula or real == without, f"training_days={formula} is above {real}"

    by_run = days(float(mfu * (1 - Fraction(sum(stalls), ONE_DAY_S))))
    close(by_run, real, "training_days by the MFU of the run")


@pytest.mark.claim("napkin.stalls")
@pytest.mark.parametrize("waits", ["for data", "for its turn"])
def test_a_run_that_waits_takes_longer_than_its_steps_say(workloads, device, speed, waits):
    """The cost here: batches gathered row by row, or a step that queues behind a product."""
    net = DeepLinear(dim=64, layers=2)
    model = workloads.build(net, device=device)
    rows = workloads.inputs(net, 256, device=device)
    others = product(device, "fp32", 256)

    def step(x=rows):
        model(x).square().mean().backward()

    def waiting_step():
        if waits == "for data":
            step(torch.stack(list(rows)))
        else:
            others()
            step()

    what = f"a step that waits {waits} against the step that the estimate counts"
    ratio = speed.assert_slower(waiting_step, step, what)
    parameters = parameter_count(net)
    mfu = 0.5
    _, each = dispatched_per_token(workloads, net)
    # The runs last seconds, days and weeks.
    for steps in (10**6, 10**10, 10**11):
        of_steps = planning.training_days(parameters, 256 * steps, 1, 1e12, mfu)
        of_run = planning.training_days(parameters, 256 * steps, 1, 1e12, mfu / ratio.value)
        close(of_run / of_steps, ratio.value, "days of the run over days of its steps")

        without = float(simulated_days(each, 256 * steps, 1, 10**12, Fraction(mfu)))
        close(of_steps, without, "days without waits")


@pytest.mark.claim("napkin.cost")
@fewer
@given(
    net=nets,
    tokens=st.integers(1, 10**9),
    device_count=sizes(most=10_000),
    cents=sizes(most=999),
    hours=st.fractions(Fraction(1, 10), 99),
)
def test_a_run_costs_the_bill_of_every_hour_of_every_device(
    workloads, net, tokens, device_count, cents, hours
):
    """A bill that is written hour by hour until the FLOPs that torch dispatches are done."""
    parameters, each = dispatched_per_token(workloads, net)
    peak = each * tokens / (hours * 60 * 60 * device_count * MFU)
    left = Fraction(each * tokens)
    bill = Fraction(0)
    while left > 0:
        done = min(left, device_count * peak * MFU * 60 * 60)
        bill += done / (peak * MFU * 60 * 60) * Fraction(cents, 100)
        left -= done
    days = planning.training_days(parameters, tokens, device_count, float(peak), float(MFU))
    formula = planning.training_cost(days, device_count, cents / 100)

    close(formula, float(bill), "training_cost")


@pytest.mark.claim("napkin.energy-per-token")
@given(
    device_count=st.integers(10**3, 10**5),
    mfu=st.fractions(Fraction(1, 5), 1),
    watts=st.integers(1, 2000),
)
def test_joules_per_token_are_the_watts_of_a_simulated_run_over_its_tokens(
    flops_per_token, device_count, mfu, watts
):
    days = simulated_days(flops_per_token, TOKENS, device_count, DENSE_PEAK, mfu)
    joules = float(days * ONE_DAY_S * device_count * watts / TOKENS)
    rate = planning.tokens_per_s(PARAMETERS, device_count, float(DENSE_PEAK), float(mfu))
    close(device_count * watts / rate, joules, "joules per token", rel=1e-5)


@pytest.mark.claim("napkin.energy-per-token")
def test_the_mfu_of_steps_gives_less_energy_than_llamas_card_hours():
    parameters = published.LLAMA3_405B_PARAMETERS
    hours, watts = published.LLAMA3_405B_HOURS_AND_WATTS
    printed = hours * 60 * 60 * watts / published.LLAMA3_405B_TOKENS
    of_steps = [
        watts / planning.tokens_per_s(parameters, 1, float(DENSE_PEAK), mfu) for mfu in (0.43, 0.38)
    ]
    rounded = [round(joules, 1) for joules in (*of_steps, printed)]

    equal(rounded, [4.0, 4.5, 5.0], "joules by the MFU of steps and by the hours")


def goodput(save_s, between_failures_s, every_s, failures=10**6):
    """The useful share of a run that repeats what it did since its last save, at drawn failures."""
    until_failure = np.random.default_rng(0).exponential(between_failures_s, failures)
    return every_s * (until_failure // (every_s + save_s)).sum() / until_failure.sum()


@pytest.mark.claim("napkin.goodput")
@given(save_s=st.floats(1, 600), rarity=st.floats(1e3, 1e5))
def test_a_run_loses_least_when_it_saves_every_root_of_2_save_s_mtbf(save_s, rarity):
    mtbf = rarity * save_s
    best_s = math.sqrt(2 * save_s * mtbf)
    kept = {factor: goodput(save_s, mtbf, factor * best_s, 10**5) for factor in (0.8, 1, 1.25)}
    equal(kept[1], max(kept.values()), "the most that is kept", kept=kept)

    lost = (1 - kept[1]) / math.sqrt(2 * save_s / mtbf)
    between(lost, 0.97, 1.02, "the loss over the root of 2 · save time / MTBF")

    every_s = best_s * np.geomspace(0.5, 2, 1001)
    mean_kept = every_s / np.expm1((every_s + save_s) / mtbf)
    best = every_s[mean_kept.argmax()]
    close(best, best_s, "the best interval in s", rel=0.02)


@pytest.mark.claim("napkin.goodput")
def test_where_saving_is_slow_the_rule_saves_too_seldom():
    by_rule = goodput(0.5, 1.0, 1.0)
    sooner = goodput(0.5, 1.0, 0.7)
    at_least(sooner, 1.02 * by_rule, "the share that saving sooner keeps")


def optimal_ratio(fit, flops):
    """Tokens per parameter at the least loss A/N^alpha + B/D^beta with 6ND = `flops`, by search."""
    a, b, alpha, beta = published.LOSSES[fit]
    parameters = np.geomspace(1e6, 1e15, 10**4)
    loss = a / parameters**alpha + b * (6 * parameters / flops) ** beta
    return flops / 6 / parameters[loss.argmin()] ** 2


@pytest.mark.claim("napkin.chinchilla-20")
@pytest.mark.parametrize(
    ("approach", "least", "most"),
    [
        ("1", 20, 22.4),
        ("2", 19.2, 29.2),
        ("3", 23, 143),
    ],
)
def test_all_but_the_third_table_have_about_20_tokens_per_parameter(approach, least, most):
    table = published.COMPUTE_OPTIMAL[approach]
    for parameters, flops, tokens in table:
        formula = planning.rule_flops("step", int(parameters), int(tokens))
        close(formula, flops, "6ND", rel=0.05)
    ratios = [tokens / parameters for parameters, _, tokens in table]
    ends = [float(f"{end(ratios):.3g}") for end in (min, max)]
    equal(ends, [least, most], "least and most tokens per parameter")


@pytest.mark.claim("napkin.chinchilla-20")
@given(log_flops=st.floats(19, 26))
def test_the_corrected_fit_alone_gives_about_20_tokens_per_parameter(log_flops):
    corrected = optimal_ratio("besiroglu-2024", 10**log_flops)
    printed = optimal_ratio("chinchilla-2022", 10**log_flops)
    between(corrected, 15, 25, "tokens per parameter of the corrected fit")
    at_least(printed, 25, "tokens per parameter of the printed one")


@pytest.mark.claim("napkin.8h100-2weeks", "napkin.4.7e21")
def test_eight_h100s_give_4_79e21_flops_in_one_week_and_9_58e21_in_two(record_figure):
    literal = 8 * (60 * 60 * 24 * 7) * DENSE_PEAK
    for weeks, printed in ((1, "4.79e+21"), (2, "9.58e+21")):
        exact = 8 * int(timedelta(weeks=weeks).total_seconds()) * DENSE_PEAK
        formula = planning.affordable_flops(7 * weeks, 8, float(DENSE_PEAK))
        record_figure(f"{weeks} week(s): {formula:.3e} FLOPs")
        close(formula, float(exact), "affordable_flops", weeks=weeks)
        equal(f"{formula:.2e}", printed, "affordable_flops, rounded", weeks=weeks)
        equal(literal == exact, weeks == 1, "8·(60·60·24·7)·peak is right", weeks=weeks)
    sparse = planning.affordable_flops(7, 8, 1979e12)
    equal(sparse, formula, "affordable_flops in one week at the sparse peak")


@pytest.mark.claim("napkin.six-across-run")
@fewer
@given(net=nets, batches=st.lists(sizes(), min_size=1, max_size=3))
def test_six_n_d_is_the_products_of_a_whole_run(workloads, device, net, batches):
    model = workloads.build(net, device=device)
    stepper = torch.optim.SGD(model.parameters(), lr=1e-3)
    with counted.flops() as count:
        for batch in batches:
            x = workloads.inputs(net, batch, device=device).requires_grad_()
            model(x).square().mean().backward()
            stepper.step()
            stepper.zero_grad()
    formula = planning.rule_flops("step", parameter_count(net), sum(batches))

    equal(formula, count.total, "6ND")


@pytest.mark.claim("napkin.six-across-run")
@pytest.mark.parametrize(
    "beyond", ["optimizer", "attention", "recomputation", "data without a gradient"]
)
def test_six_n_d_leaves_out(workloads, device, record_figure, beyond):
    net, batch, sequence = ONLY_PRODUCTS, 8, 1
    if beyond == "attention":
        net, batch, sequence = ATTENDING, 1, 6 * ATTENDING.dim
    checkpoint_every = 2 if beyond == "recomputation" else 0
    model = workloads.build(net, device=device, checkpoint_every=checkpoint_every)
    x = workloads.inputs(net, batch, sequence, device=device)
    if beyond in ("optimizer", "recomputation"):
        x.requires_grad_()
    with sdpa_kernel(SDPBackend.MATH), counted.flops() as count:
        model(x).square().mean().backward()
    with counted.flops() as step:
        torch.optim.AdamW(model.parameters(), foreach=False).step()
    used = count.total + (step.elementwise if beyond == "optimizer" else 0)
    n = parameter_count(net)
    rule = planning.rule_flops("step", n, batch * sequence)
    record_figure(f"with {beyond}: {used / rule:.2f} x 6ND")
    layer = 2 * batch * net.dim**2
    # 6ND counts the weights of norms too.
    norms = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    attention = 3 * net.layers * 2 * 2 * sequence**2 * net.dim - 6 * norms * sequence
    least, most = {
        # Adam's operations, two in one or each alone.
        "optimizer": (8 * n, 14 * n),
        "attention": (attention, attention),
        "data without a gradient": (-layer, -layer),
        # The first of each two layers: the second is stopped early.
        "recomputation": (2 * layer, 2 * layer),
    }[beyond]

    between(used - rule, least, most, "FLOPs beyond 6ND")


@cache
def held_per_parameter(workloads, device, dtype, optimizer):
    """Bytes a parameter of a real net: weights, gradients, optimizer state, activations."""
    net = DeepLinear(dim=32, layers=2)
    model = workloads.build(net, device=device, dtype=dtype)
    x = workloads.inputs(net, 4, device=device).to(dtype)
    stepper = optimizer(model.parameters())
    tensors.train(model, stepper, x)
    held = [
        tensors.parameter_bytes(model),
        tensors.gradient_bytes(model),
        tensors.state_bytes(stepper),
        tensors.graph_bytes(device, lambda: model(x)),
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return [Fraction(part, parameters) for part in held]


IN_40B = pytest.mark.claim("napkin.40b")
IN_53B = pytest.mark.claim("napkin.53b")
FP32 = torch.float32
BF16 = torch.bfloat16
ADAMW = partial(tensors.RecipeAdamW, gradients=BF16)
WIDE_STATE = partial(ADAMW, state=FP32, master=None)
ALL_IN_BF16 = partial(ADAMW, state=BF16, master=None)
WIDE_MASTER = partial(ADAMW, state=FP32, master=FP32)


@pytest.mark.parametrize(
    ("recipe", "optimizer", "memory", "printed"),
    [
        pytest.param("fp32", torch.optim.AdamW, 80 * 10**9, "40.0e9", marks=IN_40B),
        pytest.param("fp32", torch.optim.AdamW, 80 * 2**30, "42.9e9", marks=IN_40B),
        pytest.param("bf16-fp32-state", WIDE_STATE, 80 * 10**9, "53.3e9", marks=IN_53B),
        pytest.param("bf16", ALL_IN_BF16, 80 * 10**9, "80.0e9", marks=IN_53B),
        pytest.param("bf16-fp32-master", WIDE_MASTER, 80 * 10**9, "40.0e9", marks=IN_53B),
    ],
)
def test_eight_h100s_hold_by_what_they_shard(
    workloads, metered_device, recipe, optimizer, memory, printed
):
    dtype = FP32 if recipe == "fp32" else BF16
    *held, activations = held_per_parameter(workloads, metered_device, dtype, optimizer)
    # Shards none of them, the optimizer state, gradients as well, parameters as well.
    for stage, named in enumerate(2 * ["adamw", torch.optim.AdamW]):
        each = sum(held[: 3 - stage]) + sum(held[3 - stage :]) / 8
        formula = planning.largest_model_parameters(
            memory, devices=8, zero_stage=stage, optimizer=named, recipe=recipe
        )

        close(formula, float(memory / each), "largest_model_parameters", rel=1e-9, stage=stage)
    equal(f"{formula / 1e9:.1f}e9", printed, "largest_model_parameters, rounded")

    room = float(memory / (each + activations))
    at_most(room, 0.95 * formula, "parameters that fit beside activations")


@pytest.mark.claim("napkin.40b", "napkin.per-device")
@given(device_count=st.integers(1, 1024))
@example(device_count=1)
def test_plain_data_parallel_holds_5e9_however_many_devices_there_are(
    workloads, metered_device, device_count
):
    *held, _ = held_per_parameter(workloads, metered_device, FP32, torch.optim.AdamW)
    formula = planning.largest_model_parameters(80 * 10**9, device_count, zero_stage=0)
    agree("parameters", formula=formula, held=80 * 10**9 / sum(held), should=5 * 10**9)
    sharded = planning.largest_model_parameters(80 * 10**9, devices=device_count)
    equal(sharded, device_count * formula, "parameters of all devices")
