"""Whether a step of a size fits that was not predicted, from those of two sizes that were.

A storage's bytes are close to a line in a batch or a sequence. Two sizes that have the same
requests and frees in the same order are mostly joined by others that have them. This only chooses
which size to predict next: no answer rests on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from itertools import combinations

from prooflops.memory.ledger import Ledger, Storage
from prooflops.memory.replay import fits_into


def largest_on_a_line(
    ledgers: Mapping[int, Ledger], capacity_bytes: int, near: int, low: int, high: int
) -> int | None:
    """The largest size from `low` to `high` that fits if each storage's bytes lie on a line; None
    where no two of the ledgers, by their sizes, have the same events.

    The line goes through the two that are nearest to `near`.
    """
    pair = _alike(ledgers, near)
    if pair is None:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits_into(_on_a_line(ledgers, pair, middle), capacity_bytes):
            low = middle
        else:
            high = middle - 1
    return low


def _alike(ledgers: Mapping[int, Ledger], size: int) -> tuple[int, int] | None:
    """The two sizes with the same events that are nearest to `size`."""
    near = sorted(ledgers, key=lambda known: abs(known - size))
    for first, second in combinations(near, 2):
        if ledgers[first].events == ledgers[second].events:
            return first, second
    return None


def _on_a_line(ledgers: Mapping[int, Ledger], pair: tuple[int, int], size: int) -> Ledger:
    """The ledger of one of two sizes, with the bytes that storages would have at another size."""
    first, second = pair
    ledger = copy(ledgers[first])
    both = zip(ledger.storages, ledgers[second].storages, strict=True)
    ledger.storages = [
        Storage(max(0, a.size + (b.size - a.size) * (size - first) // (second - first)))
        for a, b in both
    ]
    return ledger
