"""Measures on several ranks at once, in rounds that all ranks agree on.

A rank that fails alone ends the job.

The default group runs the measured work (NCCL on CUDA, gloo on a CPU). A second group, on gloo,
carries the barriers, the decisions of rank 0 and the figures. So waiting ranks neither keep a card
busy nor disturb the measured work.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from math import ceil, inf, prod
from statistics import median
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bench.rounds import FEWEST_ROUNDS, Pace, rounds_for
from prooflops.timing import METHOD, synchronise

# A rank that is silent for so long is taken for dead.
TIMEOUT_S = 60.0
BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
# Calls back to back in one round on an accelerator, where a launch would be seen in one alone; as
# in nccl-tests.
CALLS = 20
PILOT_ROUNDS = 5
STRAGGLER_FACTOR = 1.25
STRAGGLER_ROUNDS = 0.75


def sharded_rows(shape: Sequence[int], ranks: int, rank: int) -> int:
    """Elements of a tensor that FSDP keeps on a rank: ⌈rows / ranks⌉ rows, on the last ones fewer.

    >>> [sharded_rows((10, 3), 4, rank) for rank in range(4)]
    [9, 9, 9, 3]
    """
    rows = shape[0] if shape else 1
    each = ceil(rows / ranks)
    mine = max(0, min(each, rows - rank * each))
    return mine * prod(shape[1:])


def whole_shares(elements: Sequence[int], ranks: int) -> list[tuple[int, int]]:
    """(elements, tensors) of each rank where ZeroRedundancyOptimizer deals out whole tensors.

    The largest first, each to the rank that has least so far.

    >>> whole_shares([5, 4, 3, 3], 2)
    [(8, 2), (7, 2)]
    """
    shares = [(0, 0)] * ranks
    for size in sorted(elements, reverse=True):
        rank = min(range(ranks), key=lambda each: shares[each][0])
        shares[rank] = (shares[rank][0] + size, shares[rank][1] + 1)
    return shares


def stragglers(own_s: Sequence[Sequence[float]]) -> list[int]:
    """The ranks whose own work takes longer than the others' work.

    `own_s[rank][round]` are seconds. A rank straggles if both hold: the median of its rounds
    exceeds 1.25 times the median of the others' medians, and three quarters of its rounds exceed
    1.25 times the others' median of the same round. One slow round names nobody.

    >>> stragglers([[1.0] * 4, [1.5, 1.4, 1.5, 0.9]]), stragglers([[1.0] * 4, [1.0, 9.0, 1.0, 1.0]])
    ([1], [])
    """
    found = []
    for rank, mine in enumerate(own_s):
        others = [times for each, times in enumerate(own_s) if each != rank]
        if not others:
            continue
        usual = median(median(times) for times in others)
        slower = [
            time > STRAGGLER_FACTOR * median(times[i] for times in others)
            for i, time in enumerate(mine)
        ]
        if median(mine) > STRAGGLER_FACTOR * usual and sum(slower) >= STRAGGLER_ROUNDS * len(
            slower
        ):
            found.append(rank)
    return found


class Disagreement(AssertionError):
    """Raised on all ranks alike, so that the job can go on with the next test."""

    # `prooflops.suite.ranks` ends the job for any other error.
    on_all_ranks = True


class Ranks:
    """This process as one rank of the job."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        timeout = timedelta(seconds=TIMEOUT_S)
        if device.type in BACKENDS:
            getattr(torch, device.type).set_device(device)
        self.backend = BACKENDS.get(device.type, "gloo")
        dist.init_process_group(self.backend, rank=rank, world_size=size, timeout=timeout)
        self._control = dist.new_group(backend="gloo", timeout=timeout)

    def barrier(self) -> None:
        dist.barrier(group=self._control)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks in order, on every rank."""
        found = [None] * self.size
        dist.all_gather_object(found, value, group=self._control)
        return found

    def decide(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        decided = [value]
        dist.broadcast_object_list(decided, src=0, group=self._control)
        return decided[0]

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A block without communication.

        If it raises on any rank, all ranks raise an error that names that rank.
        """
        __tracebackhide__ = True
        error = None
        try:
            yield
        except Exception as caught:  # whatever it is, the other ranks must raise as well
            error = caught
        errors = self.gather(None if error is None else f"{type(error).__name__}: {error}".strip())
        wrong = [f"rank {rank}: {text}" for rank, text in enumerate(errors) if text is not None]
        if wrong:
            raise Disagreement(
                f"{what}: wrong on {len(wrong)} of {self.size} ranks\n" + "\n".join(wrong)
            ) from error

    def own_seconds(self, work: Callable[[], object], rounds: int) -> list[list[float]]:
        """Per rank: the seconds of its own work in each round, which all begin together."""
        own = []
        for _ in range(rounds):
            self.barrier()
            began = perf_counter()
            work()
            synchronise(self.device)
            own.append(perf_counter() - began)
        return self.gather(own)

    def alone(self, work: Callable[[], object], rounds: int) -> float:
        """Median time of `work` on rank 0, while the other ranks wait and compute nothing."""
        times = []
        self.barrier()
        if self.rank == 0:
            for _ in range(rounds + 1):
                began = perf_counter()
                work()
                synchronise(self.device)
                times.append(perf_counter() - began)
        self.barrier()
        return float(self.decide(median(times[1:]) if times else inf))

    def timed(
        self,
        benchmark: Any,
        function: Callable[[], object],
        pace: Pace,
        timer: Callable[[], Any],
        *,
        before: Callable[[], object],
        conditions: Callable[[], AbstractContextManager[dict[str, Any]]],
    ) -> float:
        """Runs the same rounds on all ranks; returns the slowest rank's median round in seconds.

        Rank 0 decides how many, by the pilot's rounds. On a CPU a round is one call, with `before`
        and a barrier ahead of it; on an accelerator 20 calls back to back, with `before` ahead of
        them all.
        """
        calls = 1 if self.device.type == "cpu" else CALLS
        slowest = self._pilot(function, calls, timer, before)
        affordable = min(
            max(int(pace.measure_s / (calls * median(slowest))), FEWEST_ROUNDS), pace.most_rounds
        )
        rounds = self.decide(rounds_for(pace.width, slowest, affordable))

        def prepare() -> None:
            before()
            self.barrier()

        prepare()
        with conditions() as state:
            benchmark.pedantic(
                function,
                setup=prepare if calls == 1 else None,
                rounds=rounds,
                iterations=calls,
                warmup_rounds=0,
            )
        if benchmark.stats is None:
            pytest.skip("pytest-benchmark is switched off in this run")
        every = self.gather([float(time) for time in benchmark.stats.stats.data])
        ranks = self.gather(
            {
                "rank": self.rank,
                "median_s": median(every[self.rank]),
                "host": socket.gethostname(),
                "device": str(self.device),
                "threads": torch.get_num_threads(),
                "labels": state.get("labels", []),
            }
        )
        seconds = median(_slowest(every))
        benchmark.extra_info.update(
            method=METHOD,
            seconds=seconds,
            conditions=state,
            rounds=rounds,
            calls_per_round=calls,
            backend=self.backend,
            ranks=ranks,
            stragglers=[],
        )
        return seconds

    def _pilot(
        self,
        function: Callable[[], object],
        calls: int,
        timer: Callable[[], Any],
        before: Callable[[], object],
    ) -> list[float]:
        """Seconds per call of the slowest rank in each of a few rounds, after one untimed call."""
        before()
        function()
        pilot = []
        for _ in range(PILOT_ROUNDS):
            before()
            synchronise(self.device)
            self.barrier()
            start = timer()
            for _ in range(calls):
                function()
            pilot.append(max((timer() - start) / calls, 1e-9))
        return _slowest(self.gather(pilot))

    def name_stragglers(self, benchmark: Any, own_s: Sequence[Sequence[float]]) -> None:
        """Puts each rank's seconds of own work into the record, and names the stragglers."""
        ranks = benchmark.extra_info["ranks"]
        medians = [median(rounds) for rounds in own_s]
        for row, seconds in zip(ranks, medians, strict=True):
            row["own_s"] = seconds
        benchmark.extra_info["stragglers"] = [
            f"rank {rank} ({ranks[rank]['host']}, {ranks[rank]['device']}) took "
            f"{medians[rank]:.3g} s for its own work, the median rank {median(medians):.3g} s"
            for rank in stragglers(own_s)
        ]


def _slowest(every: Sequence[Sequence[float]]) -> list[float]:
    """The time of the slowest rank in each round."""
    return [max(row) for row in zip(*every, strict=True)]
