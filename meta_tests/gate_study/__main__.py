"""Writes the tables of docs/gate.md from the committed runs: `python -m meta_tests.gate_study`, or `make gate-study`.

python -m meta_tests.gate_study                the tables of docs/gate.md, from data/runs.csv.gz; measures nothing
python -m meta_tests.gate_study --check        the same, compared with docs/gate.md instead of written
python -m meta_tests.gate_study --pack         first add the collector's lines (data/*.jsonl) to runs.csv.gz
python -m meta_tests.gate_study --collect      first take new sessions here, in place of the committed ones (an hour)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from meta_tests.gate_study import runs
from meta_tests.gate_study.tables import TABLES
from meta_tests.page_tables import part_of, with_part

GUIDE = Path(__file__).parents[2] / "docs" / "gate.md"
COMMAND = "make gate-study"
SESSIONS = (  # the loaded ones last: a load may run on for some seconds after its session
    ("quiet", ()),
    ("planted", ("--planted", "--quads", "40")),
    ("third", ("--load", "third")),
    ("loaded", ("--load", "half")),
)


def collect(processes: int) -> None:
    """Takes new sessions, one after another."""
    for name, options in SESSIONS:
        command = [
            sys.executable,
            "-m",
            "meta_tests.gate_study.collect",
            "--session",
            name,
            "--processes",
            str(processes),
            *options,
        ]
        subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with docs/gate.md instead of writing it")
    parser.add_argument("--pack", action="store_true", help="first add the collector's lines to runs.csv.gz")
    parser.add_argument("--collect", action="store_true", help="first take new sessions in place of the committed ones")
    parser.add_argument("--processes", type=int, default=200, help="of each new session (default: %(default)s)")
    options = parser.parse_args()
    if options.collect:
        collect(options.processes)
        runs.RUNS.unlink(missing_ok=True)
    if options.pack or options.collect:
        runs.pack()
    text, wrong = GUIDE.read_text(), []
    for name, table in TABLES.items():
        start = time.perf_counter()
        new = table()
        if part_of(text, name, COMMAND) != new:
            wrong.append(name)
        text = with_part(text, name, COMMAND, new)
        print(f"## {name} ({time.perf_counter() - start:.0f} s)\n\n{new}\n", flush=True)
    if options.check:
        print(f"docs/gate.md differs in: {', '.join(wrong)}" if wrong else "docs/gate.md holds these tables")
        return bool(wrong)
    GUIDE.write_text(text)
    print("written to docs/gate.md" + (f"; changed: {', '.join(wrong)}" if wrong else "; nothing changed"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
