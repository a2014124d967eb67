"""Data-parallel training in real processes that shard the optimizer's state between them (ZeRO, stage 1)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
# Several times what a busy machine needs to import torch; a rank that waits for a dead one is killed then.
TIMEOUT_S = 240


@dataclass(frozen=True)
class Rank:
    """What one process held after two steps of Adam, in bytes, and its parameters."""

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
    """For each net what each of `processes` held, which trained it with a sharded Adam over gloo on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        task = json.dumps({"rendezvous": Path(folder, "rendezvous").as_uri(), "processes": processes, "nets": nets})
        started = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, task, str(rank)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            printed = [process.communicate(timeout=TIMEOUT_S) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    for rank, (process, (_, errors)) in enumerate(zip(started, printed, strict=True)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} of {processes} ended with {process.returncode}:\n{errors}")
    held = [json.loads(output) for output, _ in printed]
    return [[Rank(**of_rank[net]) for of_rank in held] for net in range(len(nets))]


def main(task: str, rank: str) -> None:
    """One rank: trains each net, and prints what it holds."""
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from test_claims.oracles.memory import state_bytes, tensor_sum

    asked = json.loads(task)
    distributed.init_process_group(
        "gloo", init_method=asked["rendezvous"], world_size=asked["processes"], rank=int(rank)
    )
    held = []
    for widths in asked["nets"]:
        parameters = net_of(widths)
        optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=1e-2)
        train(parameters, optimizer)
        held.append(
            {
                "parameters": tensor_sum(parameters),
                "gradients": tensor_sum(parameter.grad for parameter in parameters),
                "state": state_bytes(optimizer.optim),
                "weights": [value for parameter in parameters for value in parameter.flatten().tolist()],
            }
        )
    distributed.barrier()
    print(json.dumps(held))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
