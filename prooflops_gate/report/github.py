"""GitHub's annotations of what fails, and of what the gate leaves open."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from prooflops_gate import git
from prooflops_gate.report.sentences import reason
from prooflops_gate.rows import Row

# Annotations of a kind that GitHub shows for a step.
MOST_SHOWN = 10


def commands(
    failing: Sequence[Row], warning: str, places: Mapping[str, tuple[Path, int]], root: Path
) -> list[str]:
    """The lines from which a GitHub runner makes annotations; none elsewhere.

    They stand at the function whose work rose most, where one is known, else at the benchmark:
    `places` has the file and line of each test. GitHub's paths begin at the top of the repository.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return []
    top = git.repository_of(root)
    lines = [f"::warning title=gate::{_escaped(warning)}"] if warning else []
    for row in failing[:MOST_SHOWN]:
        test = row.test or row.name
        benchmark = places.get(test, (Path(test.partition("::")[0]), 1))
        path, line = risen_function(row.where, root) or benchmark
        file = path.relative_to(top) if top and path.is_relative_to(top) else path
        place = f"file={_escaped(str(file), ':,')},line={line}"
        lines.append(f"::error {place},title=gate::{_escaped(reason(row))}")
    return lines


def places_of(
    items: Sequence[pytest.Item], names: Mapping[str, str]
) -> dict[str, tuple[Path, int]]:
    """The file and line of each test, by its name."""
    return {names[item.nodeid]: (item.path, (item.location[1] or 0) + 1) for item in items}


def risen_function(where: str, root: Path) -> tuple[Path, int] | None:
    """File and line of the first function of this checkout that the text names.

    The text says, for example, "lib.py:Class.method 1 -> 2".
    """
    for file, name in re.findall(r"([^\s:]+\.py):(\S+) [\d,]+ -> ", where):
        parts = [part for part in name.split(".") if not part.startswith("<")]
        if not parts:
            continue
        definition = re.compile(rf"^\s*(?:async )?def {re.escape(parts[-1])}\b", re.MULTILINE)
        for path in (root / "src" / file, root / file):
            text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
            found = definition.search(text)
            if found:
                return path, text.count("\n", 0, found.end()) + 1
    return None


def _escaped(text: str, more: str = "") -> str:
    """The text as GitHub's commands take it.

    >>> _escaped("10%, or\\nmore"), _escaped("a,b", ":,")
    ('10%25, or%0Amore', 'a%2Cb')
    """
    return "".join(f"%{ord(char):02X}" if char in "%\r\n" + more else char for char in text)
