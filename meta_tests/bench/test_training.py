"""The benchmarks of training notice what is planted in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from accounting.models import GPT2_SMALL, DeepLinear, parameter_count
from bench import test_training
from bench.models import reduced
from bench.test_data import assert_first_batches
from bench.test_training import (
    assert_close,
    assert_it_learns,
    counted_work,
    held_bytes,
    predicted_held_bytes,
    step_memory,
)
from bench.tokens import Batches, assert_from_file, bottleneck, loader, text, write_tokens
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


def without_gradients(step: Step) -> None:
    step.backward = lambda loss: None  # type: ignore[method-assign]


def without_updates(step: Step) -> None:
    step.update = lambda: step.optimizer.zero_grad()  # type: ignore[method-assign]


def with_infinite_targets(step: Step) -> None:
    step.targets[0] = float("inf")


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (without_gradients, "the loss on one batch should fall"),
        (without_updates, "the loss on one batch should fall"),
        (with_infinite_targets, "should be finite"),
    ],
)
def test_a_step_that_does_not_train_is_noticed(breaks: Callable[[Step], None], message: str) -> None:
    step = Step(WORK["deep-linear"], "fp32", CPU)
    breaks(step)
    with pytest.raises(AssertionError, match=message):
        assert_it_learns(step)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(micro_batches: int) -> None:
    got, whole = (Step(WORK["deep-linear"], "fp32", CPU, micro_batches=n).gradients() for n in (micro_batches, 1))
    assert_close(got, whole, test_training.ACCUMULATED_TOLERANCE, "accumulated")


def test_a_compiled_net_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = Step(WORK["deep-linear"], "fp32", CPU)
    monkeypatch.setattr(torch, "compile", lambda module: lambda x: 1.1 * module(x))
    with pytest.raises(AssertionError, match="compiled gradients differ by"):
        test_training.compiled_step(WORK["deep-linear"], "fp32", CPU, float(eager()), eager.gradients())


@pytest.mark.parametrize("model", WORK)
def test_checkpointing_saves_what_is_predicted(model: str) -> None:
    plain, spared = (Step(WORK[model], "fp32", CPU, checkpoint_every=every) for every in (0, 2))
    assert held_bytes(spared) < held_bytes(plain)
    for step in (plain, spared):
        assert predicted_held_bytes(step) == held_bytes(step)


# ---- tokens ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, 5000, "uint16", chunk=1000)
    assert np.array_equal(np.fromfile(path, np.uint16), text(np.arange(5000)))
    return path


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_windows_of_the_file(token_file: Path, order: str, workers: int) -> None:
    batches = Batches(token_file, "uint16", order, batch=4, sequence=32)
    arriving = loader(batches, workers)
    assert_first_batches(batches, next(arriving), arriving, workers)


def test_a_batch_given_twice_and_targets_that_are_not_shifted_are_noticed(token_file: Path) -> None:
    batches = Batches(token_file, "uint16", "sequential", batch=4, sequence=32)
    with pytest.raises(AssertionError, match="are not those at 128"):
        assert_first_batches(batches, next(iter(batches)), iter(batches), workers=0)
    starts = next(batches.starts())
    with pytest.raises(AssertionError, match="one token later"):
        assert_from_file(batches.load(starts)[0], batches.load(starts)[0], starts)


@pytest.mark.parametrize(
    ("wait_s", "step_s", "overlapped", "expected"),
    [(0.5, 1.0, False, "step"), (2.0, 1.0, False, "loader"), (0.05, 1.0, True, "step"), (0.5, 1.0, True, "loader")],
)
def test_the_loader_is_the_bottleneck_if_the_step_does_not_hide_it(
    wait_s: float, step_s: float, overlapped: bool, expected: str
) -> None:
    assert bottleneck(wait_s, step_s, overlapped=overlapped) == expected
