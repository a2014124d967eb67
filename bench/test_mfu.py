"""The MFU that well-written training steps must reach on a card. Not yet run on a real card."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import pytest

from accounting.roofline import Work, mfu
from bench.test_training import assert_loss_falls, joules_per_token
from bench.well_written import (
    NETS,
    Batch,
    WellWrittenStep,
    largest_batch,
    predicted_peak_bytes,
)

# A net takes half a minute to compile; a short run has the time for one.
QUICK_NETS = ("gpt2-124m",)


@pytest.mark.needs("cuda", "sm>=8.0", "c++")
@pytest.mark.parametrize("net", NETS)
def test_mfu(net, device, pace, sizing, ceilings, peak_flop_per_s, measure, delivery):
    if measure.brief:
        pytest.skip("the gate does not compile: compiling would use up its time budget")
    if pace == "quick" and net not in QUICK_NETS:
        pytest.skip(f"--quick compiles only {', '.join(QUICK_NETS)}")
    model, sequence = NETS[net]
    size = largest_batch(
        sizing.room_bytes(), lambda batch: predicted_peak_bytes(model, batch, sequence, device)
    )
    if not size:
        pytest.skip("even one sequence is predicted to exceed the free memory")
    batch = Batch(model, size, sequence)
    began = perf_counter()
    step = WellWrittenStep(batch, device)
    # The first step compiles.
    float(step())
    measure.declare(compile_s=perf_counter() - began, batch=size, tokens=batch.tokens)
    assert_loss_falls(step)
    flops, peak = batch.model_flops, peak_flop_per_s("bf16")
    # Held against a ceiling that any step exceeds, so that the clock settles under it.
    seconds = measure.work(
        step,
        Work(flops, 0),
        dtype="bf16",
        inputs=(step.tokens,),
        launch=False,
        counted=False,
        ceiling=flops,
    )
    measure.declare(
        tokens_per_s=batch.tokens / seconds,
        joules_per_token=joules_per_token(measure.info, batch.tokens),
        model_flops=flops,
        peak_flop_per_s=peak,
        mfu=mfu(flops, seconds, peak),
    )
    ceiling = partial(ceilings.flop_per_s, "bf16")
    delivery.check(
        f"mfu {net}", flops, "FLOP/s", step, seconds=seconds, dtype="bf16", ceiling=ceiling
    )
