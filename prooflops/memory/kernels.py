"""What a kernel really takes and returns: one call of it, with made-up values, in a process of its
own.

A kernel that reads its arguments as addresses, sizes or states may crash on values that no program
would give it. A crash ends that process alone, and the call is then unknown.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Pipe
from typing import Any, NamedTuple

import torch

from prooflops.memory.calls import Call

SECONDS_FOR_START = 120
SECONDS_FOR_A_CALL = 60


class Output(NamedTuple):
    """A tensor that a kernel returned."""

    storage_bytes: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Kernel(NamedTuple):
    """The bytes that one call of an operator was measured to hold on the device."""

    # At its own peak, beyond its outputs.
    scratch_bytes: int
    # Of the storages that it returns and was not given.
    output_bytes: tuple[int, ...]
    outputs: tuple[Output | None, ...]


class Request(NamedTuple):
    """A call as it is sent to the process that runs it."""

    operator: str
    shapes: Any
    grad_mode: bool


class Refusal(NamedTuple):
    """Why a kernel was not measured."""

    reason: str


class KernelProcess:
    """A process that calls kernels with made-up values and measures what they hold."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        command = [sys.executable, "-m", "prooflops.memory.kernel_process", str(theirs.fileno())]
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "99"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self._seconds_left = SECONDS_FOR_START

    def measured(self, requests: Sequence[Request], device: str) -> list[Kernel | Refusal] | None:
        """A measurement for each request; None where the process, and all of them, was lost."""
        try:
            self._connection.send((device, torch.get_num_threads(), list(requests)))
            if not self._connection.poll(self._seconds_left + SECONDS_FOR_A_CALL * len(requests)):
                self.end()
                return None
            found: list[Kernel | Refusal] = self._connection.recv()
        except (EOFError, ConnectionError):
            self.end()
            return None
        self._seconds_left = 0
        return found

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


_processes: list[KernelProcess] = []
_kernels: dict[tuple[str, int, Call], Kernel | Refusal] = {}


@atexit.register
def _end_process() -> None:
    while _processes:
        _processes.pop().end()


def kernels_of(calls: Iterable[Call], device: str) -> dict[Call, Kernel | Refusal]:
    """A measurement of each call, taken once in this process's life, or why there is none."""
    keys = {call: (device, torch.get_num_threads(), call) for call in calls}
    missing = [call for call, key in keys.items() if key not in _kernels]
    for call, kernel in zip(missing, _measured_together(missing, device), strict=True):
        _kernels[keys[call]] = kernel
    if device != "cpu":
        # Its context would take half a gigabyte of the device.
        _end_process()
    return {call: _kernels[key] for call, key in keys.items()}


def _measured_together(calls: Sequence[Call], device: str) -> list[Kernel | Refusal]:
    """One measurement for all; where the process is lost, one for each, so that one alone is
    refused.
    """
    if not calls:
        return []
    found = _answer([_request_of(call) for call in calls], device)
    if found is not None:
        return found
    if len(calls) == 1:
        return [Refusal("its kernel ended the process that ran it on made-up values")]
    return [_measured_together([call], device)[0] for call in calls]


def _answer(requests: Sequence[Request], device: str) -> list[Kernel | Refusal] | None:
    if not _processes:
        _processes.append(KernelProcess())
    found = _processes[-1].measured(requests, device)
    if found is None:
        _processes.pop()
    return found


def _request_of(call: Call) -> Request:
    return Request(str(call.operator), call.shapes(), call.grad_mode)
