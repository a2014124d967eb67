"""The time of one training step of the model that `--model` names; not collected without that
option.
"""

import pytest

from accounting.roofline import Work
from bench.products import DTYPES
from bench.rates import judged
from bench.step_rates import StepRates
from prooflops import counted


def test_training_step(
    user_model,
    benchmark,
    measure,
    ceilings,
    bandwidths,
    device,
    peak_flop_per_s,
    bound_flop_per_s,
    conditions,
):
    flops, instance = user_model.flops, user_model.instance
    with counted.flops() as count:
        instance.step()
    assert count.total == flops.executed + flops.update, (
        f"{flops.executed + flops.update} FLOPs a step are declared, but {count.total} were counted"
    )
    seconds = measure.median_s(instance.step, flops=flops.executed, moved_bytes=flops.moved_bytes)
    rates = StepRates(user_model, device, ceilings, bandwidths, peak_flop_per_s, conditions)
    spread, rounds = benchmark.stats["iqr"] / seconds, benchmark.stats["rounds"]
    step = rates.record(seconds, spread, rounds, measure.info["conditions"].get("labels", ()))
    measure.declare(
        flop_per_s=flops.model / seconds, mfu=step.mfu, share_of_ceiling=step.share_of_ceiling
    )
    if not measure.brief:
        rates.measure_until_known(instance.step)
    for dtype in (dtype for dtype in flops.by_dtype if dtype in DTYPES):
        products = Work(flops.by_dtype[dtype], 0)
        judged(
            products,
            seconds,
            dtype,
            f"{dtype} products of a step",
            flop_bound=bound_flop_per_s(dtype),
        )


@pytest.mark.claim_of_model("mfu.hfu")
def test_what_is_recomputed_counts_for_hfu_alone(user_model, record_figure, does_not_apply):
    step = user_model.step
    if step is None or step.mfu_of_ceiling is None:
        pytest.skip("the step has no rate on this machine")
    if not step.flops.recomputed:
        does_not_apply("nothing is recomputed")
    if not user_model.unknown:
        record_figure(
            f"MFU {step.mfu_of_ceiling:.1%}, HFU {step.share_of_ceiling:.1%} of own ceiling"
        )
    assert step.share_of_ceiling > step.mfu_of_ceiling, (
        f"HFU={step.share_of_ceiling}, but should be above MFU={step.mfu_of_ceiling} "
        f"[{step.flops.recomputed} of {step.flops.executed} FLOPs are recomputed]"
    )


@pytest.mark.claim_of_model("mfu.never-near-one")
def test_a_training_step_stays_below_an_mfu_of_nine_tenths(user_model, record_figure):
    step = user_model.step
    if step is None or step.mfu is None:
        pytest.skip("the vendor's peak for its products is not on record")
    if user_model.unknown:
        pytest.skip(f"the MFU of the step is not known: {user_model.unknown}")
    record_figure(f"MFU {step.mfu:.1%}")
    assert step.mfu < 0.9, f"the step has an MFU of {step.mfu:.3f}, but should be below 0.9"
