"""Batches of tokens are what the file has, and what is not is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.test_data import assert_first_batches
from bench.tokens import Batches, assert_from_file, bottleneck, loader, text, write_tokens


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, 5000, "uint16", chunk=1000)
    return path


def test_the_file_holds_the_tokens_of_the_formula(token_file: Path) -> None:
    assert np.array_equal(np.fromfile(token_file, np.uint16), text(np.arange(5000)))
    assert len(set(text(np.arange(5000)))) > 3000, "a token should say where it is from"


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_windows_of_the_file(token_file: Path, order: str, workers: int) -> None:
    batches = Batches(token_file, "uint16", order, batch=4, sequence=32)
    arriving = loader(batches, workers)
    assert_first_batches(batches, next(arriving), arriving, workers)


def test_a_loader_that_gives_a_batch_twice_is_noticed(token_file: Path) -> None:
    batches = Batches(token_file, "uint16", "sequential", batch=4, sequence=32)
    first = next(iter(batches))
    with pytest.raises(AssertionError, match="are not those at 128"):
        assert_first_batches(batches, first, iter(batches), workers=0)


@pytest.mark.parametrize(
    ("wait_s", "step_s", "overlapped", "expected"),
    [(0.5, 1.0, False, "step"), (2.0, 1.0, False, "loader"), (0.05, 1.0, True, "step"), (0.5, 1.0, True, "loader")],
)
def test_the_loader_is_the_bottleneck_when_what_is_not_hidden_of_it_lasts(
    wait_s: float, step_s: float, overlapped: bool, expected: str
) -> None:
    assert bottleneck(wait_s, step_s, overlapped=overlapped) == expected


def test_windows_from_elsewhere_and_targets_that_are_not_shifted_are_noticed(token_file: Path) -> None:
    batches = Batches(token_file, "uint16", "random", batch=4, sequence=32)
    starts = next(batches.starts())
    inputs, targets = batches.load(starts)
    with pytest.raises(AssertionError, match="are not those at"):
        assert_from_file(inputs, targets, starts + 1)
    with pytest.raises(AssertionError, match="one token later"):
        assert_from_file(inputs, inputs, starts)


def test_an_unknown_order_is_refused(token_file: Path) -> None:
    with pytest.raises(ValueError, match="order must be one of random, sequential, got 'shuffled'"):
        Batches(token_file, "uint16", "shuffled", 4, 32)
