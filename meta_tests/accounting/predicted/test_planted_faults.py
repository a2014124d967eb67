"""Faults planted in the prediction make the comparison fail that the other tests rely on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accounting.predicted import TrainingStep, ledger, prediction, replay, tracker, training
from meta_tests.accounting.predicted.predicting import RECIPES, Net, assert_alike, both

NET = Net(("linear", "gelu", "layernorm", "scaled", "linear"), 48, 96, False, True, torch.float32)
BATCH = torch.randn(96, 48)


@dataclass(frozen=True)
class Case:
    """Two steps of a net that are predicted well while no fault is planted."""

    build: Callable[[], nn.Module] = NET.build
    batch: Tensor = BATCH
    given: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        assert_alike(*both(self.build, self.batch, **self.given), without_scratch=False)


PLAIN = Case()
ACCUMULATED = Case(given={"micro_batches": 3, "optimizer": "adamw for-loop"})
WITH_MASTER = Case(lambda: NET.build().bfloat16(), BATCH.bfloat16(), {"optimizer": RECIPES["bf16-fp32-master"][1]})


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.parts, x, use_reentrant=False)


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(48, 48), nn.Linear(48, 48))
    net[1].weight = net[0].weight
    return net


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3))


CHECKPOINTED = Case(Checkpointed, torch.randn(512, 48))
TIED = Case(tied)
CONVOLUTION = Case(convolutions, torch.randn(4, 3, 32, 32))

FAULTS: dict[str, tuple[Case, Callable[[pytest.MonkeyPatch], None]]] = {}


def fault(case: Case) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    def enter(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        FAULTS[plant.__name__] = case, plant
        return plant

    return enter


def resized(patch: pytest.MonkeyPatch, name: str, size_of: Callable[[int], int]) -> None:
    """Enters the storages of one class with another size."""
    enter = replay._Levels.enter

    def enter_resized(levels: Any, number: int, storage: Any, allocated: bool) -> None:
        if levels._class_of[number] == name:
            storage = replace(storage, size=size_of(storage.size))
        enter(levels, number, storage, allocated)

    patch.setattr(replay._Levels, "enter", enter_resized)


@fault(PLAIN)
def the_temporaries_of_a_phase_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    resized(patch, "temporaries", lambda size: 0)


@fault(CHECKPOINTED)
def what_a_checkpoint_runs_again_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    resized(patch, "recomputed", lambda size: 0)


@fault(PLAIN)
def optimizer_state_is_taken_for_bf16(patch: pytest.MonkeyPatch) -> None:
    resized(patch, "optimizer state", lambda size: size // 2)


@fault(PLAIN)
def gradients_are_taken_for_bf16(patch: pytest.MonkeyPatch) -> None:
    resized(patch, "gradients", lambda size: size // 2)


@fault(WITH_MASTER)
def the_master_copy_is_taken_for_bf16(patch: pytest.MonkeyPatch) -> None:
    train = TrainingStep._run

    def narrow(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(Tensor, "float", lambda tensor: tensor.clone())
            train(*args)

    patch.setattr(TrainingStep, "_run", narrow)


@fault(ACCUMULATED)
def the_whole_batch_goes_through_in_each_micro_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(training, "_parts", lambda batch, micro_batches: [batch] * micro_batches)


@fault(ACCUMULATED)
def gradients_of_each_micro_batch_are_kept_apart(patch: pytest.MonkeyPatch) -> None:
    backward = Tensor.backward
    kept = []

    def apart(loss: Tensor) -> None:
        backward(loss)
        kept.extend(tensor.grad.clone() for tensor in parameters if tensor.grad is not None)

    parameters: list[Tensor] = []
    train = TrainingStep._run

    def train_apart(step: Any, mark: Any, model: nn.Module, batch: Any) -> None:
        parameters[:] = model.parameters()
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(Tensor, "backward", apart)
            train(step, mark, model, batch)
        kept.clear()

    patch.setattr(TrainingStep, "_run", train_apart)


@fault(ACCUMULATED)
def gradients_are_freed_after_each_micro_batch(patch: pytest.MonkeyPatch) -> None:
    train = TrainingStep._run

    def train_freeing(step: Any, mark: Any, model: nn.Module, batch: Any) -> None:
        def mark_and_free(name: str) -> None:
            if "forward" in name:
                model.zero_grad()
            mark(name)

        train(step, mark_and_free, model, batch)

    patch.setattr(TrainingStep, "_run", train_freeing)


@fault(TIED)
def a_tied_weight_is_copied_twice(patch: pytest.MonkeyPatch) -> None:
    fake_copy = training.fake_copy

    def untied(module: nn.Module, device: str) -> nn.Module:
        copy = fake_copy(module, device)
        copy[1].weight = nn.Parameter(torch.empty_like(copy[1].weight))
        return copy

    patch.setattr(training, "fake_copy", untied)


@fault(PLAIN)
def the_random_state_of_a_checkpoint_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prediction, "_random_states_seen", lambda ledger: nullcontext())


@fault(PLAIN)
def the_number_that_a_product_saves_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tracker, "SAVES_ITS_NUMBER", frozenset())


@fault(CONVOLUTION)
def the_scratch_of_a_convolution_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger.Ledger, "scratch_at", lambda *_: 0)


@pytest.mark.prove(sample=4)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(name, monkeypatch):
    case, plant = FAULTS[name]
    case.check()
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"but should be|is off by"):
        case.check()
