"""The benchmarks of bandwidth, of the roofline and of transfers notice what is wrong with them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting.roofline import Work, elementwise_work
from bench import streams, test_bandwidth, test_roofline, transfers
from bench.ceilings import Ceilings
from bench.measuring import Measure
from bench.pace import PACES
from bench.streams import (
    MEMORY,
    Arrays,
    Bandwidths,
    Size,
    Stream,
    assert_bytes,
    assert_level,
    cache_size,
    memory_size,
)
from bench.work import STREAMS, bandwidth_of_mix, bound_of, stream_work
from meta_tests.bench.test_products import FakeBenchmark
from prooflops.machine.caches import Caches
from prooflops.suite import plots, report

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Arrays(3 * streams.WINDOW, CPU)


def a_measure(seconds: float = 1e-3) -> Measure:
    return Measure(FakeBenchmark(seconds), CPU, PACES["quick"])


def stream_row(
    arrays: Arrays, kernel: str, seconds: float = 1e-3, bound: float | None = None, last_level: int = 3 * streams.WINDOW
) -> dict[str, Any]:
    """One whole benchmark of a stream, on short arrays, where every round takes `seconds`."""
    measure = a_measure(seconds)
    caches = Caches({"L3": last_level})
    test_bandwidth.test_stream(MEMORY, kernel, CPU, "quick", caches, {arrays.a.numel(): arrays}, bound, measure)
    return measure.info


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, arrays: Arrays) -> Arrays:
    """The benchmarks of bandwidth on short arrays, as if the cache were even smaller."""
    elements = arrays.a.numel()
    monkeypatch.setattr(test_bandwidth, "size_of", lambda *_: Size(elements, MEMORY, 4.0))
    return arrays


# ---- streams -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", STREAMS)
def test_a_right_stream_passes_and_its_rate_is_that_of_the_bytes_of_stream(kernel: str, short: Arrays) -> None:
    read, written, _ = STREAMS[kernel]
    info = stream_row(short, kernel, seconds=1.0)
    assert info["bytes_per_s"] == info["bytes"] == 4 * (read + written) * short.a.numel()


WRONG: dict[str, Callable[[torch.Tensor], object]] = {
    "zeros": lambda out: out.zero_(),
    "a part is not written": lambda out: out[out.numel() // 3 :][:256].fill_(7.0) if out.dim() else out.mul_(0.99),
    "the last element": lambda out: out[-1:].mul_(1.001) if out.dim() else out.mul_(1.001),
    "not a number": lambda out: out.fill_(float("nan")),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kernel", STREAMS)
def test_a_wrong_result_of_a_stream_is_caught(
    kernel: str, wrong: str, short: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Arrays.stream

    def planted(self: Arrays, kernel: str) -> Stream:
        stream = right(self, kernel)

        def run() -> torch.Tensor:
            out = stream.run()
            with torch.utils._python_dispatch._disable_current_modes():  # unseen by those who count
                WRONG[wrong](out)
            return out

        return replace(stream, run=run)

    monkeypatch.setattr(Arrays, "stream", planted)
    with pytest.raises(AssertionError, match=f"{kernel} differs from fp64 by"):
        stream_row(short, kernel)


@pytest.mark.parametrize("kernel", STREAMS)
def test_halved_and_doubled_bytes_of_a_stream_are_caught(
    kernel: str, short: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in (0.5, 2):
        work = stream_work(kernel, short.a.numel())
        monkeypatch.setattr(Stream, "work", replace(work, bytes=int(factor * work.bytes)))
        with pytest.raises(AssertionError, match="bytes are declared"):
            stream_row(short, kernel)


def test_a_stream_faster_than_the_memory_is_caught_and_one_at_its_bandwidth_is_not(short: Arrays) -> None:
    moved = stream_work("copy", short.a.numel()).bytes
    info = stream_row(short, "copy", seconds=1.0, bound=float(moved))
    assert info["mbu"] == 1
    with pytest.raises(AssertionError, match="B/s, but its units do at most"):
        stream_row(short, "copy", seconds=0.9, bound=float(moved))


def test_no_bound_of_the_memory_holds_for_arrays_that_fit_a_cache(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_bandwidth, "size_of", lambda *_: Size(arrays.a.numel(), MEMORY, 0.5, "fits the cache"))
    info = stream_row(arrays, "copy", seconds=1e-9, bound=1e9)
    assert info["label"] == "fits the cache"
    assert "mbu" not in info


def test_arrays_that_fit_the_cache_are_not_sold_as_memory(short: Arrays) -> None:
    with pytest.raises(AssertionError, match="sold as memory, but each should be 4 times the last-level cache"):
        stream_row(short, "copy", last_level=32 * 2**20)
    assert_level(Size(1024, "L2", 0.1), 2, 2**20)
    assert_level(Size(1024, MEMORY, None, "cache unknown"), 2, None)


@pytest.mark.parametrize(
    ("last_level", "memory", "pace", "multiple", "label"),
    [
        (32 * 2**20, 24 * GIB, "quick", 4, ""),
        (480 * 2**20, 512 * GIB, "quick", 128 / 480, "fits the cache: 0.27 of it"),  # a host's, seen in a container
        (480 * 2**20, 512 * GIB, "thorough", 4, ""),
        (32 * 2**20, GIB, "default", 1, "fits the cache: 1 of it"),
        (48 * 2**20, 512 * GIB, "quick", 128 / 48, "arrays of 2.7 caches"),
    ],
)
def test_arrays_are_four_caches_long_or_say_that_they_are_not(
    last_level: int, memory: int, pace: str, multiple: float, label: str
) -> None:
    size = memory_size(CPU, pace, Caches({"L3": last_level}, memory_bytes=memory))
    assert (size.multiple, size.label) == (pytest.approx(multiple), label)
    assert size.exceeds_caches is (multiple > 1)


def test_rows_of_a_cache_fit_it_and_not_the_one_within() -> None:
    known = {"L1": 48 * 2**10, "L2": 2**20, "L3": 32 * 2**20}
    within = 0
    for level, size in known.items():
        for count in (2, 3):
            row = cache_size(level, count, known)
            assert row is not None
            assert within < 4 * count * row.elements <= size / 2
        within = size
    assert cache_size("L3", 2, {"L1": 2**15, "L2": 2**20}) is None
    assert cache_size("L3", 2, {"L2": 2**20, "L3": 2**20}) is None, "no larger than the level within it"


# ---- roofs -------------------------------------------------------------------------------------------------------

SHARES = st.floats(0, 1)
RATES = st.dictionaries(SHARES, st.floats(1e6, 1e13), min_size=1, max_size=5)


@given(SHARES, RATES)
def test_the_bandwidth_of_a_mix_is_between_those_measured_beside_it(share: float, measured: dict[float, float]) -> None:
    beside = [measured[max((s for s in measured if s <= share), default=min(measured))],
              measured[min((s for s in measured if s >= share), default=max(measured))]]  # fmt: skip
    found = bandwidth_of_mix(share, measured)
    assert min(beside) * (1 - 1e-9) <= found <= max(beside) * (1 + 1e-9)
    if share in measured:
        assert found == measured[share]


def test_a_mix_of_two_kinds_of_traffic_takes_the_time_of_both() -> None:
    reading, copying = 80e9, 20e9
    for part in (0.1, 0.5, 0.9):  # of the bytes are copied, half of which are read
        seconds = (1 - part) / reading + part / copying
        assert 1 / bandwidth_of_mix(1 - part / 2, {1.0: reading, 0.5: copying}) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bandwidth_of_mix(1.1, {1.0: 1.0}), "read_share must be from 0 to 1, got 1.1"),
        (lambda: bandwidth_of_mix(0.5, {}), "measured must have at least one bandwidth"),
        (lambda: bandwidth_of_mix(0.5, {1.0: 0.0}), "the bandwidth at 1.0 must be"),
        (lambda: bound_of(-1.0, 2.0), "intensity must be"),
        (lambda: bound_of(1.0, 0.0), "ridge must be"),
        (lambda: stream_work("swap", 3), "kernel must be one of"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bound_changes_at_the_ridge_and_a_launch_comes_first() -> None:
    assert [bound_of(intensity, 4.0) for intensity in (0, 3.99, 4.0)] == ["memory", "memory", "compute"]
    assert [bound_of(100.0, 4.0, share) for share in (0.49, 0.5)] == ["compute", "launch"]


def test_the_machines_own_bandwidths_are_the_best_of_each_mix() -> None:
    own = Bandwidths(CPU, PACES["quick"], Size(2**12, MEMORY, None))
    assert sorted(own.measured) == [0.5, 2 / 3, 1.0]
    before = own.bytes_per_s(0.5)
    assert own.raised(0.5, lambda: None, moved=2**40) > before


# ---- the roofline ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(128, test_roofline.ROW), torch.rand(128, test_roofline.ROW)


@pytest.fixture
def place() -> Callable[..., dict[str, Any]]:
    """Places a kernel under roofs that are given, by the benchmark's own fixture; every round takes `seconds`."""

    def placed(kernel: test_roofline.Kernel, seconds: float = 1.0) -> dict[str, Any]:
        ceilings = Ceilings(CPU, PACES["quick"])
        ceilings._flop_per_s |= {("fp32", "sustainable"): 1e12, ("bf16", "sustainable"): 2e12}
        bandwidths = Bandwidths(CPU, PACES["quick"], Size(2**12, MEMORY, 4.0))
        bandwidths._measured |= {1.0: 4e10, 0.5: 2e10}
        measure = a_measure(seconds)
        test_roofline.place.__wrapped__(Caches({"L3": 1}), ceilings, bandwidths, measure, lambda dtype: None, None)(
            kernel
        )
        return measure.info

    return placed


@pytest.fixture(autouse=True)
def small_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_roofline, "LAYER", (256, 512))


@pytest.mark.parametrize("name", test_roofline.KERNELS)
def test_a_kernel_has_the_bytes_and_flops_that_are_counted_and_its_place(
    name: str, rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    kernel = test_roofline.kernel(name, *rows)
    info = place(kernel)
    assert (info["bound"], info["roof_remeasured"]) == ("memory", "")
    assert info["counted_bytes"] == info["bytes"] + kernel.more_bytes
    roof = bandwidth_of_mix(info["read_share"], {1.0: 4e10, 0.5: 2e10})
    assert info["share_of_attainable"] == pytest.approx(kernel.work.bytes / roof)
    assert info["ridge"] == pytest.approx(1e12 / roof)
    assert bool(kernel.why) is bool(kernel.more_bytes or kernel.more_flops)


@pytest.mark.parametrize("name", test_roofline.KERNELS)
def test_a_wrong_result_of_a_kernel_is_caught(
    name: str, rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    kernel = test_roofline.kernel(name, *rows)

    def run() -> torch.Tensor:
        out = kernel.run()
        with torch.utils._python_dispatch._disable_current_modes():
            out.view(-1)[-1].add_(1.0).mul_(1.01)
        return out

    with pytest.raises(AssertionError, match="differs from fp64 by"):
        place(replace(kernel, run=run))


def test_the_fused_gelus_bytes_are_not_those_of_the_composed_one(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    fused = elementwise_work(rows[0].shape, "gelu", "fp32")
    with pytest.raises(AssertionError, match=f"{fused.bytes} bytes are declared"):
        place(replace(test_roofline.kernel("gelu-composed", *rows), work=fused))


def test_flops_that_are_not_counted_are_caught(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    for name in test_roofline.KERNELS:
        kernel = test_roofline.kernel(name, *rows)
        with pytest.raises(AssertionError, match="FLOPs are counted, but should be"):
            place(replace(kernel, work=replace(kernel.work, flops=kernel.work.flops // 2)))


@pytest.mark.parametrize(("batch", "bound"), [(1, "memory"), (2048, "compute")])
def test_a_layer_is_bound_by_memory_at_one_row_and_by_compute_at_many(
    batch: int, bound: str, place: Callable[..., dict[str, Any]]
) -> None:
    layer = test_roofline.products.product("fp32", 1, *test_roofline.LAYER, CPU)
    case = test_roofline.with_rows(layer, batch)
    info = place(test_roofline.Kernel(case.multiply, case.work, case.check), seconds=1e-2)
    m, k, n = batch, *test_roofline.LAYER
    assert (info["flops"], info["bytes"], info["bound"]) == (2 * m * k * n, 4 * (m * k + k * n + m * n), bound)


def test_a_kernel_above_its_roof_has_the_roof_measured_again(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    info = place(test_roofline.kernel("relu", *rows), seconds=1e-7)
    assert info["roof_remeasured"] == "bandwidth"


# ---- the report --------------------------------------------------------------------------------------------------


def as_bench(name: str, info: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "stats": {"median": 1e-3, "iqr": 1e-4}, "extra_info": info}


def test_the_report_has_a_row_for_each_kernel_and_says_how_each_was_measured(
    rows: tuple[torch.Tensor, torch.Tensor], place: Callable[..., dict[str, Any]]
) -> None:
    gelu = as_bench("test_kernel[gelu-fused]", place(test_roofline.kernel("gelu-fused", *rows), seconds=1e-3))
    stream = as_bench("test_stream[memory-add]", {"memory_level": MEMORY, "flop_per_s": 1e9, "bytes_per_s": 1.2e10,
                      "label": "arrays of 2 caches", "conditions": {"labels": ["contended: load 4"]}})  # fmt: skip
    head, *table = report.benchmark_table([gelu, stream])
    assert head[-1] == "measured"
    assert [row[-1] for row in table] == ["memory-bound", "arrays of 2 caches, contended"]
    assert table[1][3] == "12.0 GB/s"
    _, row = report.roofline_table([gelu, stream])
    assert row[:4] == ["kernel[gelu-fused]", "0.625", "0.125 *", "50%"]
    assert row[-3:] == ["memory", "50", "no peak on record"]
    drawing = plots.roofline_svg([gelu, stream], "Roofs")
    assert drawing is not None
    ET.fromstring(drawing)
    assert "20 GB/s, 50% reads" in drawing


# ---- transfers ---------------------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(0, 1))
def test_the_overlap_is_the_share_of_the_shorter_that_is_hidden(first: float, second: float, hidden: float) -> None:
    together = first + second - hidden * min(first, second)
    tolerance = 1e-12 * max(first, second) / min(first, second)
    assert transfers.overlap_share(first, second, together) == pytest.approx(hidden, abs=1e-9 + tolerance)


def test_a_copy_in_parts_moves_the_same_bytes_and_what_arrives_changed_is_caught() -> None:
    whole = transfers.transfer("to-host", 1000, CPU, pinned=False, blocking=True)
    parts = transfers.in_parts(whole, 7)
    assert parts.work == whole.work == Work(0, 4000)
    parts.check(parts.run())
    seen = assert_bytes(Work(0, 8000), parts.run)  # read at one end, written at the other
    assert seen.by_operator()["aten.copy_"].written_bytes == whole.work.bytes
    whole.target[3] += 1
    with pytest.raises(AssertionError, match="1 of 1000 elements arrived changed"):
        whole.check(whole.target)
    with pytest.raises(ValueError, match="copies must be"):
        transfers.cost_of_a_copy(1.0, 2.0, 1)
