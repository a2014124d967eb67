"""Modules whose layers are copies of one another are predicted as others are."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accounting import measured, predicted


def step_of_copied_layers() -> None:
    """nn.Transformer copies one layer for each of its encoder and its decoder."""
    model = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)
    x = torch.ones(2, 8, 32)
    model(x, x).sum().backward()
    del model, x


def test_a_model_of_copied_layers_is_predicted():
    with measured.one_thread():
        step_of_copied_layers()  # what torch allocates once
        with measured.memory("cpu") as held:
            step_of_copied_layers()
        with predicted.memory("cpu", scratch=True) as expected:
            step_of_copied_layers()
    assert expected.live_bytes == held.live_bytes == 0
    assert 0 <= held.peak_bytes - expected.peak_bytes <= 12 + expected.peak_bytes_with_scratch - expected.peak_bytes


def test_a_copied_tensor_stays_in_the_mode():
    with predicted.memory("cpu") as held:
        (mode,) = (each for each in _get_current_dispatch_mode_stack() if hasattr(each, "fake_tensor_converter"))
        twin = copy.deepcopy(nn.LayerNorm(8))
        assert twin.weight.fake_mode is mode
        held.mark("two")
        del twin
    assert held.phases["two"].live_bytes == 8 * 2 * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_of_all_warnings_only_that_of_a_copied_tensor_is_ignored(device):
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else it is given once in a process
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with predicted.memory(device):
                copy.deepcopy(nn.LayerNorm(8, device=device))
                warnings.warn("another", stacklevel=1)
    finally:
        torch.set_warn_always(always)
    assert [str(each.message) for each in seen] == ["another"]
