"""Prints each room's lines beside its budget: `python -m meta_tests.line_budgets`; exit status 1 above a budget.

A room that needs more takes it from another, or raises its budget here and says why in CHANGELOG.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON_LINES = {"accounting": 7_000, "test_claims": 11_000, "bench": 4_000, "prooflops": 11_000, "meta_tests": 13_000}
DOCS_LINES, README_WORDS = 1_800, 900
TEXTS = {".md", ".yml", ".yaml", ".sh"}


def lines_of(folder: str, suffixes: set[str]) -> int:
    """Lines of the files with one of `suffixes` below a folder of the repository."""
    files = (file for file in (ROOT / folder).rglob("*") if file.suffix in suffixes)
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def main() -> int:
    rows = [(room, lines_of(room, {".py"}), budget, "lines of Python") for room, budget in PYTHON_LINES.items()]
    rows.append(("docs", lines_of("docs", TEXTS), DOCS_LINES, "lines"))
    rows.append(("README.md", len((ROOT / "README.md").read_text(encoding="utf-8").split()), README_WORDS, "words"))
    for room, found, budget, unit in rows:
        print(f"{room:<12} {found:>7,} of {budget:>6,} {unit}{'' if found <= budget else ': over its budget'}")
    return int(any(found > budget for _, found, budget, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
