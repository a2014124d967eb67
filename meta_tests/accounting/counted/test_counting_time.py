"""The time of counting FLOPs and bytes per operator, beside that of torch's FlopCounterMode."""

from collections.abc import Callable
from itertools import islice
from statistics import median
from time import perf_counter

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accounting import counted
from accounting.measured import alternating
from accounting.models import GPT2_SMALL, LLAMA3_8B, DeepLinear
from bench.models import build, inputs, reduced

# How many times as long as torch's counter ours may take, bytes per operator included.
LARGEST_RATIO = 1.5
PAIRS = {"quick": 5, "default": 15, "thorough": 101}

WORKLOADS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    name: lambda model=model: (build(model, device="meta"), inputs(model, 2, 16, device="meta"))
    for name, model in {
        "deep-linear": DeepLinear(dim=8, layers=40),
        "gpt2": reduced(GPT2_SMALL, layers=2),
        "llama": reduced(LLAMA3_8B, layers=2),
    }.items()
}


def seconds(function: Callable[[], object]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start


@pytest.mark.prove(sample=1)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_counting_takes_at_most_half_as_long_again_as_torchs_counter(workload: str, pace: str) -> None:
    net, data = WORKLOADS[workload]()

    def step() -> None:
        with sdpa_kernel(SDPBackend.MATH):  # every version of torch can count this one
            output = net(data)
            output.backward(torch.ones_like(output))

    def ours() -> int:
        with counted.flops() as count:
            step()
        return count.total

    def theirs() -> int:
        with FlopCounterMode(display=False) as counter:
            step()
        return int(counter.get_total_flops())

    step()  # torch imports its compiler at the first one, and may try out operators as it does
    flops = ours()
    assert flops == theirs(), f"counted {flops} FLOPs, but torch's counter says {theirs()} of the same products"
    pairs = islice(alternating(lambda: seconds(ours), lambda: seconds(theirs)), PAIRS[pace])
    ratio = median(our_s / their_s for our_s, their_s in pairs)
    assert ratio <= LARGEST_RATIO, (
        f"counting takes {ratio:.2f} times as long as torch's counter, but should at most {LARGEST_RATIO}"
    )
