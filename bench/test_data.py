"""Loading batches of tokens from a memory-mapped file, against the consumption of a training
step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pytest
import torch

from bench.rounds import PACES
from bench.search import calls_s
from bench.tokens import (
    DTYPES,
    ORDERS,
    Batches,
    assert_from_file,
    bottleneck,
    loader,
    sent,
    write_tokens,
)
from bench.training import Step, usual_recipe, workload
from prooflops import timing

# Python 3.12 and later, where torch has threads: its loader forks, and its workers use none of
# them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

TOKENS = {"quick": 2**22, "default": 2**24, "thorough": 2**28}
BATCH, SEQUENCE = 32, 1024
STEPS = {"quick": 3, "default": 8, "thorough": 100}
# Batches that are held against the file.
CHECKED = 4
# Batches of a round. Two workers hand over two at a time: of single ones every other would seem to
# take no time.
BLOCK = 8
WORKERS = (0, 1, 2)


@pytest.fixture(scope="session")
def token_file(tmp_path_factory, pace) -> Callable[[str], Path]:
    """The file of a dtype, written when first asked for. Just written, so the system has it in
    memory.
    """
    folder = tmp_path_factory.mktemp("tokens")

    def written(dtype: str) -> Path:
        path = folder / f"{dtype}.bin"
        if not path.exists():
            write_tokens(path, TOKENS[pace], dtype)
        return path

    return written


@pytest.fixture(scope="session")
def appetite(device, sizing, pace, bound_flop_per_s, progress_of) -> Callable[[], float]:
    """Tokens per second that the transformer of the training benchmarks consumes when it never
    waits for data, measured when first asked for."""

    @functools.cache
    def rate() -> float:
        recipe = usual_recipe(device, bound_flop_per_s)
        work = workload("transformer", recipe, device, sizing.fitting)
        window_s = 4 * PACES[pace].measure_s
        progress_of("appetite")("training steps", window_s)
        step = Step(work, recipe, device)
        # Allocates.
        step()
        return work.tokens / median(calls_s(step, timing.clock(device), window_s))

    return rate


@pytest.fixture
def stream() -> Iterator[Callable[..., Iterator[tuple[torch.Tensor, torch.Tensor]]]]:
    """Makes loaders, and ends their workers after the test."""
    made: list[Iterator[tuple[torch.Tensor, torch.Tensor]]] = []

    def make(
        batches: Batches, workers: int, pin_memory: bool
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        made.append(loader(batches, workers, pin_memory=pin_memory))
        return made[-1]

    yield make
    for each in made:
        shut_down = getattr(each, "_shutdown_workers", None)
        if shut_down:
            shut_down()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(dtype, order, workers, device, pace, token_file, appetite, stream, measure):
    batches = Batches(token_file(dtype), dtype, order, BATCH, SEQUENCE)
    began = perf_counter()
    arriving = stream(batches, workers, device.type == "cuda")
    first = next(arriving)
    startup_s = perf_counter() - began
    assert first[0].shape == (BATCH, SEQUENCE), (
        f"a batch is {tuple(first[0].shape)}, declared is {BATCH, SEQUENCE}"
    )
    assert_first_batches(batches, first, arriving, workers)
    size = batches.path.stat().st_size / TOKENS[pace]
    assert size == itemsize(dtype), (
        f"{itemsize(dtype)} bytes a token are declared, but the file has {size}"
    )

    def block() -> None:
        for _ in range(BLOCK):
            next(arriving)

    seconds = measure.median_s(
        block, dtype=dtype, bytes=BLOCK * BATCH * (SEQUENCE + 1) * itemsize(dtype)
    )
    if measure.brief:
        # The gate compares times.
        return
    rate = BLOCK * BATCH * SEQUENCE / seconds
    measure.declare(
        workers=workers,
        startup_s=startup_s,
        tokens_per_s=rate,
        bytes_per_s=rate * itemsize(dtype),
        appetite_tokens_per_s=appetite(),
        headroom=rate / appetite(),
        bottleneck="loader" if rate < appetite() else "step",
    )


def itemsize(dtype: str) -> int:
    return np.dtype(DTYPES[dtype]).itemsize


def assert_first_batches(
    batches: Batches,
    first: tuple[torch.Tensor, ...],
    arriving: Iterator[tuple[torch.Tensor, ...]],
    workers: int,
) -> None:
    """The first batches are those of the file, in the order in which the workers take turns."""
    turns = [batches.starts(worker, max(workers, 1)) for worker in range(max(workers, 1))]
    for turn in range(CHECKED):
        assert_from_file(*(next(arriving) if turn else first), next(turns[turn % len(turns)]))


@pytest.mark.parametrize("workers", WORKERS)
def test_training_loop(
    workers, device, sizing, pace, bound_flop_per_s, token_file, stream, measure
):
    """A step that takes its batch from the loader, beside the same step on a batch that is there
    already.
    """
    recipe = usual_recipe(device, bound_flop_per_s)
    work = workload("transformer", recipe, device, sizing.fitting)
    step, timer = Step(work, recipe, device), timing.clock(device)
    batches = Batches(token_file("uint16"), "uint16", "random", work.batch, work.sequence)
    arriving = stream(batches, workers, device.type == "cuda")
    assert_first_batches(batches, next(arriving), arriving, workers)
    vocabulary = step.module.head.out_features

    def loaded() -> float:
        """One step on the next batch; the host's seconds until that was there."""
        began = perf_counter()
        inputs, targets = next(arriving)
        waited = perf_counter() - began
        step.data, step.targets = (sent(each, device, vocabulary) for each in (inputs, targets))
        step()
        return waited

    measure.skip_if_held_up(loaded)
    seconds = measure.median_s(loaded, dtype=recipe)
    if measure.brief:
        # The gate compares times.
        return
    waits, loops = [], []
    for turn in range(STEPS[pace]):
        measure.progress(f"step {turn + 1} of {STEPS[pace]}")
        start = timer()
        waits.append(loaded())
        loops.append(timer() - start)
        measure.skip_if_late()
    wait_s, loop_s = median(waits), median(loops)
    measure.declare(
        workers=workers,
        tokens_per_s=work.tokens / seconds,
        wait_s=wait_s,
        waiting_share=wait_s / loop_s,
        bottleneck=bottleneck(wait_s, loop_s - wait_s, overlapped=workers > 0),
    )
