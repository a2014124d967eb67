"""A wrong product is noticed, whatever its dtype and its size; a part of larger operands is multiplied right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bench.products import DTYPES, Operands, Product, Unsupported, multiplication, probe_tf32, product
from meta_tests.bench.stand_ins import CPU, supported


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_product_passes_its_check(dtype: str) -> None:
    for _ in range(10):
        case = supported(dtype)
        case.check(case.multiply())


WRONG: dict[str, Callable[[Product], torch.Tensor]] = {
    "zeros": lambda case: torch.zeros_like(case.multiply()),
    "not a number": lambda case: torch.full_like(case.multiply(), float("nan")),
    "one term of k left out": lambda case: case.a[:, 1:].float() @ case.b[1:].float(),
    "operands of another seed": lambda case: case.a.float() @ case.b.float().flip(0),
    "half the result": lambda case: case.multiply().float() / 2,
}


@pytest.mark.prove(sample=4)
@pytest.mark.parametrize("wrong", [each for each in WRONG if each != "one term of k left out"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8_e4m3"])
def test_a_long_sum_does_not_excuse_a_wrong_product(dtype: str, wrong: str) -> None:
    """Roundings relative to the sum of magnitudes, not to the sum, would let half of a result pass at such a k."""
    try:
        case = product(dtype, 16, 32768, 64, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))
    case.check(case.multiply())
    with pytest.raises(AssertionError, match=f"product of {dtype} differs from fp64"):
        case.check(WRONG[wrong](case))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8", "fp8_e4m3"])
def test_a_wrong_product_fails_its_check(dtype: str, wrong: str) -> None:
    if dtype == "int8" and wrong == "not a number":
        pytest.skip("integers have no NaN")
    case = supported(dtype)
    with pytest.raises(AssertionError, match=rf"product of {dtype} differs from fp64 by .* m=48, k=96, n=64"):
        case.check(WRONG[wrong](case))


def test_a_dtype_the_device_lacks_is_named_with_the_reason() -> None:
    with pytest.raises(Unsupported, match="tf32 exists on CUDA devices only"):
        product("tf32", 64, 64, 64, CPU)


def test_tf32_that_keeps_every_bit_of_fp32_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ROCm without HIPBLASLT_ALLOW_TF32, and on this CPU."""
    with pytest.raises(Unsupported, match="multiplies fp32 in full where tf32 is allowed"):
        probe_tf32(CPU)
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: a.bfloat16().float().mm(b))
    probe_tf32(CPU)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_of_the_operands_is_multiplied_right(dtype: str) -> None:
    cpu = torch.device("cpu")
    try:
        operands = Operands(dtype, 64, 96, 80, cpu)
    except Unsupported as reason:
        pytest.skip(str(reason))
    for m, k, n in ((64, 96, 80), (16, 32, 48), (48, 16, 16)):
        multiply, flops = operands.multiply(m, k, n)
        case = product(dtype, m, k, n, cpu)
        b = operands._b[: k * n]
        b = b.view(n, k).t() if dtype == "fp8_e4m3" else b.view(k, n)
        type(case)(dtype, operands._a[: m * k].view(m, k), b, multiply).check(multiply())
        assert flops == 2 * m * k * n


def test_zeroed_operands_are_zeros() -> None:
    multiply, _ = Operands("fp32", 8, 8, 8, torch.device("cpu")).zeroed().multiply(8, 8, 8)
    assert not multiply().any()


@pytest.mark.parametrize("fast", [False, True])
def test_fp8_is_accumulated_as_asked(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda *_, **options: asked.append(options["use_fast_accum"]))
    a = torch.ones(16, 16)
    multiplication("fp8_e4m3", a, a, None, fast=fast)()
    assert asked == [fast]
