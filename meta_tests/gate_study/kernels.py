"""The benchmarks of the gate study: small kernels of the kinds that people gate, from about 100 µs to 10 ms each.

Each round makes CALLS calls of a kernel. With STUDY_EXTRA=0.05 in the environment it makes 5 % more: the planted
slowdown is real work, not a factor on the result. `collect` paces them as the gate does.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

CALLS = 20  # so that 5 % and 10 % more work are whole calls
EXTRA = float(os.environ.get("STUDY_EXTRA", "0"))

torch.manual_seed(0)
random = np.random.default_rng(0)


def matmul_fp32() -> Callable[[], Any]:
    a, b = torch.randn(160, 160), torch.randn(160, 160)
    return lambda: a @ b


def matmul_bf16() -> Callable[[], Any]:
    a, b = torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16()
    return lambda: a @ b


def matrix_vector_fp32() -> Callable[[], Any]:
    matrix, vector = torch.randn(512, 512), torch.randn(512)
    return lambda: matrix @ vector


def training_step_of_a_small_mlp() -> Callable[[], Any]:
    """Written without torch.optim, whose first use imports the compiler for a second."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    x, y = torch.randn(32, 64), torch.randint(10, (32,))

    def step() -> None:
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=1e-3)
                parameter.grad = None

    return step


def adamw_step() -> Callable[[], Any]:
    parameters, gradients, first, second = (list(torch.rand(4, 64, 64)) for _ in range(4))

    def step() -> None:
        for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            p.mul_(1 - 1e-6).addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-4)

    return step


def softmax() -> Callable[[], Any]:
    x = torch.randn(64, 512)
    return lambda: x.softmax(-1)


def layer_norm() -> Callable[[], Any]:
    x, weight, bias = torch.randn(128, 512), torch.ones(512), torch.zeros(512)
    return lambda: functional.layer_norm(x, (512,), weight, bias)


def gelu() -> Callable[[], Any]:
    x = torch.randn(128, 512)
    return lambda: functional.gelu(x)


def embedding() -> Callable[[], Any]:
    table, tokens = torch.randn(10_000, 64), torch.randint(10_000, (1024,))
    return lambda: functional.embedding(tokens, table)


def convolution() -> Callable[[], Any]:
    x, weight = torch.randn(1, 16, 28, 28), torch.randn(16, 16, 3, 3)
    return lambda: functional.conv2d(x, weight, padding=1)


def attention() -> Callable[[], Any]:
    q, k, v = (torch.randn(1, 4, 64, 32) for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def sum_of_a_long_vector() -> Callable[[], Any]:
    x = torch.randn(300_000)
    return x.sum


def copy_larger_than_cache() -> Callable[[], Any]:
    """A part per call of a copy of 48 MB: in one round every part is read and written once."""
    size = 300_000
    source = torch.randn(size * (CALLS + 2))
    target = torch.empty_like(source)
    parts = [slice(size * i, size * (i + 1)) for i in range(CALLS + 2)]
    turn = iter(())

    def copy() -> None:
        nonlocal turn
        part = next(turn, None)
        if part is None:
            turn = iter(parts)
            part = next(turn)
        target[part].copy_(source[part])

    return copy


def numpy_sort() -> Callable[[], Any]:
    x = random.random(3_000)
    return lambda: np.sort(x)


def numpy_fft() -> Callable[[], Any]:
    x = random.random(4_096)
    return lambda: np.fft.rfft(x)


def numpy_arithmetic() -> Callable[[], Any]:
    x, y = random.random(30_000), random.random(30_000)
    return lambda: x * y + x


def json_round_trip() -> Callable[[], Any]:
    record = {f"key {i}": [i, i / 3, str(i)] for i in range(20)}
    return lambda: json.loads(json.dumps(record))


def plain_python() -> Callable[[], Any]:
    return lambda: sum(i * i % 7 for i in range(500))


KERNELS = (
    matmul_fp32,
    matmul_bf16,
    matrix_vector_fp32,
    training_step_of_a_small_mlp,
    adamw_step,
    softmax,
    layer_norm,
    gelu,
    embedding,
    convolution,
    attention,
    sum_of_a_long_vector,
    copy_larger_than_cache,
    numpy_sort,
    numpy_fft,
    numpy_arithmetic,
    json_round_trip,
    plain_python,
)


@pytest.fixture
def watched(benchmark: Any) -> Iterator[Any]:
    """The benchmark, which also records the kernel's share of the machine."""
    usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield benchmark
    after, wall_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - start
    cpu_s = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    benchmark.extra_info["wall_s"] = wall_s
    benchmark.extra_info["cpu_s"] = cpu_s
    benchmark.extra_info["involuntary_switches"] = after.ru_nivcsw - usage.ru_nivcsw


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_time_of(watched: Any, kernel: Callable[[], Callable[[], Any]]) -> None:
    call, calls = kernel(), range(round(CALLS * (1 + EXTRA)))

    def work() -> None:
        for _ in calls:
            call()

    watched(work)
