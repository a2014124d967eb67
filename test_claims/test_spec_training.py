"""Claims about published training runs: their FLOPs, and the thresholds of laws."""

from datetime import date

import pytest

from accounting import planning
from accounting.devices import ACCELERATORS, peak_flop_per_s
from accounting.models import active_parameter_count, forward_flops, parameter_count, rule_flops
from test_claims.oracles import published
from test_claims.oracles.messages import at_least, between, close, equal


@pytest.mark.claim("spec.gpt3")
@pytest.mark.parametrize("model", published.GPT3_FAMILY, ids=lambda model: model.name)
def test_six_n_d_gives_the_flops_that_the_paper_prints_for_each_gpt_3(model):
    formula = rule_flops("step", model.millions * 10**6, published.GPT3_TOKENS)
    close(formula, float(model.flops), "6ND", rel=0.005)
    days = formula / (1e15 * 24 * 60 * 60)

    close(days, float(model.petaflop_s_days), "petaflop/s-days", rel=0.01)


@pytest.mark.claim("spec.gpt3")
def test_the_shape_of_gpt_3_has_the_parameters_that_the_paper_prints():
    formula = parameter_count(published.GPT3_SHAPE)
    equal(round(formula / 1e6, -2), published.GPT3.millions, "millions of parameters")
    rounded = rule_flops("step", 175 * 10**9, published.GPT3_TOKENS)
    equal(rounded, 315 * 10**21, "6ND of rounded numbers")


@pytest.mark.claim("spec.gpt3-323")
def test_323_flops_do_not_even_make_one_token_and_3_14e23_make_the_run():
    one_token = forward_flops(published.GPT3_SHAPE, batch=1, sequence=1)
    active = active_parameter_count(published.GPT3_SHAPE)
    assert one_token > 323, f"one token forward takes {one_token} FLOPs"
    at_least(one_token, 2 * 0.99 * active, "FLOPs of one token")
    total = 3 * one_token * published.GPT3_TOKENS
    close(total, float(published.GPT3.flops), "FLOPs of a run", rel=0.005)


@pytest.mark.claim("spec.gpt4")
def test_the_estimate_for_gpt_4_follows_from_the_reported_run():
    estimate = published.TRAINING["GPT-4"]
    peak = peak_flop_per_s(ACCELERATORS["A100 SXM4 80GB"], "bf16")
    least, most = (
        planning.affordable_flops(days, published.GPT4_DEVICES, peak, mfu)
        for days, mfu in zip(published.GPT4_DAYS, published.GPT4_MFU, strict=True)
    )
    assert estimate.estimated, "GPT-4's FLOPs are unpublished"
    between(estimate.flops, least, most, "the estimate")
    equal(f"{estimate.flops:.0e}", "2e+25", "the estimate, rounded")


@pytest.mark.claim("spec.us-eo")
def test_the_us_order_set_1e26_operations_of_any_kind_and_is_revoked():
    order, state = (published.THRESHOLDS[law] for law in ("US order", "California"))
    got = order.operations, state.operations, order.of_biological_data, order.counts_integers
    equal(got, (1e26, 1e26, 1e23, True), "operations, of biological data, and of integers too")

    got = order.applies, order.until, state.applies
    should = date(2023, 10, 30), date(2025, 1, 20), date(2026, 1, 1)
    equal(got, should, "days of the order, its end and California's law")


@pytest.mark.claim("spec.eu-ai-act")
def test_the_eu_ai_act_presumes_systemic_risk_from_1e25_and_applies():
    act = published.THRESHOLDS["EU AI Act"]

    equal((act.operations, act.counts_integers), (1e25, False), "operations, and of integers too")
    in_force = [act.in_force(date(2025, 8, day)) for day in (1, 2)]
    equal(in_force, [False, True], "in force on 1 and 2 August 2025")


@pytest.mark.claim("spec.thresholds-v-models")
def test_gpt_3_is_below_both_thresholds_and_gpt_4_between_them():
    eu, us = (published.THRESHOLDS[law].operations for law in ("EU AI Act", "US order"))
    gpt3 = rule_flops("step", parameter_count(published.GPT3_SHAPE), published.GPT3_TOKENS)
    gpt4 = published.TRAINING["GPT-4"].flops
    assert gpt3 < eu < gpt4 < us, f"{gpt3:.2e} < {eu:.0e} < {gpt4:.1e} < {us:.0e} should hold"
    close(published.TRAINING["GPT-3"].flops, gpt3, "FLOPs of GPT-3", rel=0.005)

    llama = rule_flops("step", published.LLAMA3_405B_PARAMETERS, published.LLAMA3_405B_TOKENS)
    close(llama, published.TRAINING["Llama 3.1 405B"].flops, "6ND of Llama", rel=0.01)
    between(llama, eu, us, "6ND of Llama")
