"""Memory of converted and checkpointed models, predicted and measured; the largest that fits."""

import pytest
import torch

from meta_tests.prooflops.model.conftest import model_of
from meta_tests.user_models.worked import PARAMETERS
from prooflops.model.largest import largest_of
from prooflops.model.step_memory import HELD, PEAK, measured_steps, memory_of, tried


@pytest.mark.parametrize("factory", ["gpt:in_bf16", "own:checkpointed", "own:bag", "own:converted"])
def test_conversions_and_checkpointing_are_predicted(factory):
    memory = memory_of(tried(model_of(factory)))
    held, peak = memory.row(HELD), memory.row(PEAK)
    assert held.predicted_bytes == pytest.approx(held.measured_bytes, rel=0.01), memory
    assert peak.predicted_bytes <= peak.measured_bytes, memory
    for name in ("gradients", "optimizer state"):
        assert memory.row(name).predicted_bytes == memory.row(name).measured_bytes
    if factory == "gpt:in_bf16":
        assert memory.row("gradients").measured_bytes == 2 * PARAMETERS["gpt"]


def test_the_measured_steps_attend_without_cudnn_as_the_predicted_ones_do():
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    user_model = model_of("own:checkpointed")
    before = enabled()
    seen = set()
    with torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.add(enabled())):
        measured_steps(user_model)
    assert (before, seen, enabled()) == (True, {False}, True), (
        "cuDNN's attention is off during the steps alone"
    )


def test_the_largest_size_that_fits_is_predicted_and_measured_once():
    found = largest_of(model_of("own:sized"), "batch", 2 * 10**6)
    assert found.is_predicted
    measured = [each for each in found.trials if each.measured_bytes is not None]
    assert [each.size for each in measured] == [found.found]
    assert measured[0].measured_bytes == pytest.approx(measured[0].predicted_bytes, rel=0.01)
    assert found.next_larger
    assert found.found
    assert 0 < found.next_larger - found.found <= max(1, 0.01 * found.found)


def test_of_a_model_that_cannot_be_predicted_the_largest_size_is_not_known():
    found = largest_of(model_of("own:looking_sized"), "batch", 10**6)
    assert (found.found, found.next_larger, found.is_predicted) == (None, None, False)
    [trial] = found.trials
    assert "reads values" in trial.why_not
