"""What each claim asks of a card: `python -m meta_tests.fake_card test_claims/test_matmul.py`, arguments of pytest."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

COLUMNS = ("launches", "synchronisations", "to_card", "to_host", "allocations", "host_operators")
SECONDS = {"launches": 5e-6, "synchronisations": 15e-6}  # roughly, on an H100


def table(rows: list[dict[str, object]]) -> str:
    """One line a claim, those that would take longest on a card first; a test of several claims counts for each."""
    counts: dict[str, Counter[str]] = {}
    results: dict[str, Counter[str]] = {}
    for row in rows:
        for claim in row["claims"] or [row["test"]]:  # type: ignore[attr-defined]
            counts.setdefault(claim, Counter()).update({name: row[name] for name in COLUMNS})
            results.setdefault(claim, Counter())[str(row["result"])] += 1

    def seconds(claim: str) -> float:
        return sum(each * counts[claim][name] for name, each in SECONDS.items())

    lines = [f"{'claim':44} {'about s':>8} " + " ".join(f"{name:>16}" for name in COLUMNS) + "  tests"]
    for claim in sorted(counts, key=seconds, reverse=True):
        figures = " ".join(f"{counts[claim][name]:16,}" for name in COLUMNS)
        tests = ", ".join(f"{number} {result}" for result, number in results[claim].items())
        lines.append(f"{claim:44} {seconds(claim):8.3f} {figures}  {tests}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "counts.jsonl")
        plugin = ["-p", "meta_tests.fake_card.plugin", "-p", "no:cacheprovider", f"--card-counts={file}"]
        code = pytest.main([*plugin, "--device=cuda", f"--report={folder}", *arguments])
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    print(table(rows))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
