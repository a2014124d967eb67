"""The commands that a run prints: the one that was given, and the one that goes on with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from prooflops.suite_root import SUITE_PATHS

PYTEST, RUNNER, MAKE = "pytest", "python -m prooflops.suite.evidence", "make validate"
# Set by the Makefile: its target, and ARGS.
MADE = "PROOFLOPS_MADE"


def command_of(launcher: str, words: Sequence[str]) -> str:
    """The launcher with these arguments, each path behind a `=`.

    Pytest takes an existing folder in `--report DIR` for the place of the tests.

    >>> command_of("pytest", ["--report", "a b", "-k", "x"])
    "pytest '--report=a b' -k x"
    >>> command_of("make validate", ["--claim", "flops"])
    "make validate ARGS='--claim flops'"
    """
    joined = shlex.join(_joined(words))
    if not joined:
        return launcher
    if launcher.startswith("make "):
        return f"{launcher} ARGS={shlex.quote(joined.replace('$', '$$'))}"
    return f"{launcher} {joined}"


def _joined(words: Sequence[str]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        path = next(left, None) if word in SUITE_PATHS else None
        yield word if path is None else f"{word}={path}"


def given(arguments: Sequence[str]) -> str:
    """The command that started the runner in this process."""
    target, _, words = os.environ.get(MADE, "").partition(" ")
    return (
        command_of(f"make {target}", shlex.split(words))
        if target
        else command_of(RUNNER, arguments)
    )


def going_on(path: Path) -> str:
    """The command that goes on with the run in this file."""
    launcher = MAKE if os.environ.get(MADE) else RUNNER
    return f"to go on: {command_of(launcher, ['--resume', str(path)])}"
