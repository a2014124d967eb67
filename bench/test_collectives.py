"""Several ranks: collectives, scaling of steps, sharded optimizers, and slow ranks.

torchrun --nproc-per-node=2 -m pytest bench/test_collectives.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accounting.memory import optimizer_state_bytes
from accounting.models import DeepLinear
from accounting.parallel import bus_factor
from bench.checks import assert_random
from bench.models import DeepLinearNet
from bench.ranks import Ranks, sharded_rows, whole_shares
from bench.rounds import PACES
from bench.timing import LEAST_WAITED_SHARE
from prooflops.timing import clock

if not dist.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

COMMAND = "torchrun --nproc-per-node=2 -m pytest bench/test_collectives.py"
KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
MOST_BYTES = {"cpu": {"quick": 4 * MIB, "default": 16 * MIB, "thorough": 64 * MIB}}
# The size whose bus bandwidth is held against the floor.
FLOOR_SIZE = 1024 * MIB
# Arrays of a collective's size on a card: its own, source, target, result, and four that check it.
HELD = 8
QUICK_SIZES = (4 * KIB, 4 * MIB, 256 * MIB)
BLOCK = 1_000_003
ARRIVALS = 12
# torch 2.13 has new names for these two, and warns of the old ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
FEWEST_ARRIVALS = 8
FEWEST_ARRIVALS_OF_MANY_CALLS = 3
# Arrivals of 4 KiB end within a millisecond, in which another process may run throughout.
MOST_LOOKS = 8


@dataclass(frozen=True)
class RankWork:
    """Work of one rank, large enough that a step is more than its launches."""

    model: DeepLinear
    batch: int


ON_CPU = {
    "quick": RankWork(DeepLinear(dim=256, layers=4, outputs=10), 128),
    "default": RankWork(DeepLinear(dim=512, layers=6, outputs=10), 256),
    "thorough": RankWork(DeepLinear(dim=1024, layers=8, outputs=10), 512),
}
ON_ACCELERATOR = RankWork(DeepLinear(dim=4096, layers=8, outputs=10), 4096)


@pytest.fixture(scope="session")
def ranks(job, device) -> Iterator[Ranks]:
    """The job this process is a rank of; without one, its tests are skipped."""
    if job is None:
        pytest.skip(f"needs several ranks: {COMMAND}")
    if job.size < 2:
        pytest.skip(f"needs at least 2 ranks, this job has 1: {COMMAND}")
    if device.type == "mps":
        pytest.skip("torch.distributed has no backend for mps")
    ranks = Ranks(job.rank, job.size, device)
    yield ranks
    if not job.failed_alone:
        dist.destroy_process_group()


@pytest.fixture
def timed(ranks, benchmark, device, pace, conditions) -> Callable[..., float]:
    """Measures a function on all ranks, see `Ranks.timed`, by a clock that waits for the device."""

    def waited(
        function: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> float:
        seconds = ranks.timed(
            benchmark, function, PACES[pace], clock(device), before=before, conditions=conditions
        )
        assert_waited(function, before, benchmark.extra_info["calls_per_round"], seconds, ranks)
        return seconds

    return waited


def assert_waited(
    function: Callable[[], object],
    before: Callable[[], object],
    calls: int,
    seconds: float,
    ranks: Ranks,
) -> None:
    """Raises AssertionError on all ranks if the clock saw less than half of a call's time."""

    def several() -> None:
        before()
        for _ in range(calls):
            function()

    least = inf
    rounds = FEWEST_ARRIVALS if calls == 1 else FEWEST_ARRIVALS_OF_MANY_CALLS
    for _ in range(MOST_LOOKS):
        every = ranks.own_seconds(several, rounds)
        least = min(least, *(time / calls for own_s in every for time in own_s))
        # All ranks come to the same decision.
        if seconds >= LEAST_WAITED_SHARE * least:
            break
    with ranks.together("the clock"):
        assert seconds >= LEAST_WAITED_SHARE * least, (
            f"a call takes {seconds:.3g} s, but {least:.3g} s until the device is idle: does the "
            "benchmark wait for the device?"
        )


def integers(elements: int, device: torch.device, rank: int) -> torch.Tensor:
    """Random integers in fp32, the same wherever they are made: their sums are exact in any order.

    One random block repeats. Its length is prime, so a misplaced chunk does not meet equal values.
    """
    generator = torch.Generator().manual_seed(rank)
    block = (
        torch.randint(-1000, 1001, (min(elements, BLOCK),), generator=generator).float().to(device)
    )
    return block.repeat(-(-elements // max(len(block), 1)))[:elements].clone()


class TimedCollective:
    """One collective on arrays of `size` bytes: a call to time, a refill ahead of it, a check."""

    def __init__(self, name: str, size: int, ranks: Ranks) -> None:
        self.name, self.ranks, n = name, ranks, ranks.size
        elements = size // 4 // n * n
        self.size = 4 * elements
        self.part = elements // n
        self.own = integers(
            elements if name != "all-gather" else self.part, ranks.device, ranks.rank
        )
        self.source = self.target = self.own.clone()
        if name != "all-reduce":
            received = elements if name == "all-gather" else self.part
            self.target = torch.empty(received, device=ranks.device)
        # Sums in place would outgrow fp32 when repeated without a refill; a mean is the same
        # traffic.
        self.repeated = dist.ReduceOp.AVG if ranks.backend == "nccl" else dist.ReduceOp.SUM

    def refill(self) -> None:
        if self.name == "all-reduce":
            self.source.copy_(self.own)

    def repeat(self) -> None:
        self.run(self.repeated)

    def run(self, op: dist.ReduceOp.RedOpType) -> None:
        if self.name == "all-reduce":
            dist.all_reduce(self.source, op=op)
        elif self.name == "all-gather":
            all_gather(self.target, self.source)
        else:
            reduce_scatter(self.target, self.source, op=op)

    def check(self) -> None:
        """Compares one call on all ranks with the result that the seeds of all ranks imply."""
        # An earlier call's right result may be left there.
        self.target.fill_(float("nan"))
        self.refill()
        self.run(dist.ReduceOp.SUM)
        # Copied before any wait: a late result is wrong.
        got = self.target.clone()
        with self.ranks.together(f"{self.name} of {self.size} bytes"):
            every = (
                integers(self.own.numel(), got.device, rank) for rank in range(self.ranks.size)
            )
            expected = (
                torch.cat(list(every))
                if self.name == "all-gather"
                else reduce(torch.Tensor.add_, every)
            )
            if self.name == "reduce-scatter":
                expected = expected[self.ranks.rank * self.part :][: self.part]
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def text_of(size: int) -> str:
    return f"{size // MIB}MiB" if size >= MIB else f"{size // KIB}KiB"


@pytest.mark.parametrize("size", SIZES, ids=text_of)
@pytest.mark.parametrize("name", ["all-reduce", "all-gather", "reduce-scatter"])
def test_collective(name, size, ranks, timed, benchmark, device, pace, sizing, delivery):
    most = MOST_BYTES.get(device.type, {}).get(pace, SIZES[-1])
    if size > most or (pace == "quick" and size not in QUICK_SIZES):
        pytest.skip(f"the {pace} pace omits this size on {device.type}")
    if min(ranks.gather(sizing.room_bytes())) < HELD * size:
        pytest.skip(f"each rank needs {HELD * size:,} bytes; a card has fewer free")
    collective = TimedCollective(name, size, ranks)
    with ranks.together("inputs"):
        assert_random([collective.own])
    collective.check()
    seconds = timed(collective.repeat, before=collective.refill)
    collective.check()
    bandwidth = collective.size / seconds
    benchmark.extra_info.update(
        bytes=collective.size,
        bytes_per_s=bandwidth,
        algbw_bytes_per_s=bandwidth,
        busbw_bytes_per_s=bandwidth * bus_factor(name, ranks.size),
    )
    if name == "all-reduce" and size == FLOOR_SIZE and ranks.backend == "nccl":
        moved_bytes = benchmark.extra_info["busbw_bytes_per_s"] * seconds
        with ranks.together("the floor"):
            delivery.check(name, moved_bytes, "B/s", None, seconds=seconds)


# Returns the wrapped model and its optimizer.
Wrap = Callable[[DeepLinearNet, Ranks], tuple[nn.Module, Any]]


class Training:
    """A net with AdamW on this rank's batch. All ranks start from the same weights."""

    def __init__(self, shape: RankWork, ranks: Ranks, wrap: Wrap) -> None:
        self.model, self.optimizer = wrap(plain_net(shape, ranks.device), ranks)
        self.x, self.y = batch_of(shape, ranks.device, ranks.rank)

    def backward(self) -> None:
        nn.functional.mse_loss(self.model(self.x), self.y).backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()


def plain_net(shape: RankWork, device: torch.device) -> DeepLinearNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DeepLinearNet(shape.model).to(device)


def batch_of(shape: RankWork, device: torch.device, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank + 1)
    x = torch.randn(shape.batch, shape.model.inputs, generator=generator)
    y = torch.randn(shape.batch, shape.model.outputs, generator=generator)
    return x.to(device), y.to(device)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-5)


def replicated(net: nn.Module, ranks: Ranks) -> nn.Module:
    return DistributedDataParallel(
        net, device_ids=None if ranks.device.type == "cpu" else [ranks.device]
    )


def alone(net: DeepLinearNet, _ranks: Ranks) -> tuple[nn.Module, Any]:
    return net, adamw(net)


def ddp(net: DeepLinearNet, ranks: Ranks) -> tuple[nn.Module, Any]:
    model = replicated(net, ranks)
    return model, adamw(model)


def zero(net: DeepLinearNet, ranks: Ranks) -> tuple[nn.Module, Any]:
    # Its import warns of torch.jit.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = replicated(net, ranks)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-5)


def fsdp(net: DeepLinearNet, ranks: Ranks) -> tuple[nn.Module, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for layer in (*net.layers, net.head):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, adamw(net)


WRAPPERS = {"ddp": ddp, "zero": zero, "fsdp": fsdp}


def why_not(ranks: Ranks) -> str | None:
    """The reason why this torch cannot use fully_shard on this device; None if it can."""
    shape = RankWork(DeepLinear(dim=8, layers=1), 2)
    try:
        Training(shape, ranks, fsdp).step()
    except (ImportError, AttributeError, NotImplementedError, RuntimeError) as error:
        return (
            f"fully_shard of torch {torch.__version__} does not run on {ranks.device.type}: {error}"
        )
    return None


def held_by(optimizer: Any) -> int:
    """Bytes of the optimizer's state on this rank."""
    # The ZeroRedundancyOptimizer has one of its own for its share.
    own = getattr(optimizer, "optim", optimizer)
    tensors = [
        value for state in own.state.values() for value in state.values() if torch.is_tensor(value)
    ]
    return sum(
        (tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes for tensor in tensors
    )


def expected_bytes(mode: str, shapes: list[torch.Size], ranks: int) -> list[int]:
    """Bytes of AdamW's state on each rank, by formula."""
    whole = [shape.numel() for shape in shapes]
    if mode == "ddp":
        shares = [(sum(whole), len(whole))] * ranks
    elif mode == "zero":
        shares = whole_shares(whole, ranks)
    else:
        shares = [
            (sum(sharded_rows(shape, ranks, rank) for shape in shapes), len(whole))
            for rank in range(ranks)
        ]
    return [
        optimizer_state_bytes(elements, "adamw", tensors=tensors) for elements, tensors in shares
    ]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """The gradient of each parameter, whole where a rank keeps a part."""
    found: list[Any] = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]


def check_gradients(training: Training, shape: RankWork, ranks: Ranks) -> None:
    """A step on all ranks has the gradient of one step on all of their batches."""
    training.optimizer.zero_grad()
    training.backward()
    got = gradients(training.model)
    with ranks.together("gradients"):
        net = plain_net(shape, ranks.device)
        batches = [batch_of(shape, ranks.device, rank) for rank in range(ranks.size)]
        xs, ys = zip(*batches, strict=True)
        nn.functional.mse_loss(net(torch.cat(xs)), torch.cat(ys)).backward()
        for one, expected in zip(got, gradients(net), strict=True):
            largest = float(expected.abs().max())
            torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("mode", WRAPPERS)
def test_step(mode, ranks, timed, benchmark, device, pace):
    if mode == "fsdp" and any(reasons := ranks.gather(why_not(ranks))):
        pytest.skip(next(filter(None, reasons)))
    shape = ON_CPU[pace] if device.type == "cpu" else ON_ACCELERATOR
    single = Training(shape, ranks, alone)
    shapes = [parameter.shape for parameter in single.model.parameters()]
    training = Training(shape, ranks, WRAPPERS[mode])
    check_gradients(training, shape, ranks)
    seconds = timed(training.step)
    single.step()
    # The same number of rounds alone and at once; the first call of each is not timed.
    rounds = ranks.decide(max(FEWEST_ARRIVALS, min(ARRIVALS, int(PACES[pace].measure_s / seconds))))
    alone_s = ranks.alone(single.step, rounds)
    own_s = ranks.own_seconds(single.step, rounds)
    ranks.name_stragglers(benchmark, own_s)
    held = ranks.gather(held_by(training.optimizer))
    expected = expected_bytes(mode, shapes, ranks.size)
    for row, count in zip(benchmark.extra_info["ranks"], held, strict=True):
        row["optimizer_bytes"] = count
    benchmark.extra_info.update(
        alone_s=alone_s,
        efficiency=alone_s / seconds,
        parameters=sum(shape.numel() for shape in shapes),
    )
    with ranks.together("optimizer bytes"):
        mine = held[ranks.rank]
        assert mine == expected[ranks.rank], (
            f"the optimizer keeps {mine} bytes, but should keep {expected[ranks.rank]} [{mode}]"
        )
