"""Batches of tokens from a memory-mapped file, against what a training step consumes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median

import pytest

from bench.rounds import PACES
from bench.search import calls_s
from bench.tokens import ITEM_BYTES, Batch, Batches, assert_from_file, loader, write_tokens
from bench.training import Step, usual_recipe, workload
from prooflops import timing

# Python 3.12 and later, where torch has threads: its loader forks, and its workers use none of
# them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

TOKENS = {"quick": 2**22, "default": 2**24, "thorough": 2**28}
BATCH, SEQUENCE = 32, 1024
# Batches that are held against the file.
CHECKED = 4
# Batches of a round. Two workers hand over two at a time: of single ones every other would seem to
# take no time.
BLOCK = 8
WORKERS = (0, 1, 2)


@pytest.fixture(scope="session")
def token_file(tmp_path_factory, pace) -> Path:
    """A file of tokens that was just written, so the system has it in memory."""
    path = tmp_path_factory.mktemp("tokens") / "uint16.bin"
    write_tokens(path, TOKENS[pace])
    return path


@pytest.fixture(scope="session")
def appetite(device, sizing, pace, bound_flop_per_s, progress_of) -> Callable[[], float]:
    """Tokens per second that the benchmarks' transformer consumes if it never waits for data."""

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


@pytest.mark.parametrize("workers", WORKERS, ids="uint16-random-{}".format)
def test_batches(workers, device, token_file, appetite, measure):
    batches = Batches(token_file, BATCH, SEQUENCE)
    with loader(batches, workers, pin_memory=device.type == "cuda") as arriving:
        first = next(arriving)
        assert first[0].shape == (BATCH, SEQUENCE), (
            f"a batch is {tuple(first[0].shape)}, declared is {BATCH, SEQUENCE}"
        )
        assert_first_batches(batches, chain([first], arriving), workers)

        def block() -> None:
            for _ in range(BLOCK):
                next(arriving)

        seconds = measure.median_s(
            block, dtype="uint16", bytes=BLOCK * BATCH * (SEQUENCE + 1) * ITEM_BYTES
        )
    if measure.brief:
        # A process of the gate compares times alone.
        return
    rate = BLOCK * BATCH * SEQUENCE / seconds
    measure.declare(
        workers=workers,
        tokens_per_s=rate,
        bytes_per_s=rate * ITEM_BYTES,
        bottleneck="loader" if rate < appetite() else "step",
    )


def assert_first_batches(batches: Batches, arriving: Iterator[Batch], workers: int) -> None:
    """The first batches are those of the file, in the order in which the workers take turns."""
    turns = cycle([batches.starts(worker) for worker in range(max(workers, 1))])
    for (x, y), starts in zip(islice(arriving, CHECKED), turns, strict=False):
        assert_from_file(x, y, next(starts))
