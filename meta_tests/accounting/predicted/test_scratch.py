"""Temporary workspace of kernels: named, measured, and next to none for the operators listed as scratch-free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from accounting import predicted
from accounting.predicted import scratch, tracker
from meta_tests.accounting.predicted.predicting import (
    OPTIMIZERS,
    POINTWISE,
    WITH_SCRATCH,
    Gathering,
    Net,
    assert_alike,
    both,
)


@pytest.mark.parametrize("operator", WITH_SCRATCH)
def test_the_scratch_line_names_what_convolution_lstm_and_lone_attention_take(operator):
    build, shape = WITH_SCRATCH[operator]
    guess, held = both(build, torch.randn(shape))
    assert_alike(guess, held, without_scratch=False)
    assert any(operator in name for name in guess.scratch), f"{guess.scratch} names no {operator}"
    assert guess.peak_bytes < held.peak_bytes, "this operator should need scratch"


def test_without_measuring_an_operator_of_unknown_scratch_is_named_and_its_peak_left_open():
    build, shape = WITH_SCRATCH["convolution"]
    guess, _ = both(build, torch.randn(shape), scratch=False)
    assert guess.unknown == {"aten.convolution.default": 4, "aten.convolution_backward.default": 4}, f"{guess.unknown}"
    assert guess.peak_bytes_with_scratch is None
    assert "≥" in repr(guess)


def test_an_lstm_is_refused_unless_its_kernel_may_run():
    build, shape = WITH_SCRATCH["mkldnn_rnn_layer"]
    with pytest.raises(RuntimeError, match=r"mkldnn_rnn_layer.* returns sizes that only the kernel knows: use scratch"):
        predicted.TrainingStep(build, torch.empty(shape), loss=torch.mean).predict()


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_operators_listed_as_scratch_free_are_measured_to_be(workloads, monkeypatch):
    monkeypatch.setattr(tracker, "is_scratch_free", lambda operator, *_: operator.is_view)
    every = Net(("linear", "layernorm", "rmsnorm", *POINTWISE), 64, 100, True, False, torch.float32)
    steps = [both(every.build, every.batch(), optimizer=optimizer)[0] for optimizer in sorted(OPTIMIZERS)]
    steps += [both(every.build, every.batch(), autocast=torch.bfloat16)[0]]
    every = replace(every, dtype=torch.bfloat16)
    steps += [both(every.build, every.batch())[0]]
    steps.append(both(Gathering, torch.randn(100, 64))[0])
    measured_scratch = {}
    for step in steps:
        for call, kernel in step._ledger.kernels.items():
            if scratch.is_scratch_free(call.operator, thawed(call), "cpu"):
                name = call.operator._opname
                measured_scratch[name] = max(measured_scratch.get(name, 0), kernel.scratch_bytes)
    assert len(measured_scratch) > 50, f"only {sorted(measured_scratch)}"
    wrong = {name: taken for name, taken in measured_scratch.items() if taken > 16}
    assert not wrong, f"{wrong} bytes of scratch where there should be next to none"


def thawed(call: scratch.Call) -> Any:
    return scratch._arguments(call)[0]
