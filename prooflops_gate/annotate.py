"""What the gate leaves open and still passes, and GitHub's annotations of this and of each failure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from prooflops_gate import sides
from prooflops_gate.decide import OPEN
from prooflops_gate.history.rows import TIME, Row
from prooflops_gate.options import Settings
from prooflops_gate.wording import reason

MOST = 10  # annotations of a kind that GitHub shows for a step
DECIDED = ("SAME", "SLOWER", "FASTER")


def passing_open(
    rows: Sequence[Row], settings: Settings, fails: Callable[[Row, float], bool]
) -> tuple[str, str]:
    """A warning of benchmarks that pass only since `gate_undecided` lets them, and a line on the others that are open.

    `fails`: whether a row would stop the gate if changes up to that share were allowed. Each is empty where it does not
    apply.
    """
    timed = [row for row in rows if row.quantity == TIME and row.after is not None]
    is_open = [row for row in timed if row.verdict == "INCONCLUSIVE"]
    allowed = OPEN if settings.undecided_passes else settings.allowed_open
    hiding = sum(fails(row, OPEN) for row in is_open)
    if settings.undecided_passes and hiding:
        change = "a slowdown" if settings.direction == "slower" else "a change"
        warning = f"{len(is_open)} undecided, of which {hiding} could hide {change} of {OPEN:.0%}"
        if not any(row.verdict in DECIDED for row in timed):
            warning = f"this run decided nothing: {warning}"
        return f"{warning}; gate_undecided = fail makes this red", ""
    passing = (
        sum(not fails(row, settings.allowed_open) for row in is_open) if 0 < allowed < 1 else 0
    )
    line = f"{passing} INCONCLUSIVE passed: more than {allowed:.0%} is excluded (ini setting gate_allow_inconclusive)"
    return "", line if passing else ""


def commands(failing: Sequence[Row], warning: str, items: Sequence[pytest.Item]) -> list[str]:
    """The lines from which a GitHub runner makes annotations; none elsewhere.

    They stand at the function whose work rose most, where one is known, else at the benchmark.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return []
    places = {item.nodeid: (item.path, (item.location[1] or 0) + 1) for item in items}
    root = items[0].config.rootpath if items else Path()
    top = sides.repository_of(root)  # GitHub's paths begin there
    errors = []
    for row in failing[:MOST]:
        path, line = risen_function(row.where, root) or places.get(
            row.name, (Path(row.name.partition("::")[0]), 1)
        )
        file = path.relative_to(top) if top and path.is_relative_to(top) else path
        errors.append(
            f"::error file={_escaped(str(file), ':,')},line={line},title=gate::{_escaped(reason(row))}"
        )
    return [*([f"::warning title=gate::{_escaped(warning)}"] if warning else []), *errors]


def risen_function(where: str, root: Path) -> tuple[Path, int] | None:
    """File and line of the first function of this checkout that the text names as "lib.py:Class.method 1 -> 2"."""
    for file, name in re.findall(r"([^\s:]+\.py):(\S+) [\d,]+ -> ", where):
        named = [part for part in name.split(".") if not part.startswith("<")][-1:]
        for path in (root / "src" / file, root / file):
            text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
            if named and (
                found := re.search(
                    rf"^\s*(?:async )?def {re.escape(named[0])}\b", text, re.MULTILINE
                )
            ):
                return path, text.count("\n", 0, found.end()) + 1
    return None


def _escaped(text: str, more: str = "") -> str:
    """The text as GitHub's commands take it.

    >>> _escaped("10%, or\\nmore"), _escaped("a,b", ":,")
    ('10%25, or%0Amore', 'a%2Cb')
    """
    return "".join(f"%{ord(char):02X}" if char in "%\r\n" + more else char for char in text)
