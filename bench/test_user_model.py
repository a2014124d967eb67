"""The time of one training step of the model that `--model` names; not collected without that option."""

from typing import Any

import pytest

from accounting import counted, measured
from accounting.roofline import Work
from bench.ceilings import Ceilings
from bench.products import DTYPES, Unsupported, product
from bench.rates import judged

ROUNDS_AGAIN = 15


def ceiling_of(ceilings: Ceilings, dtype: str) -> float | None:
    """The machine's best measured rate; None for a dtype in which it multiplies no matrices."""
    try:
        return ceilings.flop_per_s(dtype)
    except Unsupported:
        return None


def test_training_step(user_model, benchmark, measure, ceilings, bandwidths, device, peak_flop_per_s, bound_flop_per_s):
    flops, instance = user_model.flops, user_model.fresh()
    formats = [dtype for dtype in flops.by_dtype if dtype in DTYPES]
    instance.step()  # the first step may create the optimizer's state
    with counted.flops() as count:
        instance.step()
    assert count.total == flops.executed + flops.update, (
        f"{flops.executed + flops.update} FLOPs a step are declared, but {count.total} were counted"
    )
    seconds = measure.median_s(instance.step, flops=flops.executed, moved_bytes=flops.moved_bytes)

    def recorded(seconds: float, spread: float, rounds: int) -> Any:
        return user_model.record_step(
            seconds=seconds,
            spread=spread,
            rounds=rounds,
            peak_flop_per_s={dtype: peak_flop_per_s(dtype) for dtype in formats},
            ceiling_flop_per_s={dtype: ceiling_of(ceilings, dtype) for dtype in formats},
            bytes_per_s=bandwidths.bytes_per_s(0.5),  # as of a copy, half of it reads
        )

    step = recorded(seconds, benchmark.stats["iqr"] / seconds, benchmark.stats["rounds"])
    measure.declare(flop_per_s=flops.model / seconds, mfu=step.mfu, share_of_ceiling=step.share_of_ceiling)
    if user_model.unknown and not measure.brief:  # once more, and the ceilings' products, of which the faster counts
        for dtype in (dtype for dtype, ceiling in step.ceiling_flop_per_s.items() if ceiling):
            case = product(dtype, *ceilings.found(dtype).shape, device)
            ceilings.remeasure(dtype, case.multiply, case.work.flops)
        again = measured.time(instance.step, device, warmup=2, rounds=ROUNDS_AGAIN)
        recorded(again.median_s, again.spread, ROUNDS_AGAIN)
    for dtype in formats:
        products = Work(flops.by_dtype[dtype], 0)
        judged(products, seconds, dtype, f"{dtype} products of a step", flop_bound=bound_flop_per_s(dtype))


@pytest.mark.claim_of_model("mfu.hfu")
def test_what_is_recomputed_counts_for_hfu_alone(user_model, record_figure, does_not_apply):
    step = user_model.step
    if step is None or step.mfu_of_ceiling is None:
        pytest.skip("the step has no rate on this machine")
    if not step.flops.recomputed:
        does_not_apply("nothing is recomputed")
    record_figure(f"MFU {step.mfu_of_ceiling:.1%}, HFU {step.share_of_ceiling:.1%} of own ceiling")
    assert step.share_of_ceiling > step.mfu_of_ceiling, (
        f"HFU={step.share_of_ceiling}, but should be above MFU={step.mfu_of_ceiling} "
        f"[{step.flops.recomputed} of {step.flops.executed} FLOPs are recomputed]"
    )


@pytest.mark.claim_of_model("mfu.never-near-one")
def test_a_training_step_stays_below_an_mfu_of_nine_tenths(user_model, record_figure):
    step = user_model.step
    if step is None or step.mfu is None:
        pytest.skip("the vendor's peak for its products is not on record")
    record_figure(f"MFU {step.mfu:.1%}")
    assert step.mfu < 0.9, f"the step has an MFU of {step.mfu:.3f}, but should be below 0.9"
