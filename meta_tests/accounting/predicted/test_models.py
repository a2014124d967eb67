"""Full-size models predicted without their memory, beside the formulas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import process_time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from accounting import memory, optimizers, predicted
from accounting.activations import RANDOM_STATE_BYTES, deep_linear_peak_bytes
from accounting.models import GPT2_SMALL, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, DeepLinear, parameter_count
from meta_tests.accounting.older_torch import activation_bytes_here
from meta_tests.accounting.predicted.predicting import OPTIMIZERS, built, few, step_of

# ---- formulas --------------------------------------------------------------------------------------------------------

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize(
    ("preset", "dtype", "every"),
    [
        (GPT2_SMALL, "fp32", 0),
        (GPT2_SMALL, "bf16", 3),
        (replace(LLAMA3_8B, layers=4), "bf16", 0),
        (replace(LLAMA3_8B, layers=4), "fp32", 2),
        pytest.param(LLAMA3_8B, "fp32", 2, marks=pytest.mark.prove),
        pytest.param(LLAMA3_70B, "bf16", 0, marks=pytest.mark.prove),
        pytest.param(MIXTRAL_8X7B, "bf16", 0, marks=pytest.mark.prove),
    ],
)
def test_full_size_activations_are_those_of_the_formula(workloads, preset, dtype, every):
    with torch.device("meta"):
        model = built(workloads, preset, every, DTYPES[dtype])
    with predicted.memory() as held:
        net = predicted.fake_copy(model, "cpu")
        held.mark("built")
        tokens = torch.empty(2, 1024, dtype=torch.long)
        held.mark("tokens")
        logits = net(tokens)
        held.mark("forward")
    live = {name: phase.live_bytes for name, phase in held.phases.items()}
    assert live["built"] == memory.element_bytes(parameter_count(preset), dtype), f"{live}"
    states = -(-preset.layers // every) * RANDOM_STATE_BYTES if every else 0
    got = live["forward"] - live["tokens"] - logits.nbytes - states
    formula = activation_bytes_here(preset, 2, 1024, dtype, checkpoint_every=every)
    assert formula == got, f"activation_bytes={formula}, but should be {got}"


@few
@given(dim=st.integers(8, 64), layers=st.integers(1, 6), rows=st.integers(8, 128))
def test_the_peak_of_a_deep_linear_net_is_that_of_the_formula(workloads, dim, layers, rows):
    model = DeepLinear(dim=dim, layers=layers)
    inputs = torch.empty(rows, dim)
    step = predicted.TrainingStep(
        partial(built, workloads, model), inputs, loss=lambda out: functional.mse_loss(out, out.detach() * 0)
    ).predict()
    got = max(step.phases[name].peak_bytes for name in ("forward", "backward"))
    formula = deep_linear_peak_bytes(model, rows)
    assert abs(formula - got) <= 5 * rows * 4, f"deep_linear_peak_bytes={formula}, but should be {got}"


@pytest.mark.parametrize("implementation", optimizers.IMPLEMENTATIONS)
def test_the_peak_of_an_optimizer_step_is_that_of_the_formula(implementation):
    net = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 50))
    step = predicted.TrainingStep(
        net, torch.empty(0, 100), loss=torch.sum, optimizer=OPTIMIZERS[f"adamw {implementation}"]
    ).predict()
    got = step.phases["second step"].peak_bytes
    formula = memory.optimizer_step_peak_bytes([tensor.numel() for tensor in net.parameters()], implementation)
    assert 0 <= got - formula <= 12, f"optimizer_step_peak_bytes={formula}, but should be {got}"


@pytest.mark.prove
def test_a_step_of_mixtral_is_predicted_at_full_size_in_time_proportional_to_its_layers(workloads):
    quarter_s, _ = timed(step_of, workloads, replace(MIXTRAL_8X7B, layers=MIXTRAL_8X7B.layers // 4), 4096)
    full_s, step = timed(step_of, workloads, MIXTRAL_8X7B, 4096)
    count, tensors = parameter_count(MIXTRAL_8X7B), 995
    classes = step.phases["second step"].live_by_class
    assert classes["parameters"] == classes["gradients"] == 2 * count, f"{classes}"
    assert classes["optimizer state"] == 2 * 2 * count + 4 * tensors, f"{classes}"
    # Measured: 3.6 to 4.2 times the processor time of a quarter of the layers. Quadratic work would take 16 times.
    assert full_s < 6 * quarter_s, f"{full_s:.1f} s for all layers, but {quarter_s:.1f} s for a quarter of them"


def timed(function, *arguments):
    """The processor time of a call, which other processes do not lengthen as they do its duration; and its result."""
    start = process_time()
    result = function(*arguments)
    return process_time() - start, result


def main() -> None:
    from bench import models as workloads

    for name, preset in PRINTED.items():
        seconds, step = timed(step_of, workloads, preset, sequence := 8192)
        for phase_name, phase in step.phases.items():
            parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in phase.peak_by_class.items())
            levels = f"live {phase.live_bytes / 1e9:8.2f} GB, peak {phase.peak_bytes / 1e9:8.2f} GB"
            print(f"{phase_name:16} {levels}: {parts}")
        print(f"{name}, one sequence of {sequence} in bf16: predicted in {seconds:.1f} s of processor time")


PRINTED = {"Llama-3-70B": LLAMA3_70B, "Mixtral-8x7B": MIXTRAL_8X7B}

if __name__ == "__main__":
    main()
