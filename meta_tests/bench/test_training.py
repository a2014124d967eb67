"""The FLOPs and bytes that the benchmarks of training declare, and the batches that they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from accounting.models import GPT2_SMALL, DeepLinear
from bench.models import reduced
from bench.test_data import assert_first_batches
from bench.test_training import counted_work, held_bytes, predicted_held_bytes
from bench.tokens import Batches, loader, text, write_tokens
from bench.training import Step, Workload

CPU = torch.device("cpu")
WORK = {
    "deep-linear": Workload(DeepLinear(dim=32, layers=6), batch=64),
    "transformer": Workload(reduced(GPT2_SMALL, layers=2), batch=2, sequence=16),
}


@pytest.mark.parametrize("model", WORK)
@pytest.mark.parametrize("checkpoint_every", [0, 1, 2])
def test_the_flops_of_a_step_by_formula_are_those_counted(model: str, checkpoint_every: int) -> None:
    work = WORK[model]
    flops = work.flops(checkpoint_every).hardware
    assert counted_work(Step(work, "fp32", CPU, checkpoint_every=checkpoint_every), flops).flops == flops


@pytest.mark.parametrize("model", WORK)
def test_checkpointing_saves_what_is_predicted(model: str) -> None:
    plain, spared = (Step(WORK[model], "fp32", CPU, checkpoint_every=every) for every in (0, 2))
    assert held_bytes(spared) < held_bytes(plain)
    for step in (plain, spared):
        assert predicted_held_bytes(step) == held_bytes(step)


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, 5000, "uint16", chunk=1000)
    assert np.array_equal(np.fromfile(path, np.uint16), text(np.arange(5000)))
    return path


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_windows_of_the_file(token_file: Path, order: str, workers: int) -> None:
    batches = Batches(token_file, "uint16", order, batch=4, sequence=32)
    arriving = loader(batches, workers)
    assert_first_batches(batches, next(arriving), arriving, workers)
