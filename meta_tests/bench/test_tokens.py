"""Batches are windows of the file, and their targets follow by one token."""

from itertools import islice

import numpy as np
import pytest

from bench.tokens import Batches, assert_from_file, write_tokens

TOKENS, SEQUENCE = 50, 16


def test_batches_are_windows_of_the_file_and_targets_one_token_later(tmp_path):
    write_tokens(tmp_path / "tokens", TOKENS)
    batches = Batches(tmp_path / "tokens", 20, SEQUENCE)
    drawn = [*islice(batches.starts(), 30)]
    assert {*np.concatenate(drawn)} == {*range(TOKENS - SEQUENCE)}
    inputs, targets = batches.load(drawn[0])
    assert_from_file(inputs, targets, drawn[0])
    for wrong in ((inputs, inputs), (targets, targets)):
        with pytest.raises(AssertionError):
            assert_from_file(*wrong, drawn[0])
