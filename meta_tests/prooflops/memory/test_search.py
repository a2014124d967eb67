"""The largest size that fits, found in few trials."""

import pytest

from prooflops.memory.search import largest_size

LIMIT = 24_800_000_000
# Bytes that all sizes take, bytes a size, and the bytes of the segments that are reserved.
SAWTEETH = [(10 * 2**30, 2_830_000, 20 * 2**20), (0, 3 * 2**20, 64 * 2**20), (2**30, 9_999, 2**21)]


def searched(peak, estimate, first, ceiling=2**24):
    """The largest size that fits, which is checked, and the number of trials."""
    asked = []

    def does_fit(size):
        asked.append(size)
        return peak(size) <= LIMIT

    found = largest_size(does_fit, estimate, first, ceiling)
    assert len(asked) == len(set(asked)), asked
    return found, len(asked)


@pytest.mark.parametrize(("state", "slope", "segment"), SAWTEETH)
@pytest.mark.parametrize("first", [1, 8, 1024, 10**6])
def test_peaks_that_grow_in_segments_take_few_trials(state, slope, segment, first):
    def peak(size):
        return state + -(-size * slope // segment) * segment

    found, trials = searched(peak, lambda: (LIMIT - state) // slope, first)
    assert peak(found) <= LIMIT < peak(found + 1)
    assert trials <= 20


def test_an_estimate_that_never_moves_leads_to_bisection():
    found, trials = searched(lambda size: LIMIT + (size >= 777_777), lambda: 0, 10**6)
    assert found == 777_776
    assert trials <= 32


def test_no_size_above_the_ceiling_is_tried():
    assert searched(lambda size: size, lambda: 10**6, 3, ceiling=64)[0] == 64
    assert searched(lambda _: 2 * LIMIT, lambda: 0, 64, ceiling=64)[0] == 0
