"""Says on a terminal what an examination is doing, where that takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENT_S = 2.0


class Stages:
    """Names each stage of a long work once the whole has taken more than two seconds.

    >>> said = []
    >>> stages = Stages(said.append, silent_s=0.0)
    >>> with stages.stage("counting"):
    ...     time.sleep(0.05)
    >>> said
    ['counting']
    """

    def __init__(self, say: Callable[[str], object], silent_s: float = SILENT_S) -> None:
        self._say = say
        self._speaks_at = time.monotonic() + silent_s

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage; it is named while it runs, so a stage that hangs is known."""
        left = max(self._speaks_at - time.monotonic(), 0.0)
        timer = threading.Timer(left, self._say, [name])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def on_stderr(name: str) -> Stages:
    """Stages of a call from Python, as lines on standard error."""

    def say(stage: str) -> None:
        # In one piece: a stage and one within it may speak at the same time.
        sys.stderr.write(f"{name}: {stage}\n")
        sys.stderr.flush()

    return Stages(say)
