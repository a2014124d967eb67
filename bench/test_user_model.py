"""The time of one training step of the model that `--model` names.

It is not collected without that option.
"""

from accounting.models import RULES
from accounting.roofline import Work
from bench.products import DTYPES, Unsupported
from bench.rates import judged


def test_training_step(
    user_model,
    benchmark,
    measure,
    ceilings,
    bandwidths,
    floors,
    peak_flop_per_s,
    bound_flop_per_s,
):
    flops, step = user_model.flops, user_model.instance.step
    for phase in RULES:
        assert not flops.unexplained(phase), f"parts do not sum to {phase=}: {flops.parts}"
    seconds = measure.median_s(step, flops=flops.executed, moved_bytes=flops.moved_bytes)
    formats = [dtype for dtype in flops.by_dtype if dtype in DTYPES]
    clock_mhz = measure.info["conditions"].get("during", {}).get("clock_mhz")

    def peak_of(dtype):
        """The dense peak on record; a CPU without one has the peak of its units."""
        units = clock_mhz and floors.at_clock(dtype, clock_mhz * 1e6)
        return peak_flop_per_s(dtype) or floors.nominal("peak", dtype, units)

    known = user_model.record_step(
        seconds=seconds,
        spread=benchmark.stats["iqr"] / seconds,
        rounds=benchmark.stats["rounds"],
        labels=tuple(measure.info["conditions"].get("labels", ())),
        peak_flop_per_s={dtype: peak_of(dtype) for dtype in formats},
        ceiling_flop_per_s={dtype: ceiling_of(ceilings, dtype) for dtype in formats},
        # Half of the bytes are reads, as in a copy.
        bytes_per_s=bandwidths.bytes_per_s(0.5),
    )
    measure.declare(
        flop_per_s=flops.model / seconds, mfu=known.mfu, share_of_ceiling=known.hfu_of_ceiling
    )
    for dtype in formats:
        products = Work(flops.by_dtype[dtype], 0)
        judged(
            products,
            seconds,
            dtype,
            f"{dtype} products of a step",
            flop_bound=bound_flop_per_s(dtype),
        )


def ceiling_of(ceilings, dtype):
    try:
        return ceilings.flop_per_s(dtype)
    except Unsupported:
        return None
