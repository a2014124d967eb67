"""How far a run is, and how long the rest of it takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from prooflops_gate.console.progress import Progress, minutes

# A longer run says how much of it is left.
LONG_RUN_S = 10.0
# An estimate needs this share of a folder's tests: the first ones import packages, and are slow.
LEAST_ENDED = 0.05


class RunProgress:
    """Says in a run of more than 10 s how many tests have ended and how long the rest will take.

    The estimate is made per folder, from its ended tests, and left out for a folder with too few of
    these. A line appears every 10 s, later at every fifth of the elapsed time.
    """

    def __init__(self, config: pytest.Config, now: Callable[[], float] = time.monotonic) -> None:
        self._progress = Progress(config, "run", now)
        self._now = now
        self._began = self._ended_at = self._printed_at = now()
        self._left, self._ended, self._seconds = Counter[str](), Counter[str](), Counter[str]()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left = Counter(_folder(item.nodeid) for item in session.items)
        self._began = self._ended_at = self._printed_at = self._now()

    # trylast: after the dot of the test.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        folder, now = _folder(nodeid), self._now()
        self._ended[folder] += 1
        self._left[folder] -= 1
        self._seconds[folder] += now - self._ended_at  # type: ignore[assignment]
        self._ended_at = now
        if (
            now - self._printed_at >= max(LONG_RUN_S, 0.2 * (now - self._began))
            and self._left.total() > 0
        ):
            self._printed_at = now
            self._progress.always(self.text())

    def text(self) -> str:
        """ "40 of 100 tests, about 75 s left, and bench"."""
        left = {folder: number for folder, number in self._left.items() if number > 0}
        known = [
            each
            for each in left
            if self._ended[each] >= LEAST_ENDED * (left[each] + self._ended[each])
        ]
        rest_s = sum(left[each] * self._seconds[each] / self._ended[each] for each in known)
        unknown = [each for each in left if each not in known]
        parts = [f"about {minutes(rest_s)} left"] if known else []
        parts += (
            [f"and {unknown[0] if len(unknown) == 1 else f'{len(unknown)} folders'}"]
            if unknown
            else []
        )
        ended = self._ended.total()
        return ", ".join([f"{ended:,} of {ended + sum(left.values()):,} tests", *parts])


def _folder(nodeid: str) -> str:
    return nodeid.partition("::")[0].rpartition("/")[0] or "."
