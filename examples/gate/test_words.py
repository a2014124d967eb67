"""Times the words of a text."""

from typing import Any

from words import unique

WORDS = [f"word {number * 7919 % 1009}" for number in range(500)] * 2


def test_unique(benchmark: Any) -> None:
    assert len(benchmark(unique, WORDS)) == 500
