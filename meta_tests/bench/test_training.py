"""The benchmarks of training notice what is planted in them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from accounting.models import GPT2_SMALL, DeepLinear, parameter_count
from bench import test_training, training
from bench.models import reduced
from bench.test_training import (
    assert_close,
    assert_it_learns,
    counted_work,
    held_bytes,
    predicted_held_bytes,
    record_rates,
    step_memory,
    time_ratio,
)
from bench.training import ON_ACCELERATOR, Step, Workload

CPU = torch.device("cpu")
WORK = {
    "deep-linear": Workload(DeepLinear(dim=32, layers=6), batch=64),
    "transformer": Workload(reduced(GPT2_SMALL, layers=2), batch=2, sequence=16),
}


@pytest.mark.parametrize("model", WORK)
@pytest.mark.parametrize("checkpoint_every", [0, 1, 2])
def test_the_flops_of_a_step_by_formula_are_those_counted(model: str, checkpoint_every: int) -> None:
    work = WORK[model]
    flops = work.flops(checkpoint_every).hardware
    assert counted_work(Step(work, "fp32", CPU, checkpoint_every=checkpoint_every), flops).flops == flops


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("deep-linear", 3),
        pytest.param("deep-linear", 16, marks=pytest.mark.prove),
        pytest.param("transformer", 12, marks=pytest.mark.prove),
    ],
)
def test_what_an_accelerator_trains_learns_at_its_width(name: str, layers: int) -> None:
    """On the CPU, with a small batch. At a learning rate of 1e-3 the deep linear net of width 4096 diverges."""
    work = ON_ACCELERATOR[name]
    few = replace(work.model, layers=layers)
    assert_it_learns(Step(Workload(few, batch=2, sequence=min(work.sequence, 16)), "fp32", CPU))


@pytest.mark.prove
def test_a_deep_linear_net_of_4096_diverged_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "WIDTH", 4096)  # 1e-3 at any width
    with pytest.raises(AssertionError, match="should fall, but went"):
        test_what_an_accelerator_trains_learns_at_its_width("deep-linear", 16)


def test_the_memory_of_a_step_is_told_apart_by_what_it_is_for() -> None:
    step = Step(WORK["deep-linear"], "fp32", CPU)
    step()
    parts = step_memory(step)
    weights = 4 * parameter_count(WORK["deep-linear"].model)
    held = {part: row["held"] for part, row in parts.items()}
    assert {row["weights"] for row in held.values()} == {weights}
    assert held["backward"]["gradients"] == weights
    assert held["forward"]["gradients"] == held["optimizer"]["gradients"] == held["optimizer"]["activations"] == 0
    assert 2 * weights <= held["forward"]["optimizer state"] < 2.1 * weights
    assert held["forward"]["activations"] >= 4 * 6 * 64 * 32, "each layer's input is kept for the backward pass"
    assert all(row["peak_bytes"] >= sum(row["held"].values()) for row in parts.values())


@pytest.mark.parametrize("model", WORK)
def test_a_halved_flop_count_is_noticed(model: str) -> None:
    work = WORK[model]
    with pytest.raises(AssertionError, match="FLOPs a step, but"):
        counted_work(Step(work, "fp32", CPU), work.flops().hardware // 2)


def test_recomputation_that_is_not_declared_is_noticed() -> None:
    work = WORK["transformer"]
    with pytest.raises(AssertionError, match="FLOPs a step, but"):
        counted_work(Step(work, "fp32", CPU, checkpoint_every=1), work.flops().hardware)


@pytest.mark.prove(sample=1)
@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
@pytest.mark.parametrize("model", WORK)
def test_a_step_that_learns_passes(model: str, recipe: str) -> None:
    assert assert_it_learns(Step(WORK[model], recipe, CPU)) > 0


def test_a_step_without_its_optimizer_is_noticed() -> None:
    step = Step(WORK["transformer"], "fp32", CPU)
    step.update = lambda: step.optimizer.zero_grad()  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="the loss on one batch should fall"):
        assert_it_learns(step)


def test_a_step_without_its_backward_pass_is_noticed() -> None:
    work = WORK["deep-linear"]
    step = Step(work, "fp32", CPU)
    step.backward = lambda loss: None  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="FLOPs a step, but"):
        counted_work(step, work.flops().hardware)


def test_a_gradient_that_is_not_finite_is_noticed() -> None:
    step = Step(WORK["deep-linear"], "fp32", CPU)
    step.targets[0] = float("inf")
    with pytest.raises(AssertionError, match="should be finite"):
        assert_it_learns(step)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(micro_batches: int) -> None:
    got, whole = (Step(WORK["deep-linear"], "fp32", CPU, micro_batches=n).gradients() for n in (micro_batches, 1))
    assert_close(got, whole, test_training.ACCUMULATED_TOLERANCE, "accumulated")


def test_gradients_summed_over_micro_batches_without_their_share_are_noticed() -> None:
    whole = Step(WORK["deep-linear"], "fp32", CPU).gradients()
    step = Step(WORK["deep-linear"], "fp32", CPU, micro_batches=2)
    parts = list(step._micro_batches())
    step.micro_batches = 1  # each loss is then taken in full
    for part in parts:
        step.forward(*part).backward()
    wrong = [parameter.grad for parameter in step.module.parameters() if parameter.grad is not None]
    with pytest.raises(AssertionError, match="gradients differ by 1 of their norm"):
        assert_close(wrong, whole, test_training.ACCUMULATED_TOLERANCE, "accumulated")


@pytest.mark.parametrize("model", WORK)
def test_checkpointing_saves_what_is_predicted(model: str) -> None:
    plain, spared = (Step(WORK[model], "fp32", CPU, checkpoint_every=every) for every in (0, 2))
    assert held_bytes(spared) < held_bytes(plain)
    for step in (plain, spared):
        assert predicted_held_bytes(step) == held_bytes(step)


def test_a_step_faster_than_the_ceiling_has_it_measured_again() -> None:
    work, found = WORK["deep-linear"], {}
    measure = SimpleNamespace(declare=lambda **figures: found.update(figures))
    ceilings = SimpleNamespace(flop_per_s=lambda dtype: 1.0, remeasure=lambda dtype, function, flops: 2.0 * flops)
    flops = work.flops(checkpoint_every=2)
    record_rates(measure, work, Step(work, "fp32", CPU), flops, 1.0, ceilings, 4.0 * flops.model)  # type: ignore[arg-type]
    assert (found["ceiling_remeasured"], found["share_of_ceiling"]) == (True, 0.5)
    assert found["mfu"] == 0.25 < found["hfu"] == flops.hardware / flops.model / 4


def test_the_parts_of_a_step_are_timed_in_their_order() -> None:
    step = Step(WORK["deep-linear"], "fp32", CPU)
    readings = iter([0.0, 1.0, 3.0, 7.0] * 3)
    assert step.part_times_s(lambda: next(readings), 3) == {"forward": 1.0, "backward": 2.0, "optimizer": 4.0}


@pytest.mark.parametrize(("late_at", "pairs"), [(1, 0), (3, 2), (9, 4)])
def test_pairs_of_steps_end_where_they_are_late(late_at: int, pairs: int) -> None:
    looks, said, step = [0], list[str](), Step(WORK["deep-linear"], "fp32", CPU)

    def skip_if_late() -> None:
        looks[0] += 1
        if looks[0] == late_at:
            pytest.skip("late")

    measure = SimpleNamespace(progress=said.append, skip_if_late=skip_if_late)
    try:
        time_ratio(step, step, CPU, 4, measure)  # type: ignore[arg-type]
        assert late_at > 5
    except pytest.skip.Exception:
        assert late_at <= 5
    assert len(said) == pairs, said
