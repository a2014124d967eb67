"""The largest size that fits, in few trials: memory is close to a line in a size."""

from __future__ import annotations

from collections.abc import Callable

LARGEST_TRIED = 2**20
GROWTH = 64
# A line is of no use from this many trials on that did not halve what was left.
MOST_MISSES = 2
# Each size tried from then on is this many times as far from the last.
REACH = 8
# The peak of a step of a size, None where it does not run; and whether it fits.
Tried = Callable[[int], tuple[int | None, bool]]


def largest_size(
    tried: Tried,
    first: int,
    limit: int,
    *,
    estimate: Callable[[], int] | None = None,
    ceiling: int = LARGEST_TRIED,
    close: float = 0.0,
) -> tuple[int, int]:
    """The largest size found that fits, 0 where not even one does, and the smallest that does not.

    Trials begin with `first`. The next size is where a line through two peaks near `limit` reaches
    it, at most GROWTH times the last that fits. Between a size that fits and one that does not, a
    line is of no use the second time that it does not halve what is left: then sizes further and
    further from the last are tried, at most the middle, so that there are no more trials than 4/3
    of the logarithm of what was left to base 2, and four. They end where the two sizes are
    neighbours, or `close` to one another as a share. The second is `ceiling` + 1 where none that
    was tried is too large. `estimate` takes the place of the line, after each trial.

    >>> largest_size(lambda size: (40 + 7 * size, 40 + 7 * size <= 1000), 4, 1000)
    (137, 138)
    """
    known: dict[int, int] = {}
    fits, beyond, guess, step, misses = 0, ceiling + 1, min(first, ceiling), 1, 0
    while beyond - fits > max(1, close * fits):
        before = beyond - fits
        peak, does_fit = tried(guess)
        if peak is not None:
            known[guess] = peak
        if does_fit:
            # An estimate may not move: then steps grow.
            step = 2 * step if guess <= fits + step else 1
            fits = guess
        else:
            beyond, step = guess, 1
        reached = _reached(known, limit, fits) if estimate is None else estimate()
        if beyond > ceiling:
            most = GROWTH * fits if estimate is None else ceiling
            guess = min(max(reached, fits + step), most, ceiling)
            continue
        misses += 2 * (beyond - fits) > before
        if misses < MOST_MISSES:
            guess = min(max(reached, fits + 1), beyond - 1)
        else:
            reach = min(REACH ** (misses - MOST_MISSES), (beyond - fits) // 2)
            guess = fits + reach if does_fit else beyond - reach
    return fits, beyond


def _reached(known: dict[int, int], limit: int, fits: int) -> int:
    """Where the line through two peaks reaches the limit.

    These are the nearest to it, and the nearest other one, since memory is reserved in steps.
    """
    if not known:
        return fits
    near, *others = sorted(known, key=lambda size: abs(limit - known[size]))
    different = [size for size in others if known[size] != known[near]]
    # One alone is joined to the origin.
    low, high = sorted([0, near, *(different or others)[:1]])[-2:]
    slope = (known[high] - known.get(low, 0)) / (high - low)
    return high + int((limit - known[high]) / max(1.0, slope))
