"""A stand-in for a device that works behind the host: what is launched runs in order, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter


class Stream:
    """Launching returns at once; `synchronize` waits until all that was launched has run."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1)

    def launch(self, kernel: Callable[[], object]) -> Future[object]:
        return self._worker.submit(kernel)

    def synchronize(self) -> None:
        self.launch(lambda: None).result()


class Event:
    """A moment in a stream, with the methods of torch.cuda.Event that a clock needs."""

    def __init__(self, enable_timing: bool = True) -> None:
        self._reached: Future[object] | None = None

    def record(self, stream: Stream) -> None:
        self._reached = stream.launch(perf_counter)

    def synchronize(self) -> None:
        self._time_s()

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds from this moment to a later one."""
        return 1e3 * (later._time_s() - self._time_s())

    def _time_s(self) -> float:
        assert self._reached is not None, "the event was not recorded"
        return float(self._reached.result())  # type: ignore[arg-type]
