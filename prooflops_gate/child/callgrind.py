"""Counts the instructions of a benchmark's call under valgrind's callgrind, without a compiler.

Valgrind recognises a client request: a sequence of instructions that does nothing on a processor,
with a pointer to the request and its five arguments. valgrind.h declares it a stable interface.
Here ctypes calls it as a few bytes in an executable page.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
import random
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prooflops_gate.child.steps import traced
from prooflops_gate.machine import cpu
from prooflops_gate.unpatched import os

RUNNING_ON_VALGRIND = 0x1001
# The numbers of callgrind's requests begin with the letters CT.
DUMP, ZERO, START, STOP = (0x43540000 + number for number in (0, 1, 4, 5))
# long request(long default, const uint64_t words[6]), by machine.
CODE = {
    # mov rax, rsi; mov rdx, rdi; rol rdi by 3, 13, 61, 51; xchg rbx, rbx; mov rax, rdx; ret
    "x86_64": "4889f0 4889fa 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3",
    # mov x3, x0; mov x4, x1; ror x12, x12 by 3, 13, 51, 61; orr x10, x10, x10; mov x0, x3; ret
    "aarch64": "e30300aa e40301aa 8c0dcc93 8c35cc93 8ccdcc93 8cf5cc93 4a010aaa e00303aa c0035fd6",
}
CALLS_BEFORE_THE_COUNTED_ONE = 3
EMPTY_CALLS = 5
# ctypes does not keep the memory of requests alive.
_kept: list[Any] = []


def is_usable() -> bool:
    """True if this machine counts: valgrind is installed, and the requests to it are known."""
    return (
        sys.platform == "linux"
        and platform.machine() in CODE
        and shutil.which("valgrind") is not None
    )


def scatter() -> None:
    """Allocates and frees memory as the hash seed chooses, before the tests are imported.

    Otherwise a change anywhere in the code moves all objects alike in every process. Code that
    hashes by address, or finds another free block, then takes up to 2 % more or fewer instructions
    in all of them. No spread would show it.
    """
    draw = random.Random(hash("layout"))
    blocks = [bytes(draw.randrange(512)) for _ in range(draw.randrange(1000, 5000))]
    _kept.append([block for block in blocks if draw.random() < 0.5])


def request(number: int) -> Callable[[], int]:
    """Returns a function that makes a client request.

    It returns valgrind's answer, and 0 on a bare processor. Raises OSError on a machine without
    CODE, or where no page may be executable.
    """
    if platform.machine() not in CODE:
        raise OSError(f"valgrind's client requests are not known for {platform.machine()}")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(CODE[platform.machine()]))
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_void_p)(_address(page))
    words = (ctypes.c_uint64 * 6)(number)
    _kept.append((page, words))
    return partial(call, 0, ctypes.addressof(words))


def _address(page: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def _plain(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


class InstructionCounter:
    """Replaces timing in the fixture `benchmark` by counting.

    The caller sets `name` to the benchmark that runs. `counts` has its instructions, `steps` the
    bytecodes of each Python function, `files` callgrind's dump. The names of dumps begin with
    `dumps`; if that is empty, valgrind counts nothing. Only `by_function` counts bytecodes, in one
    more call, and keeps the dumps.
    """

    def __init__(self, dumps: str, by_function: bool = False) -> None:
        self.counts: dict[str, int] = {}
        self.steps: dict[str, dict[str, int]] = {}
        self.files: dict[str, str] = {}
        self.name = ""
        self._dumps, self._dumped = dumps, 0
        self._by_function = by_function
        self._calls = [
            *[_plain] * CALLS_BEFORE_THE_COUNTED_ONE,
            *([self._count] if dumps else []),
            *([self._trace] if by_function else []),
        ]
        scatter()
        if not dumps:
            return
        if not request(RUNNING_ON_VALGRIND)():
            raise OSError("the process does not run under valgrind")
        self._requests = [request(number) for number in (START, ZERO, DUMP, STOP)]
        self._empty = 0
        self._empty = min(self.counted(int, (), {})[1] for _ in range(EMPTY_CALLS))

    def counted(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, int]:
        """The result of one call without garbage collection, and its instructions.

        Those of an empty call are deducted.
        """
        (start, zero, dump, stop), collects = self._requests, gc.isenabled()
        gc.disable()
        start()
        try:
            zero()
            result = function(*args, **kwargs)
            # Before STOP, which would leave an empty one.
            dump()
        finally:
            stop()
            if collects:
                gc.enable()
        self._dumped += 1
        file = Path(f"{self._dumps}.{os.getpid()}.{self._dumped}")
        totals = cpu.text(file).rpartition("totals:")[2]
        if self._by_function:
            self.files[self.name] = str(file)
        else:
            os.unlink(file)
        return result, int(totals.split()[0]) - self._empty

    def _count(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result, self.counts[self.name] = self.counted(function, args, kwargs)
        return result

    def _trace(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result, self.steps[self.name] = traced(function, args, kwargs)
        return result

    @property
    def result(self) -> dict[str, Any]:
        """The counts, for the process's record."""
        return {"counts": self.counts, "steps": self.steps, "dumps": self.files}

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a benchmarked function to warm up, then once more for each count."""
        return [call(function, args, kwargs) for call in self._calls][-1]

    def call_pedantic(
        self,
        target: Any,
        args: Any = (),
        kwargs: Any = None,
        setup: Any = None,
        teardown: Any = None,
        **_: Any,
    ) -> Any:
        """The same for `benchmark.pedantic`, with its set-up and teardown around every call."""
        result = None
        for call in self._calls:
            if setup and (made := setup()):
                args, kwargs = made
            result = call(target, args, kwargs or {})
            if teardown:
                teardown(*args, **(kwargs or {}))
        return result

    def instrument(self) -> None:
        """Makes pytest-benchmark's fixture count."""
        # If the plugin is active, its module is loaded.
        cls: Any = getattr(sys.modules.get("pytest_benchmark.fixture"), "BenchmarkFixture", None)
        if cls is None:
            return
        cls.__call__ = lambda _, function, *args, **kwargs: self.call(function, args, kwargs)
        cls.pedantic = lambda _, target, *args, **kwargs: self.call_pedantic(
            target, *args, **kwargs
        )
        # Otherwise pytest-benchmark warns that the fixture is unused.
        cls._mode = "counted"
