"""Faults of the prediction of bytes: the comparison with measured bytes must notice each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meta_tests.faults import fault
from prooflops.predicted import TrainingStep, tracker
from prooflops.predicted.ledger import Ledger
from prooflops.predicted.replay import classes_of

TESTS = "meta_tests/prooflops/predicted/test_prediction.py"
DRAWN = f"{TESTS}::test_transformers_are_predicted_without_scratch"
RANDOM_NETS = "meta_tests/prooflops/predicted/test_random_nets.py"
RANDOM = f"{RANDOM_NETS}::test_no_peak_of_a_random_net_is_predicted_too_low"
OTHERS = f"{TESTS}::test_other_nets_are_predicted_with_the_scratch_of_their_kernels"
REPLAY = "prooflops.predicted.prediction.replay"
NOTICED = r"but should be|is off by|is too low|, but MeasuredBytes"


def resized(name: str, size_of: Callable[[int], int]) -> Callable[..., Any]:
    """Replays the storages of one class with another size."""

    def replayed(original: Any, ledger: Ledger, classes: dict[str, str], *rest: Any) -> Any:
        for number, storage_class in classes_of(ledger, classes).items():
            if storage_class == name:
                ledger.storages[number].size = size_of(ledger.storages[number].size)
        return original(ledger, classes, *rest)

    return replayed


@fault(DRAWN, instead_of="prooflops.predicted.training.TrainingStep._run", saying=NOTICED)
def gradients_are_freed_after_each_micro_batch(
    run: Any, step: TrainingStep, mark: Any, model: nn.Module
) -> None:
    def mark_and_free(name: str) -> None:
        if "forward" in name:
            model.zero_grad()
        mark(name)

    run(step, mark_and_free, model)


@fault(DRAWN, instead_of="prooflops.predicted.training.TrainingStep._run", saying=NOTICED)
def gradients_of_each_micro_batch_are_kept_apart(
    run: Any, step: TrainingStep, mark: Any, model: nn.Module
) -> None:
    kept: list[Tensor] = []

    def mark_and_keep(name: str) -> None:
        if "backward" in name:
            kept.extend(
                tensor.grad.clone() for tensor in model.parameters() if tensor.grad is not None
            )
        mark(name)

    run(step, mark_and_keep, model)


@fault(f"{OTHERS}[tied]", instead_of="prooflops.predicted.training.fake_copy", saying=NOTICED)
def a_tied_weight_is_copied_twice(fake_copy: Any, module: nn.Module, device: str) -> nn.Module:
    copy = fake_copy(module, device)
    copy[1].weight = nn.Parameter(torch.empty_like(copy[1].weight))
    return copy


def no_bytes(size: int) -> int:
    return 0


def half_of(size: int) -> int:
    return size // 2


fault(DRAWN, instead_of=REPLAY, saying=NOTICED, name="temporaries_counted_too_small")(
    resized("temporaries", no_bytes)
)
fault(DRAWN, instead_of=REPLAY, saying=NOTICED, name="optimizer_state_counted_too_small")(
    resized("optimizer state", half_of)
)
fault(DRAWN, instead_of=REPLAY, saying=NOTICED, name="gradients_counted_too_small")(
    resized("gradients", half_of)
)
fault(RANDOM, instead_of=REPLAY, saying=NOTICED, name="recomputed_counted_too_small")(
    resized("recomputed", no_bytes)
)


@fault(DRAWN, instead_of="prooflops.predicted.prediction._random_states_seen", saying=NOTICED)
def the_random_state_of_a_checkpoint_is_not_seen(
    original: Any, ledger: Ledger
) -> AbstractContextManager[None]:
    return nullcontext()


@fault(RANDOM, saying=NOTICED)
def the_number_that_a_product_saves_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tracker, "SAVES_ITS_NUMBER", frozenset())


@fault(DRAWN, instead_of="prooflops.predicted.training._split", saying=NOTICED)
def the_whole_batch_goes_through_in_each_micro_batch(
    split: Any, batch: Any, micro_batches: int
) -> list[Any]:
    return [batch] * micro_batches


@fault(
    f"{OTHERS}[gathered]",
    instead_of="prooflops.predicted.ledger.Ledger.number_of",
    saying=NOTICED,
)
def a_sum_is_never_written_in_place(number_of: Any, ledger: Ledger, tensor: Tensor) -> None:
    return None


@fault(
    f"{OTHERS}[convolution]",
    instead_of="prooflops.predicted.ledger.Ledger.scratch_at",
    saying=NOTICED,
)
def the_scratch_of_a_convolution_is_dropped(scratch_at: Any, *rest: Any) -> int:
    return 0
