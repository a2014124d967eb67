"""Counts the bytecodes that each Python function executes during a call.

Exact, and on every version of Python.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


def traced(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, dict[str, int]]:
    """The result of a call in this thread, and the number of bytecodes by Python function.

    A function's number excludes those it calls.
    """
    counts = Counter[CodeType]()

    def enter(frame: FrameType, *_: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            counts[frame.f_code] += 1
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        result = function(*args, **kwargs)
    finally:
        sys.settrace(before)
    found = Counter[str]()
    for code, count in counts.items():
        found[_name(code)] += count
    return result, dict(found)


def _name(code: CodeType) -> str:
    """File and name of a function.

    The file from where imports find it, so that it is the same on both sides.
    """
    homes = sorted({str(Path.cwd()), *sys.path}, key=len, reverse=True)
    file = code.co_filename
    short = next(
        (file[len(home) + 1 :] for home in homes if home and file.startswith(home + os.sep)), file
    )
    return f"{short}:{getattr(code, 'co_qualname', code.co_name)}"
