"""Training steps per dtype: eager, compiled, accumulated and checkpointed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import pytest
import torch

from accounting.flops import StepFlops
from accounting.roofline import Work, hfu, mfu
from bench.ceilings import Ceilings
from bench.measuring import Measure
from bench.products import Unsupported, product, product_bytes
from bench.rates import shares_of
from bench.training import ON_CPU, PARTS, RECIPES, Step, Workload, workload
from prooflops import counted, timing
from prooflops.memory import measured_memory

MODELS = tuple(ON_CPU)
# A busy card takes it in 0.1 s; its counter moves every 20 to 100 ms.
LEAST_JOULES = 50.0
# Undisturbed, a step of small operators takes up to 3 times as long as at the ceiling.
SMALL_OPERATORS = 3.0
STEPS_UNTIL_IT_LEARNS = 5
# A loss that falls by less may do so by chance; the scaler of fp16 skips two of the five steps.
LEAST_FALL = 0.01
PARTS_TIMED = {"quick": 5, "default": 10, "thorough": 30}
MICRO_BATCHES = 4
# Difference between the gradients of micro-batches and of the whole batch: fp32, a thousand terms.
ACCUMULATED_TOLERANCE = 1e-4
# The recipe that most train in; each takes some 20 s to compile on a GPU.
COMPILED_BY_DEFAULT = "bf16"
COMPILED_TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 2e-2, "fp16": 1e-2}
# The step that every device runs, whatever compiler and dtypes it has.
SIMPLEST_TRANSFORMER = ("transformer", "fp32", "eager")
# The lecture's own example: (16384, 32768) by (32768, 8192).
LECTURE = (16384, 32768, 8192)

# The loss of a first step, and the work of one.
Examined = tuple[float, Work]


def assert_it_learns(step: Step) -> float:
    """The first loss of some steps on one batch, whose gradients must be finite."""
    for gradient in step.gradients():
        assert bool(gradient.isfinite().all()), (
            f"a gradient of {tuple(gradient.shape)} should be finite, but is not"
        )
    return assert_loss_falls(step)


def assert_loss_falls(step: Callable[[], torch.Tensor]) -> float:
    """The first loss of some steps on one batch; the last must be lower."""
    losses = [float(step()) for _ in range(STEPS_UNTIL_IT_LEARNS)]
    assert losses[-1] <= (1 - LEAST_FALL) * losses[0], (
        f"the loss on one batch should fall by {LEAST_FALL:.0%}, but went {losses}"
    )
    return losses[0]


def counted_work(step: Step, expected_flops: int) -> Work:
    """The FLOPs of a step, by formula as counted, and the bytes its operators read and write."""
    with counted.flops() as count:
        step()
    assert count.step.hardware == expected_flops, (
        f"the formula says {expected_flops} FLOPs per step, but {count.step.hardware} were counted"
    )
    return Work(expected_flops, count.moved_bytes)


def record_rates(
    measure: Measure,
    work: Workload,
    step: Step,
    flops: StepFlops,
    seconds: float,
    ceilings: Ceilings,
    peak: float | None,
) -> None:
    """Tokens per second, MFU and HFU, and the same shares of this machine's best rate."""
    model, hardware = flops.model, flops.hardware
    shares = shares_of(step, Work(hardware, 0), seconds, step.recipe, ceilings, peak)
    measure.declare(**shares)
    measure.declare(
        tokens_per_s=work.tokens / seconds,
        joules_per_token=joules_per_token(measure.info, work.tokens),
        model_flops=model,
        mfu=mfu(model, seconds, peak),
        hfu=hfu(model, hardware - model, seconds, peak),
        model_share_of_ceiling=model / seconds / shares["ceiling_flop_per_s"],
    )


def joules_per_token(info: dict[str, Any], tokens: int) -> float | None:
    """The card's energy over the rounds, per token.

    None without a counter, or where the rounds are too short.
    """
    conditions = info["conditions"]
    joules = conditions.get("during", {}).get("energy_j")
    if joules is None or joules < LEAST_JOULES:
        return None
    return float(joules) / (conditions["calls"] * tokens)


@pytest.mark.parametrize(
    "mode", ["eager", pytest.param("compiled", marks=pytest.mark.needs("c++"))]
)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_step(
    model, recipe, mode, device, sizing, pace, ceilings, peak_flop_per_s, measure, delivery
):
    if mode == "compiled" and not is_compiled(recipe, device, pace):
        pytest.skip(
            "compiling is too slow for this pace: --thorough compiles every step, a default run on "
            f"a GPU only {COMPILED_BY_DEFAULT}, --quick only test_mfu"
        )
    work = workload(model, recipe, device, sizing.fitting)
    try:
        measure.skip_if_longer(work.flops().hardware, recipe, ceilings)
    except Unsupported as reason:
        pytest.skip(str(reason))
    step, flops = Step(work, recipe, device), work.flops()
    measure.once(partial(measure.skip_if_slow, step.gradients, SMALL_OPERATORS))

    def examine() -> Examined:
        return assert_it_learns(step), counted_work(Step(work, recipe, device), flops.hardware)

    if mode == "compiled":
        gradients, examined = step.gradients(), examine()
        step, compile_s = compiled_step(work, recipe, device, examined[0], gradients)
        measure.declare(compile_s=compile_s)
        seconds = step_s(measure, step, examined)
    else:
        seconds = step_s(measure, step, measure.once(examine))
    if measure.brief:
        # A process of the gate compares times alone.
        return
    record_rates(measure, work, step, flops, seconds, ceilings, peak_flop_per_s(recipe))
    parts = step.part_times_s(timing.clock(device), PARTS_TIMED[pace])
    # Near 1 on a quiet machine: the parts are the whole step.
    measure.declare(
        **{f"{part}_s": parts[part] for part in PARTS},
        parts_over_step=sum(parts.values()) / seconds,
    )
    if (model, recipe, mode) == SIMPLEST_TRANSFORMER:
        ceiling = partial(ceilings.flop_per_s, recipe)
        delivery.check(
            "mfu transformer",
            flops.model,
            "FLOP/s",
            step,
            seconds=seconds,
            dtype=recipe,
            ceiling=ceiling,
        )


def is_compiled(recipe: str, device: torch.device, pace: str) -> bool:
    """True if a compiled step fits the time of this pace."""
    if pace == "thorough":
        return True
    return pace == "default" and device.type != "cpu" and recipe == COMPILED_BY_DEFAULT


def compiled_step(
    work: Workload,
    recipe: str,
    device: torch.device,
    eager_loss: float,
    eager_gradients: list[torch.Tensor],
) -> tuple[Step, float]:
    """A compiled step that agrees with the eager one, and its compile time in seconds.

    Loss and gradients agree.
    """
    torch.compiler.reset()
    step = Step(work, recipe, device, compiled=True)
    began = perf_counter()
    # Compiles forward and backward.
    gradients = step.gradients()
    timing.synchronise(device)
    compile_s = perf_counter() - began
    assert_close(gradients, eager_gradients, COMPILED_TOLERANCE[recipe], "compiled")
    loss = float(step())
    assert loss == pytest.approx(eager_loss, rel=COMPILED_TOLERANCE[recipe]), (
        f"compiled, the loss of the first step is {loss}, but should be {eager_loss} within "
        f"rounding"
    )
    return step, compile_s


def assert_close(
    got: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float, how: str
) -> None:
    """Raises AssertionError where gradients differ as a whole.

    A part may be rounding only, as is the keys' bias.
    """
    one, other = (torch.cat([part.flatten().float() for part in each]) for each in (expected, got))
    difference = float((one - other).norm() / one.norm())
    assert difference <= tolerance, (
        f"{how} gradients differ by {difference:.2g} of their norm, the limit is {tolerance}"
    )


def step_s(measure: Measure, step: Step, examined: Examined | None) -> float:
    """Median seconds of a step; after all rounds its loss must be below the first.

    Its FLOPs were compared before.
    """
    if examined is None:
        return measure.median_s(step, dtype=step.recipe)
    first_loss, work = examined

    def check(loss: torch.Tensor) -> None:
        __tracebackhide__ = True
        last = float(loss)
        assert last < first_loss, (
            f"after all rounds the loss is {last}, but should be below the first, {first_loss}"
        )

    return measure.work(
        step, work, dtype=step.recipe, check=check, inputs=(step.data,), launch=False, counted=False
    )


@pytest.mark.parametrize("model", MODELS)
def test_accumulation(model, device, sizing, measure):
    work = workload(model, "fp32", device, sizing.fitting)
    step = Step(work, "fp32", device, micro_batches=MICRO_BATCHES)
    measure.once(partial(measure.skip_if_slow, step.gradients, SMALL_OPERATORS))

    def examine() -> Examined:
        small = replace(work, batch=max(work.batch // 8, 2))
        whole, parts = (Step(small, "fp32", device, micro_batches=n) for n in (1, 2))
        assert_close(parts.gradients(), whole.gradients(), ACCUMULATED_TOLERANCE, "accumulated")
        counted_step = Step(work, "fp32", device, micro_batches=MICRO_BATCHES)
        return assert_it_learns(step), counted_work(counted_step, work.flops().hardware)

    examined = measure.once(examine)
    if measure.brief:
        step_s(measure, step, examined)
        # A process of the gate compares times alone.
        return
    seconds = step_s(measure, step, examined)
    measure.declare(micro_batches=MICRO_BATCHES, tokens_per_s=work.tokens / seconds)


@pytest.mark.parametrize("model", MODELS)
def test_checkpointing(model, device, sizing, ceilings, peak_flop_per_s, measure):
    every = 2 if model == "deep-linear" else 1
    work = workload(model, "fp32", device, sizing.fitting)
    spared = work.flops(every)
    steps = {every: Step(work, "fp32", device, checkpoint_every=every) for every in (0, every)}
    measure.once(partial(measure.skip_if_slow, steps[every].gradients, SMALL_OPERATORS))

    def examine() -> Examined:
        for one, other in zip(steps[0].gradients(), steps[every].gradients(), strict=True):
            torch.testing.assert_close(one, other)
        held.update({every: held_bytes(step) for every, step in steps.items()})
        assert held[every] < held[0], (
            f"checkpointing keeps {held[every]} bytes for the backward pass, {held[0]} without it"
        )
        counted_step = Step(work, "fp32", device, checkpoint_every=every)
        return assert_it_learns(steps[every]), counted_work(counted_step, spared.hardware)

    held: dict[int, int] = {}
    examined = measure.once(examine)
    if measure.brief:
        step_s(measure, steps[every], examined)
        # A process of the gate compares times alone.
        return
    seconds = step_s(measure, steps[every], examined)
    measure.declare(
        checkpoint_every=every,
        held_bytes=held[every],
        saved_bytes=held[0] - held[every],
    )
    record_rates(measure, work, steps[every], spared, seconds, ceilings, peak_flop_per_s("fp32"))


def held_bytes(step: Step) -> int:
    """Bytes that a forward pass leaves for the backward pass, as the allocator counts them."""
    with measured_memory(step.device) as memory:
        loss = step.forward(step.data, step.targets)
        memory.mark("forward")
    del loss
    return memory.phases["forward"].live_bytes


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_lecture_product(dtype, device, sizing, ceilings, measure):
    m, k, n = LECTURE
    sizing.require(product_bytes(dtype, m, k, n))
    case = product(dtype, m, k, n, device)
    measure.product(case, ceilings)
