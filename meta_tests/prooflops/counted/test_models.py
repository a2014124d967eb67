"""Formula = counted, difference 0, for the FLOPs of five models at full size.

The nets of bench/models.py run on the meta device, which holds nothing and takes the unfused path
of attention. Every run takes four layers of the large models, which are all alike; `make prove`
takes them whole.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop

from accounting.models import (
    GPT2_SMALL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    DeepLinear,
    Transformer,
    step_flops,
)
from bench.models import build, inputs
from prooflops import counted

# A net of the lecture's kind, as deep as Llama-3-8B and as wide.
DEEP_LINEAR = DeepLinear(dim=4096, layers=32)
MODELS = {
    "GPT-2 small": GPT2_SMALL,
    "Llama-3-8B": LLAMA3_8B,
    "Llama-3-70B": LLAMA3_70B,
    "Mixtral-8x7B": MIXTRAL_8X7B,
    "deep linear": DEEP_LINEAR,
}
SIZES = [(1, 1024), pytest.param(3, 100, marks=pytest.mark.prove)]


def whole_and_cut(models):
    """Each model with all its layers, and the large ones with four, which every run takes."""
    for name, model in models.items():
        large = isinstance(model, Transformer) and model != GPT2_SMALL
        yield pytest.param(model, id=name, marks=pytest.mark.prove if large else ())
        if large:
            yield pytest.param(replace(model, layers=4), id=f"{name}, four layers")


def sizes_of(model, batch, sequence):
    """A deep linear net has no sequence: as many examples."""
    return (batch * sequence, 1) if isinstance(model, DeepLinear) else (batch, sequence)


def count_of(model, batch, sequence, checkpoint_every):
    """Forward and backward pass from a gradient of ones, so that no loss is counted."""
    net = build(model, device="meta", checkpoint_every=checkpoint_every)
    data = inputs(model, batch, sequence, device="meta")
    with sdpa_kernel(SDPBackend.MATH), set_checkpoint_early_stop(False), counted.flops() as count:
        output = net(data)
        output.backward(torch.ones_like(output))
    return count


@pytest.mark.parametrize("checkpoint_every", [0, 4])
@pytest.mark.parametrize(("batch", "sequence"), SIZES)
@pytest.mark.parametrize("model", [*whole_and_cut(MODELS)])
def test_flops_forward_backward_and_of_the_step_are_those_counted(
    model, batch, sequence, checkpoint_every
):
    sizes = sizes_of(model, batch, sequence)
    count = count_of(model, *sizes, checkpoint_every=checkpoint_every)
    formula = step_flops(model, *sizes, checkpoint_every=checkpoint_every)
    assert count.step == formula
    assert not count.unknown
