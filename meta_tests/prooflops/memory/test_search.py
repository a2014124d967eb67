"""The largest size that fits, found in few trials."""

import pytest

from prooflops.memory.search import largest_size

LIMIT = 10**6
PEAKS = [
    lambda n: 700 + 31 * n,
    lambda n: 10 * n * n + 5,
    lambda n: max(900_000, 100 * n),
    lambda n: 31 * (n // 8) * 8,
]


@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize("close", [0.01, 0.0])
@pytest.mark.parametrize("first", [4, 10**6])
def test_the_largest_size_is_found_in_few_trials(peak, close, first):
    asked = []

    def tried(size):
        asked.append(size)
        return peak(size), peak(size) <= LIMIT

    found, beyond = largest_size(tried, first, LIMIT, close=close)
    assert peak(found) <= LIMIT < peak(beyond)
    assert beyond - found <= max(1, close * found)
    assert len(asked) == len(set(asked)) <= 30, asked


# Bytes that all sizes take, bytes a size, and the bytes of the segments that are reserved.
SAWTEETH = [(10 * 2**30, 2_830_000, 20 * 2**20), (0, 3 * 2**20, 64 * 2**20), (2**30, 9_999, 2**21)]


@pytest.mark.parametrize(("state", "slope", "segment"), SAWTEETH)
@pytest.mark.parametrize("first", [1, 8, 1024, 10**6])
def test_peaks_that_grow_in_segments_take_few_trials(state, slope, segment, first):
    limit = 24_800_000_000
    asked = []

    def peak(size):
        return state + -(-size * slope // segment) * segment

    def tried(size):
        asked.append(size)
        return peak(size), peak(size) <= limit

    found, beyond = largest_size(tried, first, limit, ceiling=2**24)
    assert peak(found) <= limit < peak(beyond)
    assert beyond == found + 1
    assert len(asked) <= 16, asked


def test_a_peak_that_no_line_is_close_to_is_bisected():
    asked = []

    def tried(size):
        asked.append(size)
        return 1 if size < 777_777 else 10**18, size < 777_777

    assert largest_size(tried, 10**6, LIMIT) == (777_776, 777_777)
    assert len(asked) <= 32, asked


def test_a_size_that_does_not_run_does_not_fit_and_none_is_tried_above_the_ceiling():
    def tried(size):
        return (None, False) if size > 100 else (size, True)

    assert largest_size(tried, 3, LIMIT) == (100, 101)
    assert largest_size(tried, 200, LIMIT) == (100, 101)
    assert largest_size(tried, 3, LIMIT, ceiling=64) == (64, 65)
    assert largest_size(lambda size: (2 * LIMIT, False), 64, LIMIT) == (0, 1)
