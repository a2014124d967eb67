"""The commands that a run prints: the one given, one row of it again, and how to resume."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from prooflops.suite_root import SUITE_PATHS

PYTEST, RUNNER, MAKE = "pytest", "prooflops.suite.evidence", "make validate"
# A command up to its options.
LAUNCHER = re.compile(r"make \w+|.*?(?:pytest|prooflops\.suite\.evidence)(?= |$)")
# Set by the Makefile: its target, and ARGS.
MADE = "PROOFLOPS_MADE"
OUT = "--out"
ROOMS = ("bench", "test_claims")


def called(module: str) -> str:
    """The launcher of this module by the Python that started this process, as it was named there.

    Another Python may lack what this one has.
    """
    words = sys.orig_argv
    for at, pair in enumerate(pairwise(words)):
        if pair in (("-m", PYTEST), ("-m", RUNNER)):
            return shlex.join([*words[:at], "-m", module])
    return module if module == PYTEST else f"python -m {module}"


def command_of(launcher: str, words: Sequence[str]) -> str:
    """The launcher with these arguments, each path behind a `=`.

    Pytest takes an existing folder in `--report DIR` for the place of the tests. The file of
    `--out` is left out: once that run is complete, it takes no other.

    >>> command_of("pytest", ["--report", "a b", "-k", "x"])
    "pytest '--report=a b' -k x"
    >>> command_of("make validate", ["--claim", "flops", "--out", "h200.jsonl"])
    'make validate ARGS="--claim flops"'
    """
    joined = shlex.join(_joined(words))
    if not joined:
        return launcher
    if launcher.startswith("make "):
        quoted = shlex.quote(joined.replace("$", "$$"))
        if "'" in quoted and not {*joined} & {*'"$`\\!'}:
            quoted = f'"{joined}"'
        return f"{launcher} ARGS={quoted}"
    return f"{launcher} {joined}"


def _joined(words: Sequence[str]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        name, _, path = word.partition("=")
        if name in (OUT, *SUITE_PATHS):
            path = path or next(left, "")
            if name != OUT or Path(path).is_dir():
                yield f"{name}={path}"
        else:
            yield word


def given(arguments: Sequence[str]) -> str:
    """The command that started the runner in this process."""
    target, _, words = os.environ.get(MADE, "").partition(" ")
    if target:
        return command_of(f"make {target}", shlex.split(words))
    return command_of(called(RUNNER), arguments)


def of_tests(command: str, arguments: Sequence[str], tests: Sequence[str]) -> str:
    """The command that began a run, with its options, except these tests instead of its own.

    >>> print(of_tests("make evidence", ["--floor", "fp32=0.9", "bench"], ["bench/a.py::a[b]"]))
    make validate ARGS="--floor fp32=0.9 'bench/a.py::a[b]'"
    >>> print(of_tests("python -m pytest bench -x", ["-x"], ["bench/a.py"]))
    python -m pytest -x bench/a.py
    """
    found = LAUNCHER.match(command)
    # Not "make evidence", which keeps a run in results/.
    launcher = found[0] if found and not command.startswith("make ") else MAKE
    kept = [word for word in arguments if not word.startswith(ROOMS)]
    return command_of(launcher, [*kept, *tests])


def resuming(path: Path) -> str:
    """The command that resumes the run in this file."""
    launcher = MAKE if os.environ.get(MADE) else called(RUNNER)
    return command_of(launcher, ["--resume", str(path)])
