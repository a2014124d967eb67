"""The benchmarks of the roofline notice what is wrong with them, and the report shows where each kernel is."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from accounting.roofline import elementwise_work
from bench import kernels, products, test_roofline
from bench.ceilings import Ceilings
from bench.measuring import Measure
from bench.pace import PACES
from bench.streams import MEMORY, Bandwidths, Size
from bench.work import bandwidth_of_mix
from meta_tests.bench.stand_ins import CPU, SteadyRounds
from prooflops.machine.caches import Caches
from prooflops.suite.report import plots, tables
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import RunReport


def a_measure(seconds: float = 1e-3) -> Measure:
    return Measure(SteadyRounds(seconds), CPU, PACES["quick"])


@pytest.fixture(scope="module")
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(128, test_roofline.ROW), torch.rand(128, test_roofline.ROW)


@pytest.fixture
def place() -> Callable[..., dict[str, Any]]:
    """Places a kernel under roofs that are given, by the benchmark's own fixture; every round takes `seconds`."""

    def placed(kernel: kernels.Kernel, seconds: float = 1.0) -> dict[str, Any]:
        ceilings = Ceilings(CPU, PACES["quick"])
        ceilings._flop_per_s |= {("fp32", "sustainable"): 1e12, ("bf16", "sustainable"): 2e12}
        bandwidths = Bandwidths(CPU, PACES["quick"], Size(2**12, MEMORY, 4.0))
        bandwidths._measured |= {1.0: 4e10, 0.5: 2e10}
        measure = a_measure(seconds)
        test_roofline.place.__wrapped__(
            CPU, Caches({"L3": 1}), ceilings, bandwidths, measure, lambda dtype: None, None
        )(kernel)
        return measure.info

    return placed


@pytest.fixture(autouse=True)
def small_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LAYER", (256, 512))


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_a_kernel_has_the_bytes_and_flops_that_are_counted_and_its_place(
    name: str, rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    kernel = kernels.kernel(name, *rows)
    info = place(kernel)
    assert (info["bound"], info["roof_remeasured"]) == ("memory", "")
    assert info["counted_bytes"] == info["bytes"] + kernel.more_bytes
    roof = bandwidth_of_mix(info["read_share"], {1.0: 4e10, 0.5: 2e10})
    assert info["share_of_attainable"] == pytest.approx(kernel.work.bytes / roof)
    assert info["ridge"] == pytest.approx(1e12 / roof)
    assert bool(kernel.why) is bool(kernel.more_bytes or kernel.more_flops)


def test_the_fused_gelus_bytes_are_not_those_of_the_composed_one(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    fused = elementwise_work(rows[0].shape, "gelu", "fp32")
    with pytest.raises(AssertionError, match=f"{fused.bytes} bytes are declared"):
        place(replace(kernels.kernel("gelu-composed", *rows), work=fused))


def test_flops_that_are_not_counted_are_caught(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    for name in kernels.KERNELS:
        kernel = kernels.kernel(name, *rows)
        with pytest.raises(AssertionError, match="FLOPs are counted, but should be"):
            place(replace(kernel, work=replace(kernel.work, flops=kernel.work.flops // 2)))


@pytest.mark.parametrize(("batch", "bound"), [(1, "memory"), (2048, "compute")])
def test_a_layer_is_bound_by_memory_at_one_row_and_by_compute_at_many(
    batch: int, bound: str, place: Callable[..., dict[str, Any]]
) -> None:
    layer = products.product("fp32", 1, *kernels.LAYER, CPU)
    case = test_roofline.with_rows(layer, batch)
    info = place(kernels.Kernel(case.multiply, case.work, case.check), seconds=1e-2)
    m, k, n = batch, *kernels.LAYER
    assert (info["flops"], info["bytes"], info["bound"]) == (2 * m * k * n, 4 * (m * k + k * n + m * n), bound)


def test_a_kernel_above_its_roof_has_the_roof_measured_again(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    info = place(kernels.kernel("relu", *rows), seconds=1e-7)
    assert info["roof_remeasured"] == "bandwidth"


def as_bench(name: str, info: dict[str, Any]) -> Measurement:
    return Measurement.of({"name": name, "stats": {"median": 1e-3, "iqr": 1e-4}, "extra_info": info})


def test_the_report_has_a_row_for_each_kernel_and_says_how_each_was_measured(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    gelu = as_bench("test_kernel[gelu-fused]", place(kernels.kernel("gelu-fused", *rows), seconds=1e-3))
    stream = as_bench("test_stream[memory-add]", {"memory_level": MEMORY, "flop_per_s": 1e9, "bytes_per_s": 1.2e10,
                      "label": "arrays of 2 caches", "conditions": {"labels": ["contended: load 4"]}})  # fmt: skip
    head, *table = tables.benchmark_table([gelu, stream])
    assert head[-1] == "measured"
    assert [row[-1] for row in table] == ["memory-bound", "arrays of 2 caches, contended"]
    assert table[1][3] == "12.0 GB/s"
    norm = as_bench("test_kernel[layer-norm]", place(kernels.kernel("layer-norm", *rows), seconds=1e-3))
    _, row, differing = tables.roofline_table([gelu, norm, stream])
    assert row[:4] == ["kernel[gelu-fused]", "0.625", "0.625", "50%"]
    assert differing[2].endswith(" *"), f"{differing} should mark that the count has another convention"
    assert row[-3:] == ["memory", "50", "no peak on record"]
    plot = plots.roofline(RunReport({"name": "a machine"}, (), benchmarks=(gelu, stream)))
    assert plot is not None
    ET.fromstring(plot.svg)
    assert "20.0 GB/s, 50% reads" in plot.svg
