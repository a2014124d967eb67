"""The suite's command-line options, which choose the run, the machine and the results."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from accounting.checks import validated_choice

RUN_GROUP = "prooflops"
MACHINE_GROUP = "prooflops: what is expected of this machine"


def add_options(parser: pytest.Parser) -> None:
    """Adds all options and ini settings of the suite."""
    add_run_options(parser.getgroup(RUN_GROUP))
    add_machine_options(parser.getgroup(MACHINE_GROUP))
    parser.addini("peak", "as --peak, one per line", type="linelist", default=[])
    parser.addini("floor", "as --floor, one per line", type="linelist", default=[])
    parser.addini(
        "floor_undecided",
        "pass or fail: what a run does that cannot judge a floor of --floor or --reference "
        "(default: pass)",
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
    """Adds options that choose what runs, for how long, and where the report goes."""
    add = group.addoption
    where = "cpu, cuda, cuda:1, mps, xpu, or all for every card (default: an accelerator, else cpu)"
    add("--device", help=where)
    add(
        "--quick",
        action="store_true",
        help="draw a fifth of the random inputs of each test, and run short benchmarks",
    )
    add(
        "--thorough",
        action="store_true",
        help="draw ten times as many random inputs, and run long benchmarks",
    )
    only = "run only the tests of this claim or topic; repeatable (default: all)"
    add("--claim", metavar="ID|TOPIC", action="append", default=[], help=only)
    stated = "print the claims with these words, or all claims, and exit"
    add("--claims", metavar="WORDS", nargs="?", const="", help=stated)
    folder = "folder of report.html, report.md and verdicts.json (default: reports)"
    add("--report", metavar="DIR", default="reports", help=folder)


def add_machine_options(group: pytest.OptionGroup) -> None:
    """Adds options that say what is expected of the machine."""
    add = group.addoption
    least = (
        "fail below this share of the dense peak or the bandwidth, such as bf16=0.7 or "
        "memory=0.85; also mfu=0.4, link=52e9 (bytes per second) or launch=1e-5 (seconds at most); "
        "repeatable (default: from --reference, else from accounting/devices/floors.json)"
    )
    add("--floor", metavar="FIGURE=VALUE", action="append", default=[], help=least)
    healthy = "run record of a healthy machine: the floors are its figures, less spread and 5 %%"
    add("--reference", metavar="FILE", help=healthy)
    dense = (
        "dense peak in FLOP/s of a dtype without a vendor's peak on record, such as "
        "bf16=989e12; repeatable (default: on a CPU computed, else unknown)"
    )
    add("--peak", metavar="DTYPE=FLOP_PER_S", action="append", default=[], help=dense)
    known = "file of claims that may fail here: one id per line, # comments (default: none may)"
    add("--known-failures", metavar="FILE", help=known)
