"""The largest size that fits, found in few trials and without a step far beyond the limit."""

from collections.abc import Callable

import pytest

from prooflops.predicted.search import largest_size

LIMIT = 10**6
PEAKS: list[Callable[[int], int]] = [
    lambda n: 700 + 31 * n,
    lambda n: 10 * n * n + 5,
    lambda n: max(900_000, 100 * n),
    lambda n: 31 * (n // 8) * 8,
]


@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize(("growth", "close"), [(2, 0.01), (64, 0.01), (64, 0.0)])
@pytest.mark.parametrize("first", [4, 10**6])
def test_the_largest_size_is_found_in_few_trials(
    peak: Callable[[int], int], growth: int, close: float, first: int
) -> None:
    asked: list[int] = []

    def tried(size: int) -> tuple[int, bool]:
        asked.append(size)
        return peak(size), peak(size) <= LIMIT

    found, beyond = largest_size(tried, first, LIMIT, growth=growth, close=close)
    assert peak(found) <= LIMIT < peak(beyond)
    assert beyond - found <= max(1, close * found)
    assert len(asked) == len(set(asked)) <= 30, asked
    if first == 4 and growth == 2:
        assert max(map(peak, asked)) <= 4 * LIMIT


def test_a_size_that_does_not_run_does_not_fit_and_none_is_tried_above_the_ceiling() -> None:
    def tried(size: int) -> tuple[int | None, bool]:
        return (None, False) if size > 100 else (size, True)

    assert largest_size(tried, 3, LIMIT) == (100, 101)
    assert largest_size(tried, 200, LIMIT) == (100, 101)
    assert largest_size(tried, 3, LIMIT, ceiling=64) == (64, 65)
    assert largest_size(lambda size: (2 * LIMIT, False), 64, LIMIT) == (0, 1)


def test_the_search_ends_where_there_is_no_time() -> None:
    turns = iter([True, True, False])
    found, beyond = largest_size(lambda size: (size, True), 1, LIMIT, more=lambda: next(turns))
    assert 1 < found < LIMIT < beyond
