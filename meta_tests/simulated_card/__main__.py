"""What each claim asks of a card: `python -m meta_tests.simulated_card test_claims/test_matmul.py`, arguments of pytest."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

COLUMNS = ("launches", "synchronisations", "to_card", "to_host", "allocations", "host_operators")
SECONDS = {"launches": 5e-6, "synchronisations": 15e-6}  # roughly, on an H100


def table(rows: list[dict[str, object]], by: str = "claim") -> str:
    """One line a claim or file, what would take longest on a card first; a test of several claims counts for each."""
    counts: dict[str, Counter[str]] = {}
    results: dict[str, Counter[str]] = {}
    for row in rows:
        test = str(row["test"])
        for name in [test.partition("::")[0]] if by == "file" else row["claims"] or [test]:  # type: ignore[attr-defined]
            counts.setdefault(name, Counter()).update({column: row[column] for column in COLUMNS})
            results.setdefault(name, Counter())[str(row["result"])] += 1

    def seconds(name: str) -> float:
        return sum(each * counts[name][column] for column, each in SECONDS.items())

    lines = [f"{by:44} {'about s':>8} " + " ".join(f"{column:>16}" for column in COLUMNS) + "  tests"]
    for name in sorted(counts, key=seconds, reverse=True):
        figures = " ".join(f"{counts[name][column]:16,}" for column in COLUMNS)
        tests = ", ".join(f"{number} {result}" for result, number in results[name].items())
        lines.append(f"{name:44} {seconds(name):8.3f} {figures}  {tests}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "counts.jsonl")
        plugin = ["-p", "meta_tests.simulated_card.plugin", "-p", "no:cacheprovider", f"--card-counts={file}"]
        code = pytest.main([*plugin, "--device=cuda", f"--report={folder}", *arguments])
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    print(table(rows))
    print("\nwithout comparisons of times, which last 2 s each at most:")
    print(table([row for row in rows if not row["compares"]], "file"))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
