"""The time of one training step of the model that `--model` names.

It is not collected without that option.
"""

from accounting.models import RULES
from accounting.roofline import Work
from bench.products import DTYPES
from bench.rates import judged
from bench.step_rates import StepRates


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
    flops, step = user_model.flops, user_model.instance.step
    for phase in RULES:
        assert not flops.unexplained(phase), f"parts do not sum to {phase=}: {flops.parts}"
    seconds = measure.median_s(step, flops=flops.executed, moved_bytes=flops.moved_bytes)
    rates = StepRates(user_model, device, ceilings, bandwidths, peak_flop_per_s, conditions)
    spread, rounds = benchmark.stats["iqr"] / seconds, benchmark.stats["rounds"]
    known = rates.record(seconds, spread, rounds, measure.info["conditions"].get("labels", ()))
    measure.declare(
        flop_per_s=flops.model / seconds, mfu=known.mfu, share_of_ceiling=known.hfu_of_ceiling
    )
    if not measure.brief:
        rates.measure_until_known(step)
    for dtype in (dtype for dtype in flops.by_dtype if dtype in DTYPES):
        products = Work(flops.by_dtype[dtype], 0)
        judged(
            products,
            seconds,
            dtype,
            f"{dtype} products of a step",
            flop_bound=bound_flop_per_s(dtype),
        )
