"""What models took to train, and the thresholds that laws set."""

from datetime import date, timedelta

import pytest

from accounting import planning
from accounting.devices import ACCELERATORS, peak_flop_per_s
from accounting.models import active_parameter_count, forward_flops, parameter_count, rule_flops
from test_claims.oracles import published


@pytest.mark.claim("spec.gpt3")
@pytest.mark.parametrize("model", published.GPT3_FAMILY, ids=lambda model: model.name)
def test_six_n_d_gives_the_flops_that_the_paper_prints_for_each_gpt_3(model):
    formula = rule_flops("step", model.millions * 10**6, published.GPT3_TOKENS)
    assert formula == pytest.approx(float(model.flops), rel=0.005), (
        f"6ND={formula:.3e}, but printed is {model.flops}"
    )
    days = formula / (1e15 * 24 * 60 * 60)
    printed = float(model.petaflop_s_days)
    assert days == pytest.approx(printed, rel=0.01), (
        f"that is {days:.3g} PF-days, but printed are {printed}"
    )


@pytest.mark.claim("spec.gpt3")
def test_the_shape_of_gpt_3_has_the_parameters_that_the_paper_prints():
    formula = parameter_count(published.GPT3_SHAPE)
    assert round(formula / 1e6, -2) == published.GPT3.millions, (
        f"{formula} parameters, but printed are 174,600 million"
    )
    rounded = rule_flops("step", 175 * 10**9, published.GPT3_TOKENS)
    assert rounded == 315 * 10**21, f"6 · 175e9 · 300e9 = {rounded:.3e}, but should be 3.15e23"


@pytest.mark.claim("spec.gpt3-323")
def test_323_flops_do_not_even_make_one_token_and_3_14e23_make_the_run():
    one_token = forward_flops(published.GPT3_SHAPE, batch=1, sequence=1)
    assert one_token > 323, (
        f"one token forward takes {one_token:.3g} FLOPs, but should take more than 323"
    )
    assert one_token > 2 * 0.99 * active_parameter_count(published.GPT3_SHAPE), (
        f"one token takes {one_token} FLOPs"
    )
    total = 3 * forward_flops(published.GPT3_SHAPE, batch=1, sequence=1) * published.GPT3_TOKENS
    printed = float(published.GPT3.flops)
    assert total == pytest.approx(printed, rel=0.005), (
        f"a run takes {total:.3e} FLOPs, but printed are {printed:.3e}"
    )


@pytest.mark.claim("spec.gpt4")
def test_the_estimate_for_gpt_4_follows_from_the_reported_run():
    estimate = published.TRAINING["GPT-4"]
    peak = peak_flop_per_s(ACCELERATORS["A100 SXM4 80GB"], "bf16")
    least, most = (
        planning.affordable_flops(days, published.GPT4_DEVICES, peak, mfu)
        for days, mfu in zip(published.GPT4_DAYS, published.GPT4_MFU, strict=True)
    )
    assert estimate.estimated, (
        "GPT-4's FLOPs are unpublished: the table should mark them as an estimate"
    )
    assert least < estimate.flops < most, (
        f"{estimate.flops:.2g} should be between {least:.3g} and {most:.3g} FLOPs"
    )
    assert f"{estimate.flops:.0e}" == "2e+25", (
        f"the estimate is {estimate.flops}, but should round to 2e25"
    )


@pytest.mark.claim("spec.us-eo")
def test_the_us_order_set_1e26_operations_of_any_kind_and_is_revoked():
    order, state = (published.THRESHOLDS[law] for law in ("US order", "California"))
    got = order.operations, order.of_biological_data, order.counts_integers
    assert got == (1e26, 1e23, True), (
        f"operations, those of biological data and of integers too: {got}"
    )
    first, last = date(2023, 10, 30), date(2025, 1, 19)
    of_state = date(2026, 1, 1)
    day = timedelta(days=1)
    days = [first - day, first, last, last + day, of_state - day, of_state]
    got = [(order.in_force(each), state.in_force(each)) for each in days]
    neither = (False, False)
    should = [neither, (True, False), (True, False), neither, neither, (False, True)]
    assert got == should, (
        f"the order and California's law are in force: {got}, but should be {should}"
    )
    assert state.operations == order.operations, (
        f"{state.operations} should be the order's {order.operations}"
    )


@pytest.mark.claim("spec.eu-ai-act")
def test_the_eu_ai_act_presumes_systemic_risk_from_1e25_and_applies():
    act = published.THRESHOLDS["EU AI Act"]
    got = (
        act.operations,
        act.counts_integers,
        act.in_force(date(2025, 8, 1)),
        act.in_force(date(2025, 8, 2)),
    )
    assert got == (1e25, False, False, True), (
        f"operations, integers too, in force on 1 and 2 August 2025: {got}"
    )


@pytest.mark.claim("spec.thresholds-v-models")
def test_gpt_3_is_below_both_thresholds_and_gpt_4_between_them():
    eu, us = (published.THRESHOLDS[law].operations for law in ("EU AI Act", "US order"))
    gpt3 = rule_flops("step", parameter_count(published.GPT3_SHAPE), published.GPT3_TOKENS)
    gpt4 = published.TRAINING["GPT-4"].flops
    assert gpt3 < eu < gpt4 < us, f"{gpt3:.2e} < {eu:.0e} < {gpt4:.1e} < {us:.0e} should hold"
    assert published.TRAINING["GPT-3"].flops == pytest.approx(gpt3, rel=0.005), (
        "the printed FLOPs should be 6ND"
    )
    llama = rule_flops("step", published.LLAMA3_405B_PARAMETERS, published.LLAMA3_405B_TOKENS)
    printed = published.TRAINING["Llama 3.1 405B"].flops
    assert llama == pytest.approx(printed, rel=0.01), f"6ND={llama:.2e}, but printed is {printed}"
    assert eu < llama < us, f"{llama:.2e} should be between {eu:.0e} and {us:.0e}"
