"""Prints each room's lines beside its limit and its budget: `python -m meta_tests.line_budgets`; exit 1 above a limit.

The budget is where a room shall be. The limit is where it stands: whoever adds lines takes them from elsewhere, or
raises the limit in a commit that says for which feature, as the changelog does; whoever saves lines lowers it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Lines of Python: the limit that fails, and the budget.
PYTHON_LINES = {
    "accounting": (9_450, 7_000),
    "test_claims": (11_380, 11_000),
    "bench": (4_810, 4_000),
    "prooflops": (15_875, 11_000),
    "meta_tests": (17_200, 13_000),
}
DOCS_LINES, README_WORDS = (1_800, 1_800), (900, 900)
TEXTS = {".md", ".yml", ".yaml", ".sh"}


def lines_of(folder: str, suffixes: set[str]) -> int:
    """Lines of the files with one of `suffixes` below a folder of the repository."""
    files = (file for file in (ROOT / folder).rglob("*") if file.suffix in suffixes)
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def main() -> int:
    rows = [(room, lines_of(room, {".py"}), *most, "lines of Python") for room, most in PYTHON_LINES.items()]
    rows.append(("docs", lines_of("docs", TEXTS), *DOCS_LINES, "lines"))
    rows.append(("README.md", len((ROOT / "README.md").read_text(encoding="utf-8").split()), *README_WORDS, "words"))
    for room, found, limit, budget, unit in rows:
        state = "over its limit" if found > limit else "over its budget" if found > budget else "within its budget"
        print(f"{room:<12} {found:>7,} {unit}, limit {limit:,}, budget {budget:,}: {state}")
    return int(any(found > limit for _, found, limit, _, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
