"""The benchmarks of training and of loading data notice what is planted in them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accounting.models import GPT2_SMALL, DeepLinear
from bench import test_training
from bench.models import reduced
from bench.test_data import assert_first_batches
from bench.test_training import (
    assert_close,
    assert_it_learns,
    counted_work,
    held_bytes,
    predicted_held_bytes,
    record_rates,
)
from bench.tokens import Batches, assert_from_file, bottleneck, loader, text, write_tokens
from bench.training import Step, Workload

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


@pytest.mark.parametrize("model", WORK)
def test_a_halved_flop_count_is_noticed(model: str) -> None:
    work = WORK[model]
    with pytest.raises(AssertionError, match="FLOPs a step, but"):
        counted_work(Step(work, "fp32", CPU), work.flops().hardware // 2)


def test_recomputation_that_is_not_declared_is_noticed() -> None:
    work = WORK["transformer"]
    with pytest.raises(AssertionError, match="FLOPs a step, but"):
        counted_work(Step(work, "fp32", CPU, checkpoint_every=1), work.flops().hardware)


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


# ---- data --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, 5000, "uint16", chunk=1000)
    return path


def test_the_file_holds_the_tokens_of_the_formula(token_file: Path) -> None:
    assert np.array_equal(np.fromfile(token_file, np.uint16), text(np.arange(5000)))
    assert len(set(text(np.arange(5000)))) > 3000, "a token should say where it is from"


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_windows_of_the_file(token_file: Path, order: str, workers: int) -> None:
    batches = Batches(token_file, "uint16", order, batch=4, sequence=32)
    arriving = loader(batches, workers)
    assert_first_batches(batches, next(arriving), arriving, workers)


def test_a_loader_that_gives_a_batch_twice_is_noticed(token_file: Path) -> None:
    batches = Batches(token_file, "uint16", "sequential", batch=4, sequence=32)
    first = next(iter(batches))
    with pytest.raises(AssertionError, match="are not those at 128"):
        assert_first_batches(batches, first, iter(batches), workers=0)


@pytest.mark.parametrize(
    ("wait_s", "step_s", "overlapped", "expected"),
    [(0.5, 1.0, False, "step"), (2.0, 1.0, False, "loader"), (0.05, 1.0, True, "step"), (0.5, 1.0, True, "loader")],
)
def test_the_loader_is_the_bottleneck_when_what_is_not_hidden_of_it_lasts(
    wait_s: float, step_s: float, overlapped: bool, expected: str
) -> None:
    assert bottleneck(wait_s, step_s, overlapped=overlapped) == expected


def test_windows_from_elsewhere_and_targets_that_are_not_shifted_are_noticed(token_file: Path) -> None:
    batches = Batches(token_file, "uint16", "random", batch=4, sequence=32)
    starts = next(batches.starts())
    inputs, targets = batches.load(starts)
    with pytest.raises(AssertionError, match="are not those at"):
        assert_from_file(inputs, targets, starts + 1)
    with pytest.raises(AssertionError, match="one token later"):
        assert_from_file(inputs, inputs, starts)


def test_an_unknown_order_is_refused(token_file: Path) -> None:
    with pytest.raises(ValueError, match="order must be one of random, sequential, got 'shuffled'"):
        Batches(token_file, "uint16", "shuffled", 4, 32)
