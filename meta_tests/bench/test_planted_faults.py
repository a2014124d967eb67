"""Each file of benchmarks catches what is planted in it, and passes with nothing planted: see `simulated_bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import bench.conftest
from accounting import counted, measured, models
from accounting.measured import timing
from bench import (
    cache,
    kernels,
    products,
    streams,
    test_bandwidth,
    test_collectives,
    test_data,
    test_numerics,
    test_transfer,
    tokens,
    training,
    transfers,
)
from bench.streams import Size
from meta_tests.accounting import test_clock_agreement as clocks
from meta_tests.bench.simulated_bench import CACHE, CASES, KERNEL_S, PEAK, Bench, run
from prooflops.model import examination


def unsynchronised(bench: Bench) -> None:
    for module in (measured, timing):
        bench.set(module, "clock", lambda device="cpu": bench.device.host)


def zeros(bench: Bench) -> None:
    for name in ("randn", "rand"):
        bench.wrapped(torch, name, lambda drawn: drawn.zero_())
    bench.wrapped(training, "inputs", torch.zeros_like)
    bench.wrapped(test_collectives, "integers", torch.zeros_like)
    bench.wrapped(torch, "exp2", torch.zeros_like)


def sparse_peak(bench: Bench) -> None:
    bench.vendor = lambda dtype: 2 * PEAK


def halved(where: Any, name: str, field: str) -> Callable[[Bench], None]:
    """A formula that says half of the FLOPs or of the bytes."""
    return lambda bench: bench.wrapped(where, name, lambda work: replace(work, **{field: getattr(work, field) // 2}))


def spoilt(where: Any, name: str, change: Callable[[Any], Any]) -> Callable[[Bench], None]:
    return lambda bench: bench.wrapped(where, name, change)


def instead(where: Any, name: str, value: Any) -> Callable[[Bench], None]:
    return lambda bench: bench.set(where, name, value)


def changed(where: Any, name: str, change: Callable[[Any], Any]) -> Callable[[Bench], None]:
    return lambda bench: bench.set(where, name, change(getattr(where, name)))


def useless_flush(bench: Bench) -> None:
    def flush(self: cache.Flush) -> None:
        self.calls += 1

    bench.set(cache.Flush, "__call__", flush)


def wrong_last(out: Tensor) -> Tensor:
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():  # unseen by those who count
        out.view(-1)[-1:].add_(1.0)
    return out


def gone_astray(bench: Bench) -> None:
    """Copies as many bytes, to somewhere else."""
    right = Tensor.copy_

    def copy_(self: Tensor, source: Tensor, **_: Any) -> Tensor:
        right(torch.empty_like(self), source)
        return self

    bench.set(Tensor, "copy_", copy_)


def last_part_forgotten(bench: Bench) -> None:
    right = transfers.in_parts
    bench.set(
        test_transfer,
        "in_parts",
        lambda whole, parts: replace(
            right(whole, parts),
            run=right(replace(whole, source=whole.source[:-64], target=whole.target[:-64]), parts).run,
        ),
    )


def stops(calls: int) -> Callable[[Bench], None]:
    """A product that does nothing any more after so many calls."""

    def plant(bench: Bench) -> None:
        right, done = torch.mm, [0]

        def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
            done[0] += 1
            if done[0] <= calls:
                return right(a, b, out=out)
            bench.device.work(KERNEL_S)
            return out

        bench.set(torch, "mm", mm)

    return plant


def nobody_waits(where: Any, name: str) -> Callable[[Bench], None]:
    """A collective that is only begun, and arrives while the host works out what it should have brought."""

    def plant(bench: Bench) -> None:
        right, integers, under_way = getattr(where, name), test_collectives.integers, []

        def begun(*arguments: Any, **options: Any) -> None:
            under_way.append(partial(right, *arguments, **options))

        def meanwhile(elements: int, device: torch.device, rank: int) -> Tensor:
            while under_way:
                under_way.pop()()
            return integers(elements, device, rank)

        bench.set(where, name, begun)
        bench.set(test_collectives, "integers", meanwhile)

    return plant


def casts(change: Callable[[Tensor], Tensor]) -> Callable[[Bench], None]:
    """A cast to fp16 that is preceded by `change`."""

    def plant(bench: Bench) -> None:
        right = Tensor.to

        def to(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
            spoil = arguments[:1] == (torch.float16,)
            return right(change(self) if spoil else self, *arguments, **options)

        bench.set(Tensor, "to", to)

    return plant


LEAST_NORMAL, LEAST_SUBNORMAL = 2.0**-14, 2.0**-24


def without_subnormals(x: Tensor) -> Tensor:
    return torch.where(x.abs() < LEAST_NORMAL, 0.0, x)


def truncated(x: Tensor) -> Tensor:
    return torch.where(x.abs() >= LEAST_NORMAL, (x.view(torch.int32) & ~0x1FFF).view(torch.float32), x)


def truncated_subnormals(x: Tensor) -> Tensor:
    subnormal = (x.abs() >= LEAST_SUBNORMAL) & (x.abs() < LEAST_NORMAL)
    return torch.where(subnormal, (x / LEAST_SUBNORMAL).trunc() * LEAST_SUBNORMAL, x)


def one_after_the_other(one: Callable[[], float], other: Callable[[], float]) -> Iterator[tuple[float, float]]:
    firsts = [one() for _ in range(clocks.ROUNDS["quick"])]
    return ((first, other()) for first in firsts)


def no_lead(bench: Bench) -> None:
    right = clocks.our_seconds
    bench.set(clocks, "our_seconds", lambda function, lead, timer: right(function, lambda: None, timer))


def threads_by_default(bench: Bench) -> None:
    bench.set(clocks, "Timer", lambda statement, num_threads, **rest: bench.core.timer(statement, **rest))


def right_once(module: Any) -> Callable[[Tensor], Tensor]:
    """A net that is right the first time only: in the gradients that are compared, and not in the step."""
    calls = count()
    return lambda x: module(x) if next(calls) == 0 else 1.1 * module(x)


def slow_counter(bench: Bench) -> None:
    right = counted.flops

    @contextmanager
    def flops() -> Iterator[Any]:
        with right() as count:
            yield count
            bench.device._now += 1.0

    bench.set(counted, "flops", flops)


NOT_WAITED = r"was the device waited for\?"
NOT_RANDOM = "of an input of .* but inputs should be random"
SPARSE = "but its units do at most .*: is it the sparse one"
FAULTS: list[tuple[str, str, Callable[[Bench], None], str]] = [
    *((case, "unsynchronised", unsynchronised, NOT_WAITED) for case in (
        "matmul", "matmul, ceiling", "bandwidth", "bandwidth of a cache", "roofline", "roofline, layers", "training",
        "training, checkpointed", "training, accumulated", "data, training", "transfer", "transfer of parts",
        "transfer beside products", "numerics", "user_model",
    )),
    *((case, "zeros", zeros, NOT_RANDOM) for case in (
        "matmul", "matmul, ceiling", "bandwidth", "bandwidth of a cache", "roofline", "roofline, layers",
        "training of tokens", "transfer", "transfer of parts", "transfer beside products", "collectives", "numerics",
    )),
    *((case, "sparse peak", sparse_peak, SPARSE) for case in (
        "matmul", "matmul, ceiling", "roofline", "training", "training, checkpointed", "user_model",
    )),
    ("matmul", "halved FLOPs", halved(products, "matmul_work", "flops"), "FLOPs are declared, but should be"),
    ("matmul", "halved bytes", halved(products, "matmul_work", "bytes"), "bytes are declared"),
    ("matmul", "wrong", spoilt(torch, "mm", lambda out: out.mul_(0.5)), "a product of fp32 differs from fp64"),
    ("matmul", "stops", stops(300), "a product of fp32 differs from fp64 by nan"),
    ("matmul, ceiling", "halved FLOPs", halved(products, "matmul_work", "flops"), "FLOPs are declared, but should be"),
    ("matmul, ceiling", "halved bytes", halved(products, "matmul_work", "bytes"), "bytes are declared"),
    ("matmul, ceiling", "wrong", spoilt(torch, "mm", lambda out: out.mul_(0.5)), "a product of fp32 differs from fp64"),
    ("bandwidth", "halved FLOPs", halved(streams, "stream_work", "flops"), "FLOPs are declared, but .* were counted"),
    ("bandwidth", "halved bytes", halved(streams, "stream_work", "bytes"), "bytes are declared"),
    ("bandwidth", "wrong", spoilt(torch, "add", wrong_last), "triad differs from fp64"),
    ("bandwidth of a cache", "too large", instead(test_bandwidth, "size_of", lambda *_: Size(CACHE, "L2", 0.1)),
     "bytes are sold as hot in L2, but it holds"),
    ("roofline, cold", "hot sold as cold", useless_flush, "the caches are still hot"),
    ("roofline", "halved FLOPs", halved(kernels, "elementwise_work", "flops"), "FLOPs are counted, but should"),
    ("roofline", "halved bytes", halved(kernels, "elementwise_work", "bytes"), "bytes are declared"),
    ("roofline", "wrong", spoilt(torch, "clamp", wrong_last), "the result differs from fp64"),
    ("roofline, layers", "halved bytes", halved(products, "matmul_work", "bytes"), "bytes are declared"),
    ("roofline, layers", "halved FLOPs", halved(products, "matmul_work", "flops"), "FLOPs are counted, but should"),
    ("roofline, layers", "wrong", spoilt(torch, "mm", lambda out: out.mul_(0.5)), "a product of fp32 differs"),
    ("training", "halved FLOPs", halved(models, "step_flops", "forward"), "FLOPs a step, but .* were counted"),
    ("training", "no update", instead(training.Step, "update", lambda self: self.optimizer.zero_grad()),
     "the loss on one batch should fall"),
    ("training, compiled", "wrong", instead(torch, "compile", lambda module: lambda x: 1.1 * module(x)),
     "compiled gradients differ by"),
    ("training, compiled", "right once", instead(torch, "compile", right_once), "compiled, the loss of the first step"),
    ("training, checkpointed", "all is kept", changed(training, "build", lambda right: lambda model, device, **_:
     right(model, device=device)), "checkpointing holds"),
    ("training, accumulated", "without their share", changed(training.Step, "forward", lambda right:
     lambda self, *batch: right(self, *batch) * self.micro_batches), "accumulated gradients differ by"),
    ("data", "rows astray", spoilt(tokens.Batches, "load", lambda rows: (rows[0].flip(0), rows[1])), "are not those"),
    ("data", "half a batch", spoilt(tokens.Batches, "load", lambda rows: (rows[0][:, :32], rows[1][:, :32])),
     "a batch is .*, declared is"),
    *((case, "zeros", spoilt(tokens.Batches, "load", lambda rows: tuple(map(torch.zeros_like, rows))), "are not those")
      for case in ("data", "data, training")),
    ("data", "halved bytes", spoilt(test_data, "itemsize", lambda size: size // 2), "1 bytes a token are declared"),
    ("transfer", "no copy", instead(Tensor, "copy_", lambda self, source, **_: self), "bytes are declared"),
    ("transfer", "gone astray", gone_astray, "4096 of 4096 elements arrived changed"),
    ("transfer", "halved bytes", spoilt(transfers, "element_bytes", lambda size: size // 2), "bytes are declared"),
    ("transfer of parts", "one forgotten", last_part_forgotten, "bytes are declared"),
    ("transfer beside products", "no copy",
     instead(test_transfer, "beside", lambda device, main, aside: main), "4096 of 4096 elements arrived changed"),
    ("transfer beside products", "no products",
     instead(test_transfer, "beside", lambda device, main, aside: aside), "the products beside the copy were not"),
    ("collectives", "unsynchronised", unsynchronised, r"was it waited for\?"),
    ("collectives", "not awaited", nobody_waits(dist, "all_reduce"), "all-reduce of .*: wrong"),
    ("collectives, gathered", "not awaited", nobody_waits(test_collectives, "all_gather"), "all-gather of .*: wrong"),
    ("collectives", "wrong", instead(dist, "all_reduce", lambda tensor, op: tensor.add_(1)), "all-reduce of .*: wrong"),
    ("collectives, steps", "unsynchronised", unsynchronised, r"was it waited for\?"),
    ("collectives, steps", "not averaged",
     instead(test_collectives.Training, "backward", test_collectives.Training.backward), "gradients: wrong on"),
    ("collectives, steps", "more state", instead(test_collectives, "adamw",
     lambda model: torch.optim.AdamW(model.parameters(), amsgrad=True)), "the optimizer keeps"),
    ("clock", "unsynchronised", unsynchronised, "our clock over Timer"),
    ("clock", "not interleaved", instead(clocks, "alternating", one_after_the_other), "our clock over Timer"),
    ("clock", "no lead", no_lead, "our clock over Timer: 1.09"),
    ("clock", "other threads", threads_by_default, "our clock over Timer: 0.5"),
    ("counting", "halved FLOPs", instead(counted.CountedWork, "total", property(lambda self: self.forward)),
     "counted .* FLOPs, but torch's counter says"),
    ("counting", "slow", slow_counter, "times as long as torch's counter"),
    ("numerics", "flushes subnormals", casts(without_subnormals), "values became 0 in fp16"),
    ("numerics", "truncates", casts(truncated), "fp16 rounds with a relative error"),
    ("numerics", "truncates subnormals", casts(truncated_subnormals), "fp16 rounds a subnormal number"),
    ("numerics", "saturates early", casts(lambda x: x.clamp(-32768, 32768)), "beyond the largest fp16 became smaller"),
    ("numerics", "halved bytes", spoilt(test_numerics, "element_bytes", lambda size: size // 2), "bytes are declared"),
    ("user_model", "halved FLOPs", halved(examination, "flops_of", "forward"), "FLOPs a step are declared, but"),
]  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """All benchmarks on the simulated device."""
    return Bench(monkeypatch, tmp_path)


@pytest.mark.prove(sample=12)
@pytest.mark.parametrize("case", CASES)
def test_a_benchmark_passes_with_nothing_planted(case: str, bench: Bench) -> None:
    run(case, bench)


@pytest.mark.prove(sample=40)
@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: f"{planted[0]}: {planted[1]}")
def test_a_planted_fault_is_caught(planted: tuple[str, str, Callable[[Bench], None], str], bench: Bench) -> None:
    case, _, plant, message = planted
    plant(bench)
    with pytest.raises(AssertionError, match=message):
        run(case, bench)
