"""Data-parallel training between processes, which may shard the optimizer's state (ZeRO, stage 1).

`ranks` trains in two real processes, of which this is one. `fake_ranks` needs no other process:
this one takes the place of each rank in turn, in a fake group whose collectives return at once.
`beside_a_second_rank` makes this process one of two that add up their gradients.
"""

from __future__ import annotations

import json
import tempfile
import warnings
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


def net_of(widths):
    """One square matrix of each width, the same in every process."""
    return [
        torch.nn.Parameter(torch.arange(n * n, dtype=torch.float32).view(n, n) / (n * n))
        for n in widths
    ]


def train(parameters, optimizer):
    """Two steps on the mean square of all parameters."""
    for _ in range(2):
        optimizer.zero_grad()
        torch.stack([parameter.square().mean() for parameter in parameters]).sum().backward()
        optimizer.step()


def trained(widths):
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


def fake_ranks(widths, devices):
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


def ranks(*nets):
    """For each net the two ranks that train it, over gloo on the CPU: this process and another."""
    with beside_another(train_sharded, nets) as folder:
        first = [trained(widths) for widths in nets]
        # The other has written by then.
        torch.distributed.barrier()
        second = json.loads((folder / "held.json").read_text())
    return list(zip(first, (Rank(*of_net) for of_net in second), strict=True))


def train_sharded(_index, folder, nets):
    """The second of two ranks: trains each net and writes the bytes it holds."""
    join_group(folder, rank=1)
    held = [astuple(trained(widths)) for widths in nets]
    Path(folder, "held.json").write_text(json.dumps(held))
    torch.distributed.barrier()


@contextmanager
def beside_a_second_rank(elements):
    """Within, this process is one of two, and the other never late to an all-reduce.

    The other's gradient, of so many elements, is 1 everywhere.
    """
    with beside_another(add_ones, elements):
        yield


def add_ones(_index, folder, elements):
    """The second of two ranks, until it is killed."""
    join_group(folder, rank=1)
    gradient = torch.empty(elements)
    while True:
        torch.distributed.all_reduce(gradient.fill_(1))


@contextmanager
def beside_another(rank_1, *arguments):
    """Within, this process is the first of two ranks that meet in a folder; `rank_1` is the other.

    It gets an index, the folder and the arguments.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            rank_1, (folder, *arguments), nprocs=1, join=False, start_method="spawn"
        )
        try:
            join_group(folder, rank=0)
            yield Path(folder)
        finally:
            for process in context.processes:
                process.kill()
                process.join()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def join_group(folder, rank):
    """Makes this process a rank of a gloo group of two that meets in `folder`."""
    # A store rather than a file:// address, whose percent-encoded spaces and umlauts torch does not
    # decode.
    store = torch.distributed.FileStore(f"{folder}/rendezvous", 2)
    timeout = timedelta(seconds=TIMEOUT_S)
    torch.distributed.init_process_group(
        "gloo", store=store, world_size=2, rank=rank, timeout=timeout
    )
