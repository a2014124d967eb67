"""Faults of the prediction of bytes: the comparison with measured bytes must notice each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from meta_tests.faults import fault, faults, stand_in
from prooflops.predicted import TrainingStep, tracker
from prooflops.predicted.ledger import Ledger
from prooflops.predicted.replay import classes_of

TESTS = "meta_tests/prooflops/predicted/test_prediction.py"
DRAWN = f"{TESTS}::test_transformers_are_predicted_without_scratch"
RANDOM = "meta_tests/prooflops/predicted/test_random_nets.py::test_no_peak_of_a_random_net_is_predicted_too_low"
OTHERS = f"{TESTS}::test_other_nets_are_predicted_with_the_scratch_of_their_kernels"
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


# fmt: off
faults(
    *((f"{name.replace(' ', '_')}_counted_too_small", DRAWN,
       stand_in("prooflops.predicted.prediction.replay", resized(name, size_of)), NOTICED) for name, size_of in {
        "temporaries": lambda size: 0,
        "optimizer state": lambda size: size // 2,
        "gradients": lambda size: size // 2,
    }.items()),
    ("recomputed_counted_too_small", RANDOM,
     stand_in("prooflops.predicted.prediction.replay", resized("recomputed", lambda size: 0)), NOTICED),
    ("the_random_state_of_a_checkpoint_is_not_seen", DRAWN,
     stand_in("prooflops.predicted.prediction._random_states_seen", lambda _, ledger: nullcontext()), NOTICED),
    ("the_number_that_a_product_saves_is_not_seen", RANDOM,
     lambda patch: patch.setattr(tracker, "SAVES_ITS_NUMBER", frozenset()), NOTICED),
    ("the_whole_batch_goes_through_in_each_micro_batch", DRAWN,
     stand_in("prooflops.predicted.training._split", lambda _, batch, micro_batches: [batch] * micro_batches),
     NOTICED),
    ("a_sum_is_never_written_in_place", f"{OTHERS}[gathered]",
     stand_in("prooflops.predicted.ledger.Ledger.number_of", lambda _, ledger, tensor: None), NOTICED),
    ("the_scratch_of_a_convolution_is_dropped", f"{OTHERS}[convolution]",
     stand_in("prooflops.predicted.ledger.Ledger.scratch_at", lambda *_: 0), NOTICED),
)
# fmt: on
