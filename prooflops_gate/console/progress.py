"""A line on the terminal for work of more than a few seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import pytest

# Between two lines.
LONG_S = 3.0
# A longer run says how much of it is left.
LONG_RUN_S = 10.0
# Share of a folder's tests; the first ones are slow, as they import the packages of all.
LEAST_ENDED = 0.05


class Progress:
    """Prints a text on the terminal if the last line is 3 s old, or will be before the next call.

    Under -q only with `under_q`. It is a line of its own, written past pytest's capture, so that
    neither the dots of a run nor the captured output of a test are disturbed.
    """

    def __init__(
        self,
        config: pytest.Config,
        name: str,
        now: Callable[[], float] = time.monotonic,
        *,
        under_q: bool = False,
    ) -> None:
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._quiet = config.get_verbosity() < 0 and not under_q
        self._name = name
        self._now = now
        self._printed_at = now()

    def __call__(self, text: str, ahead_s: float = 0.0) -> None:
        """Prints `text`, unless it is too early.

        `ahead_s`: seconds of work without a line that begin now.
        """
        if self._now() - self._printed_at + ahead_s >= LONG_S:
            self.always(text + (f", about {ahead_s:.0f} s" if ahead_s else ""))

    def always(self, text: str) -> None:
        """Prints `text` however early it is."""
        if self._quiet or self._terminal is None:
            return
        self._printed_at = self._now()
        with self._capture.global_and_fixture_disabled() if self._capture else nullcontext():
            self._terminal.ensure_newline()
            # A dot after a line.
            if getattr(self._terminal, "_tw", None) and self._terminal._tw.width_of_current_line:
                self._terminal.write_line("")
            self._terminal.write_line(f"  {self._name}: {text}", bold=True)
            self._terminal.flush()


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

    # After the dot of the test.
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


def minutes(seconds: float) -> str:
    """A time for people.

    >>> minutes(4.2), minutes(93), minutes(600), minutes(7262)
    ('4 s', '1 min 33 s', '10 min', '2 h 1 min')
    """
    whole = round(seconds)
    parts = {"h": whole // 3600, "min": whole // 60 % 60, "s": whole % 60 if whole < 3600 else 0}
    return " ".join(f"{count} {unit}" for unit, count in parts.items() if count) or "0 s"
