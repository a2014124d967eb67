"""The largest size that fits, in few trials."""

from __future__ import annotations

from collections.abc import Callable

LARGEST_TRIED = 2**20
# A guess is of no use from this many trials on that did not halve what was left.
MOST_MISSES = 2
# Each size tried from then on is this many times as far from the last.
REACH = 8


def largest_size(
    does_fit: Callable[[int], bool],
    estimate: Callable[[], int],
    first: int,
    ceiling: int = LARGEST_TRIED,
) -> int:
    """The largest size up to `ceiling` that fits, if larger ones do not; 0 where not even one does.

    Trials begin with `first`. The next size is the one that `estimate` gives after each trial.
    Between a size that fits and one that does not, it is of no use the second time that it does not
    halve what is left: then sizes further and further from the last are tried, at most the middle.
    So there are no more trials than 4/3 of the logarithm of what was left to base 2, and four.

    >>> largest_size(lambda size: 40 + 7 * size <= 1000, lambda: 960 // 7, first=4)
    137
    """
    fits, beyond, guess, step, misses = 0, ceiling + 1, min(first, ceiling), 1, 0
    while beyond - fits > 1:
        before = beyond - fits
        guess_fits = does_fit(guess)
        if guess_fits:
            # An estimate may not move: then steps grow.
            step = 2 * step if guess <= fits + step else 1
            fits = guess
        else:
            beyond, step = guess, 1
        estimated = estimate()
        if beyond > ceiling:
            guess = min(max(estimated, fits + step), ceiling)
            continue
        misses += 2 * (beyond - fits) > before
        if misses < MOST_MISSES:
            guess = min(max(estimated, fits + 1), beyond - 1)
        else:
            reach = min(REACH ** (misses - MOST_MISSES), (beyond - fits) // 2)
            guess = fits + reach if guess_fits else beyond - reach
    return fits
