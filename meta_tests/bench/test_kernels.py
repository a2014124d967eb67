"""Each kernel of the roofline does the work it declares, and a wrong result of it is noticed."""

from __future__ import annotations

import pytest
import torch

from accounting import counted
from bench import kernels

ROWS, FEATURES = 128, 1024


@pytest.fixture(autouse=True)
def small_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LAYER", (256, 512))


@pytest.fixture(params=list(kernels.KERNELS))
def kernel(request: pytest.FixtureRequest) -> kernels.Kernel:
    return kernels.kernel(request.param, torch.randn(ROWS, FEATURES), torch.rand(ROWS, FEATURES))


def test_a_kernel_does_the_work_that_it_declares(kernel: kernels.Kernel) -> None:
    with counted.flops() as seen:
        result = kernel.run()
    kernel.check(result)
    assert seen.total + seen.elementwise == kernel.work.flops + kernel.more_flops
    assert seen.moved_bytes == kernel.work.bytes + kernel.more_bytes


def test_a_wrong_result_of_a_kernel_is_caught(kernel: kernels.Kernel) -> None:
    out = kernel.run()
    out.view(-1)[-1].add_(1.0).mul_(1.01)
    with pytest.raises(AssertionError, match="differs from fp64 by"):
        kernel.check(out)


@pytest.mark.parametrize("features", [1, 1000, 1024, 3000])
def test_the_vectors_of_a_layer_norm_lie_alike_in_each_process(features: int) -> None:
    """Those of three calls, as memory is placed by chance."""
    kept = [kernels.half_a_page_apart(features, torch.device("cpu")) for _ in range(3)]
    for weight, bias in kept:
        assert weight.shape == bias.shape == (features,)
        assert (weight.data_ptr() % 4096, bias.data_ptr() % 4096) == (0, 2048)
        assert bias.data_ptr() >= weight.data_ptr() + 4 * features, "they do not overlap"


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"name must be one of relu, gelu-fused, .* matvec, got 'swish'"):
        kernels.kernel("swish", torch.ones(1), torch.ones(1))
