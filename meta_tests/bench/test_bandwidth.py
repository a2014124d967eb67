"""The benchmarks of bandwidth notice what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench import streams, test_bandwidth
from bench.measuring import Measure
from bench.pace import PACES
from bench.streams import MEMORY, Arrays, Size, Stream, assert_level
from bench.work import STREAMS, stream_work
from meta_tests.bench.stand_ins import CPU, SteadyRounds
from prooflops.machine.caches import Caches


def a_measure(seconds: float = 1e-3) -> Measure:
    return Measure(SteadyRounds(seconds), CPU, PACES["quick"])


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Arrays(3 * streams.WINDOW, CPU)


def stream_row(
    arrays: Arrays, kernel: str, seconds: float = 1e-3, bound: float | None = None, last_level: int = 3 * streams.WINDOW
) -> dict[str, Any]:
    """One whole benchmark of a stream, on short arrays, where every round takes `seconds`."""
    measure = a_measure(seconds)
    caches = Caches({"L3": last_level})
    test_bandwidth.test_stream(
        MEMORY, kernel, CPU, Size(2, MEMORY, None), caches, {arrays.a.numel(): arrays}, bound, measure
    )
    return measure.info


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, arrays: Arrays) -> Arrays:
    """The benchmarks of bandwidth on short arrays, as if the cache were even smaller."""
    elements = arrays.a.numel()
    monkeypatch.setattr(test_bandwidth, "size_of", lambda *_: Size(elements, MEMORY, 4.0))
    return arrays


@pytest.mark.prove(sample=2)
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


@pytest.mark.prove(sample=8)
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
