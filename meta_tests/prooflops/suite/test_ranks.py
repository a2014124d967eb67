"""The device of one rank of a job."""

import pytest

from prooflops.suite.ranks import JobRank, device_of


@pytest.mark.parametrize(
    ("request_", "own", "cards", "device"),
    [
        (None, JobRank(1, 2, 1), 2, "cuda:1"),
        ("cuda", JobRank(1, 2, 1), 2, "cuda:1"),
        ("cuda", JobRank(1, 2, 1), 1, "cuda:0"),
        ("cuda:0", JobRank(0, 1, 0), 2, "cuda:0"),
        ("cuda:0", JobRank(0, 2, 0), 2, "give --device cuda, or no --device"),
        (None, JobRank(2, 3, 2), 2, "start at most 2 ranks on it"),
    ],
)
def test_a_rank_has_the_card_of_its_place_on_the_machine(request_, own, cards, device):
    try:
        found = device_of(request_, own, {"cuda": cards})
    except ValueError as error:
        found = str(error)
    assert found.endswith(device)
