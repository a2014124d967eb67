"""The benchmarks' own test functions, on small cases and a simulated device, in simulated seconds.

The device works behind the host's back, so a clock has to wait for it; and it has a cache, so a flush is seen. Nothing
depends on how fast or how busy this machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bench.conftest
from accounting import measured
from accounting.measured import timing
from accounting.models import GPT2_SMALL, DeepLinear
from bench import (
    cache,
    kernels,
    launch,
    measuring,
    ranks,
    streams,
    test_bandwidth,
    test_collectives,
    test_data,
    test_matmul,
    test_numerics,
    test_roofline,
    test_training,
    test_transfer,
    test_user_model,
    tokens,
    transfers,
)
from bench.measuring import Measure
from bench.models import reduced
from bench.streams import MEMORY, Size
from bench.training import Workload
from meta_tests.accounting import test_clock_agreement
from meta_tests.accounting.counted import test_counting_time
from meta_tests.bench.stand_ins import SHORT, Rounds
from prooflops.machine.caches import Caches
from prooflops.model.examination import Examination
from prooflops.model.user_model import UserModel
from prooflops.suite.sizing import Sizing

CPU = torch.device("cpu")
HOST_S, KERNEL_S = 1e-6, 1e-3  # the simulated host's time of an operator, and the device's from a warm cache
CACHE = 2**20  # bytes; twice as long takes what is not in it
CEILING, PEAK, BOUND, VENDOR_BYTES = 5e10, 6e10, 6.5e10, 5e9  # of the simulated device, per second
PAIRED = test_collectives.Shape(DeepLinear(dim=16, layers=2), batch=8)
TINY = {
    "deep-linear": Workload(DeepLinear(dim=32, layers=4), batch=64),
    "transformer": Workload(reduced(GPT2_SMALL, layers=2), batch=4, sequence=16),
}


class Device(TorchDispatchMode):
    """The simulated device and its clocks; entered, it runs all operators."""

    def __init__(self) -> None:
        super().__init__()
        self._now = self._busy_until = 0.0
        self._cached: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            touched = [leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            places = {storage._cdata for storage in touched}
            self.work(KERNEL_S if places <= self._cached else 2 * KERNEL_S)
            full = sum(storage.nbytes() for storage in touched) > CACHE
            self._cached = set() if full else self._cached | places
        return out

    def work(self, seconds: float) -> None:
        """Hands the device work, and goes on at once."""
        self._now += HOST_S
        self._busy_until = max(self._busy_until, self._now) + seconds

    def host(self) -> float:
        """The host's clock, which waits for nothing."""
        self._now += HOST_S / 10
        return self._now

    def wait(self, *_: object) -> None:
        self._now = max(self._now, self._busy_until)

    def clock(self) -> float:
        self.wait()
        return self.host()


class Bench:
    """What the benchmarks' fixtures would be on the simulated device, and the place where faults are planted."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.folder, self.device = patch, folder, Device()
        for module in (measured, timing):
            self.set(module, "clock", lambda device="cpu": self.device.clock)
        self.set(measured, "synchronise", self.device.wait)
        for module in (measuring, launch, test_training, test_data, test_counting_time):
            self.set(module, "perf_counter", self.device.host)
        self.set(launch, "figures", lambda *_: {})
        self.flush = cache.Flush(torch.zeros(CACHE // 2, dtype=torch.int32), False, caches(CACHE))
        self.ceilings: Any = SimpleNamespace(
            flop_per_s=lambda dtype, *_: CEILING,
            found=lambda dtype, *_: SimpleNamespace(shape=(64, 96, 128), flop_per_s=CEILING, search_s=0.0),
            remeasure=lambda dtype, function, flops, *_: CEILING,
        )
        self.pair, self.core = Pair(), Core(self.device)
        self.vendor: Callable[[str], float | None] = lambda dtype: PEAK
        make_small(self)

    def set(self, where: Any, name: str, value: Any) -> None:
        self.patch.setattr(where, name, value)

    def wrapped(self, where: Any, name: str, spoilt: Callable[[Any], Any]) -> None:
        """Has a function's result spoilt."""
        right = getattr(where, name)
        self.set(where, name, lambda *arguments, **options: spoilt(right(*arguments, **options)))

    def peak(self, dtype: str) -> float | None:
        """By the fixture of the benchmarks, from what the vendor is said to state."""
        return bench.conftest.peak_flop_per_s.__wrapped__(self.vendor, lambda dtype: BOUND)(dtype)

    def measure(self) -> Measure:
        rounds = Rounds(measured.clock(CPU))
        return Measure(rounds, CPU, SHORT, self.peak, lambda dtype: BOUND, flush=lambda: self.flush)


def caches(last_level: int) -> Caches:
    """Those of the simulated device, or of one whose last level has so many bytes."""
    return Caches({"L2": last_level}, {"L2": CACHE})


# ---- small cases -------------------------------------------------------------------------------------------------


class Pair(ranks.Ranks):
    """The first of two ranks; the other one is simulated."""

    def __init__(self) -> None:
        self.rank, self.size, self.device, self.backend = 0, 2, CPU, "gloo"

    def barrier(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def decide(self, value: Any) -> Any:
        return value

    def all_reduce(self, tensor: Tensor, op: Any = None) -> None:
        tensor.add_(test_collectives.integers(tensor.numel(), CPU, 1))

    def all_gather(self, target: Tensor, source: Tensor) -> None:
        target.copy_(torch.cat([source, test_collectives.integers(source.numel(), CPU, 1)]))


class Core:
    """A core on which a kernel takes longer right after something else ran, on fewer threads, and the later it is."""

    def __init__(self, device: Device) -> None:
        self.device, self.threads, self.calls, self.warm = device, 2, 0, False

    def kernel(self) -> None:
        self.device.work(KERNEL_S * (1.0 if self.warm else 1.1) * 1.002**self.calls / self.threads)
        self.calls, self.warm = self.calls + 1, True

    def timer(self, statement: str, *, num_threads: int = 1, **options: Any) -> Any:
        """Stands for `torch.utils.benchmark.Timer`, which first makes two untimed calls, by default on one thread."""
        call = options["globals"]["ours"]

        def timeit(number: int) -> Any:
            before, self.threads, self.warm = self.threads, num_threads, False
            call(), call()
            start = self.device.clock()
            call()
            seconds, self.threads, self.warm = self.device.clock() - start, before, False
            return SimpleNamespace(mean=seconds)

        return SimpleNamespace(timeit=timeit)

    def interrupted(self, right: Callable[..., float], *arguments: Any) -> float:
        """A figure of our clock before which something else ran."""
        self.warm = False
        return right(*arguments)


def make_small(bench: Bench) -> None:
    """Has all benchmarks use small cases, and what this machine lacks stood in for."""
    for module in (test_training, test_data):
        bench.set(module, "workload", lambda name, *_: TINY[name])
    bench.set(kernels, "LAYER", (64, 96))
    bench.set(test_data, "BATCH", 4)
    bench.set(test_data, "SEQUENCE", 64)
    bench.set(test_data, "TOKENS", {"quick": 2**14})
    bench.set(test_transfer, "ELEMENTS", {"quick": 2**12})
    bench.set(test_transfer, "PARTS", 8)
    bench.set(test_transfer, "SIDE", 32)
    bench.set(test_transfer, "transfer", partial(unpinned, transfers.transfer))
    bench.set(test_transfer, "beside", lambda device, main, aside: lambda: (aside(), main()))
    bench.set(torch, "compile", lambda module: module)
    bench.set(test_counting_time, "PAIRS", {"quick": 3})
    bench.set(test_numerics, "ELEMENTS", {"quick": 2**14})
    bench.set(test_user_model, "COPIED_BYTES", 2**12)
    bench.set(test_collectives, "SHAPES", {"cpu": {"quick": PAIRED}, "accelerator": {}})
    bench.set(test_collectives, "clock", lambda device: measured.clock(device))
    bench.set(test_collectives.Training, "backward", backward_on_both)
    bench.set(ranks, "synchronise", bench.device.wait)
    bench.set(ranks, "perf_counter", bench.device.host)
    bench.set(dist, "all_reduce", bench.pair.all_reduce)
    bench.set(test_collectives, "all_gather", bench.pair.all_gather)
    bench.set(test_clock_agreement, "ROUNDS", {"quick": 32})
    bench.set(test_clock_agreement, "kernels", lambda device: {"matmul": bench.core.kernel})
    bench.set(test_clock_agreement, "Timer", bench.core.timer)
    bench.set(test_clock_agreement, "our_seconds", partial(bench.core.interrupted, test_clock_agreement.our_seconds))


def unpinned(transfer: Any, *arguments: Any, pinned: bool, blocking: bool) -> Any:
    return transfer(*arguments, pinned=False, blocking=blocking)


def backward_on_both(training_: Any) -> None:
    """What an all-reduce of the gradients makes of the backward passes of both ranks."""
    xs, ys = zip(*(test_collectives.batch_of(PAIRED, CPU, rank) for rank in range(2)), strict=True)
    nn.functional.mse_loss(training_.model(torch.cat(xs)), torch.cat(ys)).backward()


def matmul(bench: Bench) -> None:
    test_matmul.test_matmul("fp32", "square-256", CPU, Sizing(CPU), bench.ceilings, bench.measure())


def ceiling(bench: Bench) -> None:
    test_matmul.test_ceiling("fp32", "sustainable", CPU, "quick", bench.ceilings, bench.measure())


def stream(bench: Bench, level: str = MEMORY) -> None:
    arrays = Size(3 * streams.WINDOW, MEMORY, 4.0)
    test_bandwidth.test_stream(
        level, "triad", CPU, arrays, caches(3 * streams.WINDOW), {}, VENDOR_BYTES, bench.measure()
    )


def place_of(bench: Bench, cold: bool) -> Callable[[kernels.Kernel], None]:
    roofs: Any = SimpleNamespace(bytes_per_s=lambda reads: VENDOR_BYTES, size=Size(2**16, MEMORY, None))
    fixture = test_roofline.place.__wrapped__
    return fixture(CPU, caches(CACHE if cold else 1), bench.ceilings, roofs, bench.measure(), bench.peak, VENDOR_BYTES)  # type: ignore[no-any-return]


def kernel(bench: Bench, cold: bool = True) -> None:
    rows = (torch.randn(32, test_roofline.ROW), torch.rand(32, test_roofline.ROW))
    test_roofline.test_kernel("relu", rows, place_of(bench, cold))


def layer(bench: Bench) -> None:
    test_roofline.test_layer("fp32", 4, CPU, bench.measure(), bench.ceilings, {}, place_of(bench, cold=False))


def step(bench: Bench, model: str = "deep-linear", mode: str = "eager") -> None:
    pace = "thorough" if mode == "compiled" else "quick"
    test_training.test_step(
        model, "fp32", mode, CPU, Sizing(CPU), pace, bench.ceilings, bench.peak, lambda *_: None, bench.measure()
    )


def checkpointing(bench: Bench) -> None:
    test_training.test_checkpointing(
        "deep-linear", CPU, Sizing(CPU), "quick", bench.ceilings, bench.peak, bench.measure()
    )


def accumulation(bench: Bench) -> None:
    test_training.test_accumulation("deep-linear", CPU, Sizing(CPU), "quick", bench.measure())


def token_file(bench: Bench, dtype: str) -> Path:
    tokens.write_tokens(bench.folder / dtype, test_data.TOKENS["quick"], dtype)
    return bench.folder / dtype


def loader(bench: Bench, batches: tokens.Batches, workers: int, pin_memory: bool) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in tokens.loader(batches, workers):
        bench.device.work(KERNEL_S)
        bench.device.wait()  # it is the host that makes a batch
        yield batch


def batches(bench: Bench) -> None:
    test_data.test_batches(
        "uint16", "random", 0, CPU, "quick", partial(token_file, bench), lambda: 1e6, partial(loader, bench),
        bench.measure(),
    )  # fmt: skip


def training_loop(bench: Bench) -> None:
    test_data.test_training_loop(
        0, CPU, Sizing(CPU), "quick", partial(token_file, bench), partial(loader, bench), bench.measure(),
    )  # fmt: skip


def copy(bench: Bench) -> None:
    test_transfer.test_copy("to-device", True, False, CPU, "quick", bench.measure())


def many_small(bench: Bench) -> None:
    test_transfer.test_many_small("to-host", CPU, "quick", bench.measure())


def overlap(bench: Bench) -> None:
    test_transfer.test_overlap("to-host", CPU, "quick", bench.measure())


def timed(bench: Bench, benchmark: Any) -> Callable[..., float]:
    fixture = test_collectives.timed.__wrapped__
    with bench.patch.context() as patch:
        patch.setitem(test_collectives.PACES, "quick", SHORT)
        return fixture(bench.pair, benchmark, CPU, "quick", lambda: nullcontext({}))  # type: ignore[no-any-return]


def collective(bench: Bench, name: str = "all-reduce") -> None:
    benchmark = Rounds(measured.clock(CPU))
    test_collectives.test_collective(name, 4096, bench.pair, timed(bench, benchmark), benchmark, CPU, "quick")


def sharded_step(bench: Bench) -> None:
    benchmark = Rounds(measured.clock(CPU))
    bench.patch.setitem(test_collectives.WRAPPERS, "ddp", test_collectives.plain)
    test_collectives.test_step("ddp", bench.pair, timed(bench, benchmark), benchmark, CPU, "quick")


def two_clocks(bench: Bench) -> None:
    bench.set(torch, "get_num_threads", lambda: bench.core.threads)
    compare = test_clock_agreement.compare.__wrapped__(CPU, "quick", lambda name, value: None)
    test_clock_agreement.test_timer("matmul", CPU, compare)


def counting(bench: Bench) -> None:
    test_counting_time.test_counting_takes_at_most_half_as_long_again_as_torchs_counter("deep-linear", "quick")


def cast(bench: Bench) -> None:
    gradients = test_numerics.gradients.__wrapped__(CPU, "quick")
    test_numerics.test_cast("fp16", gradients, bench.measure())


def user_model(bench: Bench) -> None:
    def factory() -> tuple[nn.Module, Tensor]:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), torch.randn(32, 64)

    examination = Examination(UserModel("a_module:factory", factory, CPU))
    benchmark = SimpleNamespace(stats={"iqr": 0.0, "rounds": 6})
    test_user_model.test_training_step(
        examination, benchmark, bench.measure(), bench.ceilings, CPU, bench.peak, lambda dtype: BOUND
    )


CASES: dict[str, Callable[[Bench], None]] = {
    "matmul": matmul,
    "matmul, ceiling": ceiling,
    "bandwidth": stream,
    "bandwidth of a cache": partial(stream, level="L2"),
    "roofline": partial(kernel, cold=False),
    "roofline, cold": kernel,
    "roofline, layers": layer,
    "training": step,
    "training of tokens": partial(step, model="transformer"),
    "training, compiled": partial(step, mode="compiled"),
    "training, checkpointed": checkpointing,
    "training, accumulated": accumulation,
    "data": batches,
    "data, training": training_loop,
    "transfer": copy,
    "transfer of parts": many_small,
    "transfer beside products": overlap,
    "collectives": collective,
    "collectives, gathered": partial(collective, name="all-gather"),
    "collectives, steps": sharded_step,
    "clock": two_clocks,
    "counting": counting,
    "numerics": cast,
    "user_model": user_model,
}


def run(case: str, bench: Bench) -> None:
    """Runs one of CASES. Raises AssertionError where it fails, or is skipped."""
    try:
        with measured.one_thread(), bench.device:
            CASES[case](bench)
    except pytest.skip.Exception as reason:
        raise AssertionError(f"{case} was skipped: {reason}") from reason
