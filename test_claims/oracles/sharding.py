"""Data-parallel training in real processes that shard the optimizer's state between them (ZeRO, stage 1)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
# Several times what a busy machine needs to import torch.
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

    All are forked from one process, which imports torch for them. A rank that is done waits for the end of its input
    and is killed then: gloo's own shutdown hangs if the other rank has exited already.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        task = json.dumps({"folder": str(folder), "processes": processes, "nets": nets})
        results = [folder / f"{rank}.json" for rank in range(processes)]
        log = stack.enter_context((folder / "log").open("w+b"))
        command = [sys.executable, "-m", __name__, task]
        process = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        )
        stack.callback(os.killpg, process.pid, signal.SIGKILL)  # before the block that waits for the process is left
        deadline = time.monotonic() + TIMEOUT_S
        while not all(result.exists() for result in results):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                said = log.read().decode(errors="replace")
                raise RuntimeError(f"one of {processes} ranks ended early, or {TIMEOUT_S} s have passed:\n{said}")
            time.sleep(0.05)
        held = [json.loads(result.read_text()) for result in results]
    return [[Rank(**of_rank[net]) for of_rank in held] for net in range(len(nets))]


def main(task: str) -> None:
    """Forks the ranks, and ends as soon as one of them does."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.optim.Adam(net_of([1]))  # imports what each rank would import for itself
    asked = json.loads(task)
    for rank in range(asked["processes"]):
        if not os.fork():
            try:
                train_sharded(rank, asked, ZeroRedundancyOptimizer)
            finally:
                traceback.print_exc()
                os._exit(1)
    os.wait()


def train_sharded(rank: int, asked: dict[str, Any], optimizer_class: Any) -> None:
    """One rank: trains each net, writes the bytes it holds, and waits for the end of its input."""
    from test_claims.oracles.tensors import state_bytes, tensor_sum

    folder = Path(asked["folder"])
    # A store rather than a file:// address, whose percent-encoded spaces and umlauts torch does not decode.
    store = torch.distributed.FileStore(str(folder / "rendezvous"), asked["processes"])
    torch.distributed.init_process_group("gloo", store=store, world_size=asked["processes"], rank=rank)
    held = []
    for widths in asked["nets"]:
        parameters = net_of(widths)
        optimizer = optimizer_class(parameters, optimizer_class=torch.optim.Adam, lr=1e-2)
        train(parameters, optimizer)
        held.append(
            {
                "parameters": tensor_sum(parameters),
                "gradients": tensor_sum(parameter.grad for parameter in parameters),
                "state": state_bytes(optimizer.optim),
                "weights": [value for parameter in parameters for value in parameter.flatten().tolist()],
            }
        )
    written = folder / f"{rank}.part"
    written.write_text(json.dumps(held))
    written.rename(folder / f"{rank}.json")
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
