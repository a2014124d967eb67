"""Kernels from ReLU to saturated products, compared with this machine's own roofs.

Each kernel's intensity follows from `accounting.roofline` and is counted as well. Its attainable
rate is the lower of two roofs measured in the same run. One is the products' ceiling (`ceilings`).
The other is its intensity times the bandwidth for the same mix of reads and writes (`bandwidths`).
Operands below four last-level caches (16 on an accelerator) are measured cold.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from accounting.roofline import attainable_flop_per_s, ridge_point
from bench import kernels, products
from bench.ceilings import Ceilings
from bench.kernels import KERNELS, Kernel
from bench.streams import Bandwidths, assert_bytes, operand_elements, wanted_multiple
from prooflops import counted

# The length of a row in softmax and layer norm.
ROW = 1024
BATCHES = (1, 4, 16, 64, 256, 1024)
PRODUCT_DTYPES = ("fp32", "bf16")


def with_rows(case: products.Product, rows: int) -> products.Product:
    """This layer on `rows` random rows."""
    a = torch.randn(rows, case.a.shape[1], device=case.a.device).to(case.a.dtype)
    out = torch.empty(rows, case.b.shape[1], device=a.device, dtype=a.dtype)
    return replace(case, a=a, multiply=products.multiplication(case.dtype, a, case.b, out))


@pytest.fixture(scope="module")
def weights(device) -> Iterator[dict[str, products.Product]]:
    """The layer's products by dtype, so that its weights are drawn once."""
    made: dict[str, products.Product] = {}
    yield made
    made.clear()
    gc.collect()


@pytest.fixture(scope="module")
def rows(device, pace, bandwidths, gate_replicate) -> Iterator[tuple[Tensor, Tensor]]:
    """Random rows, and equal ones to write into."""
    # Measured before, while their arrays have the room; the gate does not need them.
    assert gate_replicate or bandwidths.measured
    shape = (operand_elements(device, pace, bandwidths.size) // ROW, ROW)
    made = [torch.randn(shape, device=device), torch.rand(shape, device=device)]
    yield made[0], made[1]
    made.clear()
    gc.collect()


@pytest.fixture
def place(
    device, caches, ceilings, bandwidths, measure, peak_flop_per_s, bound_bytes_per_s
) -> Callable[[Kernel], None]:
    """Measures a kernel and says where it is under the roofs."""

    def placed(kernel: Kernel) -> None:
        __tracebackhide__ = True
        work, dtype = kernel.work, kernel.dtype
        seen = measure.once(partial(counted_work, kernel))
        cache_bytes = caches.last_level_bytes
        # Two operands, each as long as an array of the bandwidths.
        long_bytes = 2 * wanted_multiple(device) * cache_bytes if cache_bytes else 0
        fits_cache = work.bytes < long_bytes
        texts = {"counted_otherwise": kernel.why, "label": kernel.label}
        seconds = measure.work(
            kernel.run,
            work,
            dtype=dtype,
            check=kernel.check,
            cache="cold" if fits_cache else "as-is",
            ceiling=None if measure.brief else ceilings.flop_per_s(dtype),
            bytes_bound=None if fits_cache else bound_bytes_per_s,
            **{name: text for name, text in texts.items() if text},
        )
        if measure.brief or seen is None:
            # A process of the gate compares times alone.
            return
        reads = seen.read_bytes / seen.moved_bytes
        peak, roof = roofs(kernel, seconds, reads, ceilings, bandwidths, fits_cache=fits_cache)
        vendor_peak = peak_flop_per_s(dtype)
        paper_ridge = None
        if vendor_peak and bound_bytes_per_s:
            paper_ridge = ridge_point(vendor_peak, bound_bytes_per_s)
        measure.declare(
            read_share=reads,
            counted_intensity=(seen.total + seen.elementwise) / seen.moved_bytes,
            roof_label=bandwidths.size.label,
            paper_ridge=paper_ridge,
            ceiling_flop_per_s=peak,
            roof_bytes_per_s=roof,
        )

    return placed


def counted_work(kernel: Kernel) -> counted.CountedWork:
    """The bytes and FLOPs of one call, which are those of its formula."""
    __tracebackhide__ = True
    work = kernel.work
    seen = assert_bytes(work, kernel.run, uncounted=kernel.more_bytes)
    found, wanted = seen.total + seen.elementwise, work.flops + kernel.more_flops
    assert found == wanted, (
        f"{found} FLOPs are counted, but should be {wanted}: {work.flops} by formula, "
        f"{kernel.more_flops:+d} by convention ({kernel.why or 'none differs'})"
    )
    return seen


def roofs(
    kernel: Kernel,
    seconds: float,
    reads: float,
    ceilings: Ceilings,
    bandwidths: Bandwidths,
    *,
    fits_cache: bool,
) -> tuple[float, float]:
    """FLOP/s and bytes/s that bound a kernel; one that it exceeds is measured again.

    A kernel whose operands fit a cache may well exceed the bandwidth of
    the memory.
    """
    work = kernel.work
    peak, roof = ceilings.flop_per_s(kernel.dtype), bandwidths.bytes_per_s(reads)
    if work.flops / seconds <= attainable_flop_per_s(work.intensity, peak, roof):
        return peak, roof
    if roof * work.intensity >= peak:
        return ceilings.remeasure(kernel.dtype, kernel.run, work.flops), roof
    if fits_cache:
        return peak, roof
    return peak, bandwidths.raised(reads, kernel.run, work.bytes)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name, rows, place):
    place(KERNELS[name](*rows))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"batch-{batch}")
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
def test_layer(dtype, batch, device, measure, ceilings, weights, place):
    """(batch, 4096) by (4096, 4096), a layer of Llama 3 8B, from one token to many."""
    try:
        measure.skip_if_longer(2 * batch * math.prod(kernels.LAYER), dtype, ceilings)
        if dtype not in weights:
            weights[dtype] = products.product(dtype, 1, *kernels.LAYER, device)
    except products.Unsupported as reason:
        pytest.skip(str(reason))
    case = with_rows(weights[dtype], batch)
    # With few rows a kernel may be much slower than at the ceiling's shape.
    measure.once(partial(measure.skip_if_slow, case.multiply))
    place(Kernel(case.multiply, case.work, case.check, dtype=dtype))
