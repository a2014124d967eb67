"""What the claims' assertions say, and where their failures point."""

import pytest
import torch

from test_claims.oracles import messages

ONES = torch.ones(2, 3)
SAID = {
    "bytes: 3, but should be 4 [rows=2, name='a']": lambda: messages.equal(
        3, 4, "bytes", rows=2, name="a"
    ),
    "dtype: torch.int64, but should be torch.int32": lambda: messages.equal(
        torch.int64, torch.int32, "dtype"
    ),
    "y: 1 of 6 values differ, at (0, 1) it is 1, but should be 5 [rows=2]": lambda: messages.equal(
        ONES, ONES + torch.tensor([[0, 4, 0], [0, 0, 0]]), "y", rows=2
    ),
    "bytes should agree: got=3, formula=4": lambda: messages.agree("bytes", got=3, formula=4),
    "loss: 1.5, but should be 1.0 ± 0.1": lambda: messages.close(1.5, 1.0, "loss", within=0.1),
    "loss: 0.333333, but should be at most 0.25 [seed=0]": lambda: messages.at_most(
        1 / 3, 0.25, "loss", seed=0
    ),
    "bytes: 3, but should be at least 4": lambda: messages.at_least(3, 4, "bytes"),
    "bytes: 3, but should be from 4 to 5": lambda: messages.between(3, 4, 5, "bytes"),
}


@pytest.mark.parametrize("should", SAID)
def test_a_failed_assertion_says_what_was_got_and_what_it_should_be(should):
    with pytest.raises(AssertionError) as failure:
        SAID[should]()
    assert str(failure.value) == should
    assert failure.traceback.filter(failure)[-1].path.name == "test_messages.py"
