"""The roofline, measured: kernels from ReLU to saturated products, held against this machine's own roofs.

Each kernel's intensity follows from `accounting.roofline` and is counted as well. What it can attain is the lower of
two roofs measured in the same run: the products' ceiling (`ceilings`), and its intensity times the bandwidth measured
for the same mix of reads and writes (`bandwidths`). Operands below four last-level caches are measured cold.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from accounting.roofline import (
    Work,
    attainable_flop_per_s,
    dot_work,
    elementwise_work,
    layer_norm_work,
    matvec_work,
    ridge_point,
    softmax_work,
)
from bench import products
from bench.cache import Caches
from bench.call_inspection import in_fp64
from bench.ceilings import Ceilings
from bench.measuring import Measure
from bench.pace import PACES
from bench.streams import WANTED_MULTIPLE, Bandwidths, assert_bytes, dot_tolerance
from bench.work import bound_of, composed_gelu_work

ROW = 1024  # elements that softmax and layer norm work on
LAYER = (4096, 4096)  # the attention's output projection of Llama 3 8B
BATCHES = (1, 4, 16, 64, 256, 1024)
PRODUCT_DTYPES = ("fp32", "bf16")
# Rounding of one fused kernel in fp32, and the few units in the last place of an exponential or an error function.
TOLERANCE = 64 * 2.0**-24


@dataclass(frozen=True)
class Kernel:
    """One kernel: the call, its work by formula, and where counting has another convention, by how much and why."""

    run: Callable[[], Tensor]
    work: Work
    check: Callable[[Tensor], None]
    more_flops: int = 0  # counted, than the formula says
    more_bytes: int = 0
    why: str = ""
    label: str = ""  # what the time has in it besides the kernel
    dtype: str = "fp32"


def close_to(exact: Callable[[Tensor], Tensor], *inputs: Tensor) -> Callable[[Tensor], None]:
    """A check of the first, the middle and the last rows against fp64; by the rows of the first input."""

    def check(got: Tensor) -> None:
        __tracebackhide__ = True
        rows, last = got.shape[0], max(got.shape[0] - 64, 0)
        for start in {0, last // 2, last}:
            part = slice(start, min(start + 64, rows))
            wanted = exact(*(in_fp64(x[part]) for x in inputs))
            error = float(((in_fp64(got[part]) - wanted).abs() / wanted.abs().clamp_min(1.0)).max())
            assert error <= TOLERANCE, (  # a NaN fails
                f"the result differs from fp64 by {error:.3g}, but rounding explains at most {TOLERANCE:.3g}"
            )

    return check


def composed_gelu(x: Tensor, out: Tensor) -> Tensor:
    """x/√2, erf, +1, ·x, ·½, each of which reads and writes memory."""
    torch.mul(x, math.sqrt(0.5), out=out)
    torch.erf(out, out=out)
    torch.add(out, 1, out=out)
    torch.mul(out, x, out=out)
    return torch.mul(out, 0.5, out=out)


def kernel(name: str, x: Tensor, out: Tensor) -> Kernel:
    """One of KERNELS, on rows `x`, most of them writing into `out`."""
    shape, count, device = tuple(x.shape), x.numel(), x.device
    ops = torch.ops.aten
    fused = "counted as one FLOP per element, whatever is fused"
    if name == "relu":
        return Kernel(lambda: torch.clamp(x, min=0, out=out), elementwise_work(shape, "relu", "fp32"),
                      close_to(lambda x: x.clamp(min=0), x))  # fmt: skip
    if name == "gelu-fused":
        return Kernel(lambda: ops.gelu.out(x, out=out), elementwise_work(shape, "gelu", "fp32"),
                      close_to(functional.gelu, x), more_flops=-4 * count, why=fused)  # fmt: skip
    if name == "gelu-composed":
        return Kernel(lambda: composed_gelu(x, out), composed_gelu_work(shape, "fp32"), close_to(functional.gelu, x))
    if name == "softmax":
        return Kernel(lambda: ops._softmax.out(x, 1, False, out=out), softmax_work(shape, "fp32"),
                      close_to(lambda x: torch.softmax(x, 1), x))  # fmt: skip
    if name == "layer-norm":
        weight, bias = torch.rand(ROW, device=device) + 0.5, torch.randn(ROW, device=device)

        def normalise(x: Tensor) -> Tensor:
            return functional.layer_norm(x, (ROW,), weight.to(x.dtype), bias.to(x.dtype))

        return Kernel(lambda: normalise(x), layer_norm_work(shape, "fp32"), close_to(normalise, x),
                      more_flops=2 * shape[0], more_bytes=8 * shape[0],
                      why="counted with each row's mean and deviation, which the formula leaves out",
                      label="allocates its result" if device.type == "cpu" else "")  # fmt: skip
    if name == "dot":
        a, b, one = x.flatten().abs(), torch.rand_like(x).flatten(), torch.zeros((), device=device)

        def check_dot(got: Tensor) -> None:
            __tracebackhide__ = True
            parts = zip(a.split(2**22), b.split(2**22), strict=True)
            exact = float(sum(torch.dot(in_fp64(x), in_fp64(y)) for x, y in parts))
            error = abs(float(got) / exact - 1)
            assert error <= dot_tolerance(count), f"dot differs from fp64 by {error:.3g}, <= {dot_tolerance(count):.3g}"

        return Kernel(lambda: torch.dot(a, b, out=one), dot_work(count, "fp32"), check_dot)
    if name == "matvec":
        matrix, vector = torch.randn(LAYER, device=device), torch.randn(LAYER[1], device=device)
        product = torch.empty(LAYER[0], device=device)

        def check_matvec(got: Tensor) -> None:
            __tracebackhide__ = True
            exact = in_fp64(vector)
            size = exact.abs()
            for part, found in zip(matrix.split(512), got.split(512), strict=True):
                wrong = (in_fp64(found) - in_fp64(part) @ exact).abs() / (in_fp64(part).abs() @ size)
                error = float(wrong.max())
                assert error <= 4 * TOLERANCE, (
                    f"matvec differs from fp64 by {error:.3g} of the magnitudes, should by <= {4 * TOLERANCE:.3g}"
                )

        return Kernel(lambda: torch.mv(matrix, vector, out=product), matvec_work(*LAYER, "fp32"), check_matvec)
    raise ValueError(f"name must be one of {', '.join(KERNELS)}, got {name!r}")


KERNELS = ("relu", "gelu-fused", "gelu-composed", "softmax", "layer-norm", "dot", "matvec")


def with_rows(case: products.Product, rows: int) -> products.Product:
    """The same layer on so many random rows."""
    a = torch.randn(rows, case.a.shape[1], device=case.a.device).to(case.a.dtype)
    out = torch.empty(rows, case.b.shape[1], device=a.device, dtype=a.dtype)
    return replace(case, a=a, multiply=lambda: torch.mm(a, case.b, out=out))


@pytest.fixture(scope="module")
def weights(device: torch.device) -> Iterator[dict[str, products.Product]]:
    """The layer's products by dtype, so that its weights are drawn once."""
    made: dict[str, products.Product] = {}
    yield made
    made.clear()
    gc.collect()


@pytest.fixture(scope="module")
def rows(device: torch.device, bandwidths: Bandwidths) -> Iterator[tuple[Tensor, Tensor]]:
    """Random rows, each array as long as those of the bandwidths, and as many to write into."""
    shape = (bandwidths.size.elements // ROW, ROW)
    made = [torch.randn(shape, device=device), torch.rand(shape, device=device)]
    yield made[0], made[1]
    made.clear()
    gc.collect()


@pytest.fixture
def place(
    caches: Caches,
    ceilings: Ceilings,
    bandwidths: Bandwidths,
    measure: Measure,
    peak_flop_per_s: Callable[[str], float | None],
    bound_bytes_per_s: float | None,
) -> Callable[[Kernel], None]:
    """Measures a kernel and says where it is under the roofs."""

    def placed(kernel: Kernel) -> None:
        __tracebackhide__ = True
        work, dtype = kernel.work, kernel.dtype
        seen = assert_bytes(work, kernel.run, uncounted=kernel.more_bytes)
        assert_counted(kernel, seen.total + seen.elementwise)
        reads = seen.read_bytes / seen.moved_bytes
        known = caches.last_level_bytes
        long = known is None or work.bytes >= 2 * WANTED_MULTIPLE * known
        seconds = measure.work(
            kernel.run,
            work,
            dtype=dtype,
            check=kernel.check,
            cache="as-is" if long else "cold",
            bytes_bound=bound_bytes_per_s if long else None,
            counted_bytes=seen.moved_bytes,
            counted_intensity=(seen.total + seen.elementwise) / seen.moved_bytes,
            read_share=reads,
            **({"counted_otherwise": kernel.why} if kernel.why else {}),
            **({"label": kernel.label} if kernel.label else {}),
        )
        peak, roof = ceilings.flop_per_s(dtype), bandwidths.bytes_per_s(reads)
        rate, attainable = work.flops / seconds, attainable_flop_per_s(work.intensity, peak, roof)
        remeasured = ""
        if rate > attainable and roof * work.intensity < peak and long:
            roof, remeasured = bandwidths.raised(reads, kernel.run, work.bytes), "bandwidth"
        elif rate > attainable and roof * work.intensity >= peak:
            peak, remeasured = ceilings.remeasure(dtype, kernel.run, work.flops), "ceiling"
        attainable = attainable_flop_per_s(work.intensity, peak, roof)
        ridge = ridge_point(peak, roof)
        paper, vendor = peak_flop_per_s(dtype), bound_bytes_per_s
        measure.declare(
            roofline=True,
            ceiling_flop_per_s=peak,
            roof_bytes_per_s=roof,
            roof_remeasured=remeasured,
            roof_label=bandwidths.size.label,
            attainable_flop_per_s=attainable,
            share_of_attainable=rate / attainable,
            ridge=ridge,
            paper_ridge=ridge_point(paper, vendor) if paper and vendor else None,
            bound=bound_of(work.intensity, ridge, measure.info.get("launch_share", 0.0)),
        )

    return placed


def assert_counted(kernel: Kernel, flops: int) -> None:
    """Raises AssertionError where the FLOPs by formula are not those counted, but for the difference stated."""
    __tracebackhide__ = True
    wanted = kernel.work.flops + kernel.more_flops
    assert flops == wanted, (
        f"{flops} FLOPs are counted, but should be {wanted}: {kernel.work.flops} by formula, {kernel.more_flops:+d} "
        f"by convention ({kernel.why or 'none differs'})"
    )


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str, rows: tuple[Tensor, Tensor], place: Callable[[Kernel], None]) -> None:
    place(kernel(name, *rows))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"batch-{batch}")
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
def test_layer(
    dtype: str,
    batch: int,
    device: torch.device,
    pace: str,
    ceilings: Ceilings,
    weights: dict[str, products.Product],
    place: Callable[[Kernel], None],
) -> None:
    """(batch, 4096) by (4096, 4096), a layer of Llama 3 8B, from one token to many."""
    try:
        PACES[pace].skip_if_longer(2 * batch * math.prod(LAYER) / ceilings.flop_per_s(dtype))
        if dtype not in weights:
            weights[dtype] = products.product(dtype, 1, *LAYER, device)
    except products.Unsupported as reason:
        pytest.skip(str(reason))
    case = with_rows(weights[dtype], batch)
    place(Kernel(case.multiply, case.work, case.check, dtype=dtype))
