"""Data-parallel training in real processes that shard the optimizer's state between them (ZeRO, stage 1)."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.multiprocessing import start_processes

from test_claims.oracles.tensors import state_bytes, tensor_sum

TIMEOUT_S = 120  # a busy machine imports torch in a fraction of it


@dataclass(frozen=True)
class Rank:
    """The bytes that one process holds after two steps of Adam, and its parameters."""

    parameters: int
    gradients: int
    state: int
    weights: list[float]


def net_of(widths: Sequence[int]) -> list[torch.nn.Parameter]:
    """One square matrix of each width, the same in every process."""
    return [torch.nn.Parameter(torch.arange(n * n, dtype=torch.float32).view(n, n) / (n * n)) for n in widths]


def train(parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Two steps on the mean square of all parameters."""
    for _ in range(2):
        optimizer.zero_grad()
        sum((parameter**2).mean() for parameter in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()


def ranks(*nets: Sequence[int], processes: int = 2) -> list[list[Rank]]:
    """For each net the ranks of `processes` processes that train it with a sharded Adam, over gloo on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, processes, nets)
        context = start_processes(train_sharded, arguments, processes, join=False, start_method="spawn")
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while not context.join(timeout=1):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{processes} ranks have not ended after {TIMEOUT_S} s")
        finally:
            for process in context.processes:
                process.kill()
        held = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)]
    return [[Rank(*of_rank[net]) for of_rank in held] for net in range(len(nets))]


def train_sharded(rank: int, folder: str, processes: int, nets: Sequence[Sequence[int]]) -> None:
    """One rank: trains each net and writes the bytes it holds."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    # A store rather than a file:// address, whose percent-encoded spaces and umlauts torch does not decode.
    store = torch.distributed.FileStore(f"{folder}/rendezvous", processes)
    torch.distributed.init_process_group("gloo", store=store, world_size=processes, rank=rank)
    held = []
    for widths in nets:
        parameters = net_of(widths)
        optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=1e-2)
        train(parameters, optimizer)
        gradients = tensor_sum(parameter.grad for parameter in parameters)
        weights = [value for parameter in parameters for value in parameter.flatten().tolist()]
        held.append((tensor_sum(parameters), gradients, state_bytes(optimizer.optim), weights))
    Path(folder, f"{rank}.json").write_text(json.dumps(held))
    torch.distributed.barrier()
    os._exit(0)  # gloo's own shutdown hangs where another rank has exited already
