"""What one call reads, writes and dispatches is seen; wrong results are noticed."""

import pytest
import torch

from bench import checks, kernels
from bench.checks import examine
from meta_tests.bench.stand_ins import supported
from prooflops import counted


def test_what_a_call_reads_is_not_overwritten():
    x, kept = torch.randn(64), torch.arange(64)
    copied, negated = torch.zeros_like(kept), torch.zeros_like(kept)

    def call():
        written = kept + 1, copied.copy_(kept), torch.neg(kept, out=negated)
        return x.add_(1), kept, torch.ones(1).expand(8), *written

    seen = examine(call)
    checks.overwrite(seen)
    assert x.isfinite().all()
    assert kept.tolist() == list(range(64))
    for out in seen.result[3:]:
        assert (out == torch.iinfo(torch.int64).min).all()


def test_inputs_of_which_many_are_one_value_are_not_random():
    checks.assert_random([torch.randn(100), torch.zeros(63), torch.arange(64)])
    zeros = torch.zeros(300)
    for given in (torch.full((64,), torch.nan), torch.cat([zeros, -zeros, torch.randn(1000)])):
        with pytest.raises(AssertionError, match="should be random"):
            checks.assert_random([torch.randn(100), given])


def not_a_number(case):
    return torch.full_like(case.multiply(), float("nan"))


def one_term_of_k_left_out(case):
    return case.a[:, 1:].float() @ case.b[1:].float()


def half_the_result(case):
    return case.multiply().float() / 2


WRONG = (not_a_number, one_term_of_k_left_out, half_the_result)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("k", [96, 32768])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8", "fp8_e4m3"])
def test_a_wrong_product_fails_its_check_and_a_right_one_passes(dtype, k, wrong):
    """Roundings relative to the sum of magnitudes, not to the sum, would let half of a long result
    pass.
    """
    if dtype == "int8" and wrong is not_a_number:
        pytest.skip("integers have no NaN")
    if k > 96 and wrong is one_term_of_k_left_out:
        pytest.skip("one term of many is within rounding")
    case = supported(dtype, 16, k, 64)
    case.check(case.multiply())
    with pytest.raises(
        AssertionError, match=rf"product of {dtype} differs from fp64 by .* m=16, {k=}, n=64"
    ):
        case.check(wrong(case))


def test_weight_and_bias_lie_half_a_page_apart_in_no_more_pages_than_they_need():
    page = kernels.PAGE_BYTES
    weight, bias = kernels.half_a_page_apart(5000, torch.device("cpu"))
    apart = bias.data_ptr() - weight.data_ptr()
    assert (weight.data_ptr() % page, apart % page) == (0, page // 2)
    assert weight.nbytes <= apart < weight.nbytes + 2 * page


@pytest.fixture(params=list(kernels.KERNELS))
def kernel(request, monkeypatch):
    monkeypatch.setattr(kernels, "LAYER", (256, 512))
    return kernels.KERNELS[request.param](torch.randn(128, 1024), torch.rand(128, 1024))


def test_a_kernel_does_its_declared_work_and_a_wrong_result_is_caught(
    kernel,
):
    with counted.flops() as seen:
        out = kernel.run()
    kernel.check(out)
    assert seen.total + seen.elementwise == kernel.work.flops + kernel.more_flops
    assert seen.moved_bytes == kernel.work.bytes + kernel.more_bytes
    out.view(-1)[-1].add_(1.0).mul_(1.01)
    with pytest.raises(AssertionError, match="differs from fp64 by"):
        kernel.check(out)
