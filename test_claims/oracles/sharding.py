"""Data-parallel training in real processes that shard the optimizer's state between them (ZeRO, stage 1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
# Several times what a busy machine needs to import torch twice at once.
TIMEOUT_S = 120


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
    """For each net what each of `processes` held, which trained it with a sharded Adam over gloo on the CPU.

    A rank that is done waits to be killed: gloo's own shutdown hangs if the other rank has exited already.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        task = json.dumps({"rendezvous": (folder / "rendezvous").as_uri(), "processes": processes, "nets": nets})
        results = [folder / f"{rank}.json" for rank in range(processes)]
        started: list[subprocess.Popen[bytes]] = []
        for rank, result in enumerate(results):
            errors = stack.enter_context(result.with_suffix(".log").open("wb"))
            command = [sys.executable, "-m", __name__, task, str(rank), str(result)]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)  # before the block that waits for the process is left
        deadline = time.monotonic() + TIMEOUT_S
        while not all(result.exists() for result in results):
            ended = [rank for rank, process in enumerate(started) if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(result.with_suffix(".log").read_text(errors="replace") for result in results)
                raise RuntimeError(f"ranks {ended} of {processes} ended early, or {TIMEOUT_S} s have passed:\n{logs}")
            time.sleep(0.05)
        held = [json.loads(result.read_text()) for result in results]
    return [[Rank(**of_rank[net]) for of_rank in held] for net in range(len(nets))]


def main(task: str, rank: str, result: str) -> None:
    """One rank: trains each net, and writes the bytes it holds."""
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
    written = Path(result).with_suffix(".part")
    written.write_text(json.dumps(held))
    written.rename(result)
    sys.stdin.read()  # until the parent has all results, or has exited
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
