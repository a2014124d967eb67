"""A line on the terminal for work of more than a few seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from prooflops_gate.unpatched import time

SECONDS_BETWEEN_LINES = 3.0


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
        if self._now() - self._printed_at + ahead_s >= SECONDS_BETWEEN_LINES:
            self.always(text + (f", about {ahead_s:.0f} s" if round(ahead_s) else ""))

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


def minutes(seconds: float) -> str:
    """A time for people.

    >>> minutes(4.2), minutes(93), minutes(600), minutes(7262)
    ('4 s', '1 min 33 s', '10 min', '2 h 1 min')
    """
    whole = round(seconds)
    parts = {"h": whole // 3600, "min": whole // 60 % 60, "s": whole % 60 if whole < 3600 else 0}
    return " ".join(f"{count} {unit}" for unit, count in parts.items() if count) or "0 s"


def clock(seconds: float) -> str:
    """A time on a stopwatch.

    >>> clock(4.2), clock(671)
    ('0:04', '11:11')
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
