"""The sizes of steps, and what is copied to a card for one."""

from __future__ import annotations

import pytest
import torch

from accounting.devices import peak_flop_per_s
from accounting.models import DeepLinear
from bench.rounds import PACES
from bench.tokens import sent
from bench.training import ON_CPU, RECIPES, Step, Workload, workload
from meta_tests.simulated_card.api import simulated
from meta_tests.simulated_card.card import Card


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", ON_CPU)
def test_no_pace_skips_a_step_on_the_card_that_it_is_sized_for(model: str, recipe: str) -> None:
    flops = workload(model, recipe, torch.device("cuda")).flops().hardware
    seconds = flops / (0.75 * (peak_flop_per_s("NVIDIA H100 80GB HBM3", recipe) or 0.0))
    assert seconds < min(pace.longest_call_s for pace in PACES.values())


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_deep_linear_net_learns_though_a_scaler_skips_its_first_steps(skipped: int) -> None:
    """As in fp16, whose scaler begins with a factor at which gradients overflow."""
    step = Step(Workload(DeepLinear(dim=128, layers=16), batch=64), "fp32", torch.device("cpu"))
    losses = []
    for number in range(20):
        loss = step.forward(step.data, step.targets)
        step.backward(loss)
        losses.append(loss.item())
        if number < skipped:
            step.optimizer.zero_grad()
        else:
            step.update()
    assert losses[4] <= 0.9 * losses[0]
    assert max(losses[5:]) <= losses[4], "a later step undid what earlier ones learnt"


def test_a_pinned_batch_itself_is_copied_to_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator makes of it would be pageable."""
    with simulated(Card(memory_bytes=2**28)) as kernels:
        copies: list[bool] = []
        copy = kernels.card.copy
        tokens = torch.arange(2**12).pin_memory()

        def noted(nbytes: int, pinned: bool, to_host: bool) -> float:
            copies.append(pinned)
            return copy(nbytes, pinned, to_host)

        monkeypatch.setattr(kernels.card, "copy", noted)
        got = sent(tokens, kernels.card.device, 100)
        assert copies == [True]
        assert got.cpu().tolist() == [each % 100 for each in range(2**12)]
