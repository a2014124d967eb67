"""The suite's command-line options, which choose the run, the machine and the results."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from accounting.checks import validated_choice


def add_options(parser: pytest.Parser) -> None:
    """Adds all options and ini settings of the suite."""
    group = parser.getgroup("prooflops", "validate this machine")
    add_run_options(group)
    add_machine_options(group)
    add_result_options(group)
    parser.addini("peak", "as --peak, one a line", type="linelist", default=[])
    parser.addini("floor", "as --floor, one a line", type="linelist", default=[])
    parser.addini(
        "floor_undecided",
        "pass or fail: how a run ends in which other work kept a stated floor from being judged",
        default="pass",
    )


def named_number(text: str, option: str, kind: str, valid: Iterable[str]) -> tuple[str, float]:
    """The name and the number above 0 of an option of the form NAME=NUMBER.

    Raises ValueError, saying what is missing or wrong.

    >>> named_number("memory=0.85", "--floor", "figure", ["memory", "link"])
    ('memory', 0.85)
    >>> named_number("memory", "--floor", "figure", ["memory", "link"])
    Traceback (most recent call last):
    ValueError: --floor memory: the number is missing, as in memory=...
    """
    name, _, written = (part.strip() for part in text.partition("="))
    name = validated_choice(f"{option} {text}: the {kind}", name, valid)
    if not written:
        raise ValueError(f"{option} {text}: the number is missing, as in {name}=...")
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{option} {text}: must be a finite number above 0, got {written!r}")
    return name, number


def add_run_options(group: pytest.OptionGroup) -> None:
    """Adds options that choose what runs, and for how long."""
    group.addoption(
        "--device",
        help="cpu, cuda, cuda:1, mps, xpu, or all (each card); default: an accelerator, else cpu",
    )
    group.addoption(
        "--quick", action="store_true", help="a fifth of the examples, short benchmarks"
    )
    group.addoption(
        "--thorough", action="store_true", help="ten times the examples, long benchmarks"
    )
    group.addoption(
        "--claim",
        metavar="ID|TOPIC",
        action="append",
        default=[],
        help="only this claim or topic; may be repeated",
    )
    group.addoption(
        "--claims",
        metavar="WORDS",
        nargs="?",
        const="",
        help="run nothing, and print what the claims with these words state, or all claims",
    )


def add_machine_options(group: pytest.OptionGroup) -> None:
    """Adds options that say what is expected of the machine."""
    group.addoption(
        "--peak",
        metavar="DTYPE=FLOP_PER_S",
        action="append",
        default=[],
        help="a dense peak of this device where none is on record, such as bf16=989e12; repeatable",
    )
    group.addoption(
        "--floor",
        metavar="FIGURE=VALUE",
        action="append",
        default=[],
        help="the least that this device must deliver, as a share of its nominal rate: bf16=0.7, "
        "memory=0.85, link=0.6 (or bytes per second: link=52e9), mfu=0.4, and at most so many "
        "seconds: launch=1e-5; repeatable",
    )
    group.addoption(
        "--reference",
        metavar="FILE",
        help="run record of a healthy machine, whose figures are the floors",
    )
    group.addoption(
        "--known-failures",
        metavar="FILE",
        help="claims known to fail on this machine: one id a line, # comments",
    )


def add_result_options(group: pytest.OptionGroup) -> None:
    """Adds options that say where results go, and which are compared."""
    group.addoption(
        "--report",
        metavar="DIR",
        default="reports",
        help="folder of report.html, report.md and verdicts.json",
    )
    group.addoption(
        "--report-compare",
        metavar="DIR",
        action="append",
        default=[],
        help="run nothing, and compare the run records in a folder, file or storage on one page, "
        "compare.html: machines, versions, bad nodes; repeatable",
    )
