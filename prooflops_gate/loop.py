"""The one loop of a comparison: runs the pairs of processes that an instrument plans."""

from __future__ import annotations

import math
from collections.abc import Callable

from prooflops_gate.instruments import Instrument, Measured
from prooflops_gate.instruments.instructions import Instructions
from prooflops_gate.instruments.memory import Memory
from prooflops_gate.instruments.times import Times
from prooflops_gate.task import OutOfTime, ReplicateFailed, Task
from prooflops_gate.unpatched import time

SECONDS_BETWEEN_LINES = 20.0


def exhaust(
    instrument: Instrument,
    sample: Callable[[Task], Measured],
    say: Callable[[str], None],
) -> None:
    """Runs the pairs that an instrument plans, until it plans none or no more fits."""
    said_at, said = -math.inf, None
    while True:
        task = instrument.next_task(time.monotonic())
        began = time.monotonic()
        if not task or began + task.needs_s > task.ends:
            return
        stage = instrument.stage
        if stage not in (None, said) or (said and began - said_at >= SECONDS_BETWEEN_LINES):
            said_at, said = began, stage or said
            say(instrument.progress())
        try:
            measured = sample(task)
        except OutOfTime:
            return
        instrument.measure(measured, time.monotonic() - began)


def count(
    counted: Instructions,
    sample: Callable[[Task], Measured],
    say: Callable[[str], None],
) -> None:
    """Counts instructions until all is decided, or a process fails under valgrind."""
    try:
        exhaust(counted, sample, say)
    except ReplicateFailed as failed:
        counted.fail(failed)


class Riding:
    """Times, with memory measured in the same processes."""

    def __init__(self, times: Times, memory: Memory) -> None:
        self.times, self.memory = times, memory
        self.next_task, self.progress, self.decide = times.next_task, times.progress, times.decide

    @property
    def stage(self) -> object:
        return self.times.stage

    def measure(self, measured: Measured, took_s: float) -> None:
        self.times.measure(measured, took_s)
        self.memory.measure(measured, took_s)
