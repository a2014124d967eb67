"""The sizes of steps, and what is copied to a card for one."""

import pytest
import torch

from accounting.devices import peak_flop_per_s
from accounting.models import DeepLinear, Transformer
from bench.rounds import PACES
from bench.training import (
    ON_CPU,
    RECIPES,
    Step,
    Workload,
    step_bytes,
    usual_recipe,
    workload,
)
from prooflops import counted
from prooflops.memory.allocations import measured_memory


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", ON_CPU)
def test_no_pace_skips_a_step_on_the_card_that_it_is_sized_for(model, recipe):
    flops = workload(model, recipe, torch.device("cuda")).flops().hardware
    seconds = flops / (0.75 * (peak_flop_per_s("NVIDIA H100 80GB HBM3", recipe) or 0.0))
    assert seconds < min(pace.longest_call_s for pace in PACES.values())


@pytest.mark.parametrize(
    ("kind", "bound_of_bf16", "expected"),
    [("cpu", None, "fp32"), ("cpu", 4e12, "bf16"), ("cuda", 989e12, "bf16"), ("mps", None, "bf16")],
)
def test_a_cpu_that_emulates_bf16_takes_its_usual_step_in_fp32(kind, bound_of_bf16, expected):
    assert usual_recipe(torch.device(kind), {"bf16": bound_of_bf16}.__getitem__) == expected


def test_the_parts_of_a_step_follow_one_another_and_add_up_to_it():
    step = Step(Workload(DeepLinear(dim=8, layers=2), batch=4), "fp32", torch.device("cpu"))
    readings = iter([0, 1, 4, 9])
    assert list(step.part_times_s(readings.__next__, 1).values()) == [1, 3, 5]


def test_a_step_in_micro_batches_is_the_step_of_the_whole_batch():
    work = Workload(DeepLinear(dim=8, layers=2), batch=4)
    whole, parts = (Step(work, "fp32", torch.device("cpu"), micro_batches=n) for n in (1, 4))
    torch.testing.assert_close(parts.gradients(), whole.gradients())
    first, second = whole(), whole()
    assert second < first
    torch.testing.assert_close([parts(), parts()], [first, second])


@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize(
    "work",
    [
        Workload(DeepLinear(64, 3), batch=4),
        Workload(Transformer(600, 2, 8, 4, 16), batch=64, sequence=8),
    ],
)
def test_a_step_runs_the_flops_of_its_formula_and_two_fit_in_its_bytes(work, every):
    step = Step(work, "fp32", torch.device("cpu"), checkpoint_every=every)
    with measured_memory("cpu") as held, counted.flops() as count:
        step()
    assert count.step.hardware == work.flops(every).hardware
    assert held.peak_bytes <= step_bytes(work)


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_deep_linear_net_learns_though_a_scaler_skips_its_first_steps(skipped):
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
