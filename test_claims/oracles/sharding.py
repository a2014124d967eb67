"""Data-parallel training between processes, which may shard the optimizer's state (ZeRO, stage 1).

`ranks` trains in real processes, two by default. `fake_ranks` needs no process: this one takes the
place of each rank in turn, in a fake group whose collectives return at once. `beside_a_second_rank`
makes this process one of two that add up their gradients.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch.multiprocessing import start_processes

from test_claims.oracles.tensors import state_bytes, tensor_sum

# A busy machine imports torch in a fraction of this.
TIMEOUT_S = 120


@dataclass(frozen=True)
class Rank:
    """What one process holds after two steps of Adam."""

    # Bytes of parameters, of gradients and of optimizer state.
    held: tuple[int, int, int]
    weights: list[float]


def net_of(widths: Sequence[int]) -> list[torch.nn.Parameter]:
    """One square matrix of each width, the same in every process."""
    return [
        torch.nn.Parameter(torch.arange(n * n, dtype=torch.float32).view(n, n) / (n * n))
        for n in widths
    ]


def train(parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Two steps on the mean square of all parameters."""
    for _ in range(2):
        optimizer.zero_grad()
        torch.stack([parameter.square().mean() for parameter in parameters]).sum().backward()
        optimizer.step()


def trained(widths: Sequence[int]) -> Rank:
    """Trains the net with a sharded Adam, as one rank of this process's group."""
    with warnings.catch_warnings():
        # The import compiles TorchScript, which is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    parameters = net_of(widths)
    optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=1e-2)
    train(parameters, optimizer)
    held = (
        tensor_sum(parameters),
        tensor_sum(each.grad for each in parameters),
        state_bytes(optimizer.optim),
    )
    weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
    return Rank(held, weights.tolist())


def fake_ranks(widths: Sequence[int], devices: int) -> list[Rank]:
    """The ranks of a fake group: the bytes they hold are right, the weights are not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    held = []
    for rank in range(devices):
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), world_size=devices, rank=rank
        )
        try:
            held.append(trained(widths))
        finally:
            torch.distributed.destroy_process_group()
    return held


def ranks(*nets: Sequence[int], processes: int = 2) -> list[list[Rank]]:
    """For each net the ranks of `processes` real processes that train it, over gloo on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, processes, nets)
        context = start_processes(
            train_sharded, arguments, processes, join=False, start_method="spawn"
        )
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while not context.join(timeout=1):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{processes} ranks have not ended after {TIMEOUT_S} s")
        finally:
            for process in context.processes:
                process.kill()
        held = [
            json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)
        ]
    return [[Rank(*of_rank[net]) for of_rank in held] for net in range(len(nets))]


def join_group(folder: str, processes: int, rank: int) -> None:
    """Makes this process a rank of a gloo group that meets in `folder`."""
    # A store rather than a file:// address, whose percent-encoded spaces and umlauts torch does not
    # decode.
    store = torch.distributed.FileStore(f"{folder}/rendezvous", processes)
    timeout = timedelta(seconds=TIMEOUT_S)
    torch.distributed.init_process_group(
        "gloo", store=store, world_size=processes, rank=rank, timeout=timeout
    )


def train_sharded(rank: int, folder: str, processes: int, nets: Sequence[Sequence[int]]) -> None:
    """One rank: trains each net and writes the bytes it holds."""
    join_group(folder, processes, rank)
    held = [astuple(trained(widths)) for widths in nets]
    Path(folder, f"{rank}.json").write_text(json.dumps(held))
    torch.distributed.barrier()
    # gloo's own shutdown hangs where another rank has exited already.
    os._exit(0)


@contextmanager
def beside_a_second_rank(elements: int) -> Iterator[None]:
    """Within, this process is one of two, and the other never late to an all-reduce.

    The other's gradient, of so many elements, is 1 everywhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            add_ones, (folder, elements), nprocs=1, join=False, start_method="spawn"
        )
        try:
            join_group(folder, 2, rank=0)
            yield
        finally:
            for process in context.processes:
                process.kill()
                process.join()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def add_ones(_index: int, folder: str, elements: int) -> None:
    """The second of two ranks, until it is killed."""
    join_group(folder, 2, rank=1)
    gradient = torch.empty(elements)
    while True:
        torch.distributed.all_reduce(gradient.fill_(1))
