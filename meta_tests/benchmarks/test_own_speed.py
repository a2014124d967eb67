"""The project's own benchmarks, which `.github/workflows/checks.yml` gates on each pull request.

They time formulas and a plan. None measures the machine, and none imports numpy or torch: a process
under valgrind starts in seconds. None is of `prooflops_gate`, of which both sides load one copy.
"""

import pytest

from accounting.activations import activation_bytes
from accounting.models import LLAMA3_70B, step_flops
from prooflops.__main__ import main
from prooflops.families.config import decoder_of, presets

# A collection of garbage would fall into some rounds and not into others.
pytestmark = pytest.mark.benchmark(max_time=0.1, disable_gc=True)


@pytest.fixture
def warm(benchmark):
    """The fixture `benchmark`, for a function whose first call fills caches."""

    def measured(function, *arguments):
        function(*arguments)
        return benchmark(function, *arguments)

    return measured


def test_step_flops(warm):
    assert warm(step_flops, LLAMA3_70B, 8, 8192).model > 8 * 8192 * 70e9


def test_activation_bytes(warm):
    assert warm(activation_bytes, LLAMA3_70B, 1, 8192, "bf16") > 1e9


def test_decoder(warm):
    config = presets()["deepseek-ai/DeepSeek-V3"]["config"]
    assert warm(decoder_of, config).linear_maps


def test_plan(warm, capsys):
    assert warm(main, ["plan", "llama-3-70b", "--devices", "1024"]) == 0
