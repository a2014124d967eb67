"""Kernels are called with made-up values in a process of their own, which they may end."""

from __future__ import annotations

import torch

from prooflops.memory import copy_of, predicted_memory
from prooflops.memory.calls import call_of
from prooflops.memory.kernels import Kernel, Refusal, kernels_of

aten = torch.ops.aten


def crashing_call():
    """A kernel that reads as far beyond its argument as the made-up `dimension` says."""
    quasi = torch.zeros(1, dtype=torch.long)
    state = torch.zeros(1, 1, dtype=torch.long)
    return call_of(aten._sobol_engine_draw.default, (quasi, 1, state, 2**26, 0, torch.float32), {})


def test_a_kernel_that_crashes_is_refused_and_the_others_are_measured():
    x = torch.ones(64, 64)
    good = [call_of(aten.mm.default, (x[:, :width], x[:width]), {}) for width in (8, 16)]
    found = kernels_of([good[0], crashing_call(), good[1]], "cpu")
    assert isinstance(found[crashing_call()], Refusal)
    assert "ended the process" in found[crashing_call()].reason
    assert all(isinstance(found[call], Kernel) for call in good), f"{found}"


def test_an_error_of_a_kernel_is_the_reason():
    x = torch.ones(3, 4)
    call = call_of(aten.mm.default, (x, x), {})
    refusal = kernels_of([call], "cpu")[call]
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")


@torch.library.custom_op("meta_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_that_only_this_process_has_is_unknown_and_says_why():

    with predicted_memory(scratch=True) as held:
        out = doubled(torch.ones(8))
        held.mark("doubled")
        del out
    assert held.unknown == {"meta_tests.doubled.default": 1}
    assert held.peak_bytes_with_scratch is None
    assert "meta_tests" in held.why_unknown["meta_tests.doubled.default"]


def test_a_kernel_whose_values_decide_is_unknown_and_says_so():
    source = torch.ones(8, requires_grad=True)
    with predicted_memory(scratch=True) as held:
        x = torch.zeros(8).masked_scatter(torch.ones(8) > 0, copy_of(source, "cpu"))
        x.sum().backward()
        del x
    assert "values" in held.why_unknown["aten.masked_scatter_backward.default"]
    assert held.peak_bytes_with_scratch is None
