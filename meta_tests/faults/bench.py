"""Faults in torch, clocks, peaks and the simulated card that benchmarks must notice.

A benchmark must not record a wrong figure. Its clock must wait for the device, its inputs must be
random, its bytes must be those counted, its result right, and its rate possible.
"""

import time
from functools import partial

import torch

from meta_tests.faults import fault, stand_in

ON_CARD = "-p meta_tests.card.plugin --device cuda --quick --card-memory=4096"
on_card = partial(fault, options=ON_CARD)
MATMUL = "bench/test_matmul.py::test_matmul[fp32-square-256]"
LARGE = "bench/test_matmul.py::test_matmul[fp32-square-1024]"
CEILING = "bench/test_matmul.py::test_ceiling[fp32-sustainable]"
STREAM = "bench/test_bandwidth.py::test_stream[memory-triad]"
KERNEL = "bench/test_roofline.py::test_kernel[relu]"
LAYER = "bench/test_roofline.py::test_layer[fp32-batch-4]"
STEP = "bench/test_training.py::test_step[deep-linear-fp32-eager]"
COPY = "bench/test_transfer.py::test_copy[to-device-pinned-blocking]"
LATE_COPY = COPY.replace("-blocking", "-non-blocking")
OVERLAP = "bench/test_transfer.py::test_overlap[to-host]"
CAST = "bench/test_numerics.py::test_cast[fp16]"
PRODUCT = "bench/test_numerics.py::test_product[{}]"


@on_card(
    MATMUL,
    CEILING,
    STREAM,
    COPY,
    OVERLAP,
    CAST,
    saying="but inputs should be random",
)
def all_inputs_are_zeros(patch):
    for name in ("randn", "rand"):
        right = getattr(torch, name)
        patch.setattr(
            torch, name, lambda *shape, right=right, **options: right(*shape, **options).zero_()
        )
    patch.setattr(torch, "exp2", torch.zeros_like)


@on_card(MATMUL, saying="a product of fp32 differs from fp64 by nan")
def a_product_stops_working_after_twenty_calls(patch):
    right = torch.mm
    calls = []

    def mm(a, b, *, out):
        if out.shape == (256, 256):
            calls.append(out.shape)
        return right(a, b, out=out) if len(calls) <= 20 else out.mul_(1.0)

    patch.setattr(torch, "mm", mm)


@on_card(KERNEL, instead_of="torch.clamp", saying="differs from fp64")
def the_last_element_of_torch_clamp_is_wrong(clamp, *arguments, out=None, **options):
    result = clamp(*arguments, out=out, **options)
    # Counters of FLOPs and bytes must not see this addition.
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        if out is not None:
            out.view(-1)[-1:].add_(1.0)
    return result


FP16_LEAST_NORMAL = 2.0**-14


def flushed(x, below):
    return torch.where(x.float().abs() < below, 0.0, x.float()).to(x.dtype)


def casting(change):
    """Changes the values of a cast to fp16 by `change` before the cast."""

    def to(right, x, *arguments, **options):
        if arguments[:1] == (torch.float16,):
            x = change(x)
        return right(x, *arguments, **options)

    return stand_in("torch.Tensor.to", to)


@on_card(
    LARGE,
    CEILING,
    STREAM,
    LATE_COPY,
    OVERLAP,
    instead_of="prooflops.timing.clock",
    saying="does the benchmark wait for the device\\?",
)
def the_clock_does_not_wait_for_the_device(_original, device="cpu"):
    return lambda: time.perf_counter()


@on_card(
    MATMUL,
    CEILING,
    STEP,
    instead_of="prooflops.machine.device.peak_flop_per_s",
    saying="is it the sparse peak",
)
def the_peak_is_that_of_sparse_products(dense, *arguments):
    peak = dense(*arguments)
    return None if peak is None else 2 * peak


@on_card(
    LARGE,
    instead_of="meta_tests.card.card.Card.kernel_s",
    saying="the declared FLOPs or the timer are wrong",
)
def a_product_takes_no_time(_original, *_):
    return 1e-12


@on_card(
    MATMUL,
    CEILING,
    LAYER,
    instead_of="torch.mm",
    saying="a product of fp32 differs from fp64",
)
def a_product_is_half_of_what_it_should_be(mm, a, b, *, out):
    return mm(a, b, out=out).mul_(0.5)


@on_card(COPY, instead_of="torch.Tensor.copy_", saying="bytes are declared")
def nothing_is_copied(right, target, source, **options):
    return target if target.numel() > 2**20 else right(target, source, **options)


def without_subnormals(x):
    return torch.where(x.abs() < FP16_LEAST_NORMAL, 0.0, x)


def truncated(x):
    normal = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return torch.where(x.abs() >= FP16_LEAST_NORMAL, normal, x)


def saturated(x):
    return x.clamp(-(2.0**15), 2.0**15)


for name, change, said in (
    ("a_cast_flushes_subnormals", without_subnormals, "values became 0 in fp16"),
    ("a_cast_truncates", truncated, "fp16 rounds with a relative error"),
    ("a_cast_saturates_early", saturated, "beyond the largest fp16 became smaller"),
):
    on_card(CAST, saying=said, name=name)(casting(change))


@on_card(
    PRODUCT.format("fp16"),
    instead_of="torch.mm",
    saying="fp16 operand 3.05176e-05 became 0, but should be kept",
)
def products_of_fp16_read_subnormals_as_zero(mm, a, b, **_):
    return mm(flushed(a, FP16_LEAST_NORMAL), b)


@on_card(
    PRODUCT.format("bf16"),
    instead_of="torch.mm",
    saying="bf16 operand 1.17549e-38 became 0, but should be kept, or all subnormal numbers",
)
def products_of_bf16_lose_normal_numbers(mm, a, b, **_):
    return mm(flushed(a, 2.0 ** (-125)), b)


@on_card(
    PRODUCT.format("fp32"),
    instead_of="torch.mm",
    saying="fp32 products by 1 keep 10 fraction bits, but should keep 23",
)
def products_of_fp32_keep_ten_bits(mm, a, b, **_):
    ten_bits = (a.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return mm(torch.where(a.abs() < 2.0 ** (-100), a, ten_bits), b)
