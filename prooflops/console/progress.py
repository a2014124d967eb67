"""A line on the terminal for what takes more than a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest

LONG_S = 3.0  # without a line


class Progress:
    """Called with a text, prints it on the terminal if the last line is 3 s old, or will be before the next call.

    Not under -q. It is a line of its own, written past pytest's capture, so that neither the dots of a run nor the
    captured output of a test are disturbed.
    """

    def __init__(self, config: pytest.Config, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._quiet = config.get_verbosity() < 0
        self._name = name
        self._now = now
        self._printed_at = now()

    def __call__(self, text: str, ahead_s: float = 0.0) -> None:
        """Prints `text`, unless it is too early; `ahead_s` is how long the work that begins now prints nothing."""
        if self._now() - self._printed_at + ahead_s >= LONG_S:
            self.always(text + (f", about {ahead_s:.0f} s" if ahead_s else ""))

    def always(self, text: str) -> None:
        """Prints `text` however early it is, but under -q."""
        if self._quiet or self._terminal is None:
            return
        self._printed_at = self._now()
        with self._capture.global_and_fixture_disabled() if self._capture else nullcontext():
            self._terminal.ensure_newline()
            self._terminal.write_line(f"  {self._name}: {text}", bold=True)
            self._terminal.flush()
