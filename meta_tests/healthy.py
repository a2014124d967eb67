"""Runs the claims again and again where nothing is wrong, and says whether a verdict is other than it should be.

    python -m meta_tests.healthy [RUNS] [--record] [-- WORDS OF PYTEST]

Each run has another seed, and one of the settings below: the order of the tests, cores, threads, a busy neighbour,
locale, time zone, workers of pytest-xdist where it is installed. Any other verdict than that of the claim's row is an
alarm, but for "not checked", which noise may be the reason of. `--record` adds each run to recorded/healthy_runs.txt
when it ends; the next call goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from prooflops.suite.registry import Claim, load_registry
from prooflops.suite.verdicts import WRITTEN_VERDICTS

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "meta_tests" / "recorded" / "healthy_runs.txt"
SEED = "PROOFLOPS_ORDER_SEED"
OPEN, NOISE, WELL = "not checked", "noise", "as the rows say"
ONE_CORE, NEIGHBOUR = "one core", "a busy neighbour on each core"
SETTINGS: dict[str, tuple[list[str], dict[str, str]]] = {
    "as it is": ([], {}),
    "random order": (["-p", "meta_tests.healthy"], {SEED: "{seed}"}),
    "one thread": ([], {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
    "two threads": ([], {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}),
    "another locale": ([], {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}),
    "another time zone": ([], {"TZ": "Asia/Kathmandu"}),
    "xdist": (["-n", "2"], {}),
    ONE_CORE: ([], {}),
    NEIGHBOUR: ([], {}),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of such a run: the tests in an order drawn by the seed."""
    if SEED in os.environ:
        random.Random(os.environ[SEED]).shuffle(items)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many endless loops beside what runs meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def rows_of(name: str, seed: int, words: list[str]) -> list[dict[str, Any]]:
    """The claims with their verdicts, of one run under these settings."""
    options, variables = SETTINGS[name]
    with tempfile.TemporaryDirectory() as folder, busy((os.cpu_count() or 1) if name == NEIGHBOUR else 0):
        line = ["taskset", "-c", "0"] if name == ONE_CORE else []
        line += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--quick"]
        line += [f"--hypothesis-seed={seed}", f"--report={folder}", "-o", f"gate_history={folder}/history"]
        line += [*options, *(words or ["test_claims"])]
        environment = {**os.environ, **{key: text.format(seed=seed) for key, text in variables.items()}}
        done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
        files = [*Path(folder).glob("verdicts.json"), *Path(folder).glob("partial/verdicts.json")]
        rows: list[dict[str, Any]] = json.loads(files[0].read_text(encoding="utf-8"))["claims"] if files else []
    if done.returncode or not rows:
        print(f"{name}: exit {done.returncode}:\n{done.stdout[-9000:]}{done.stderr[-2000:]}", file=sys.stderr)
    return rows


def alarms(rows: Iterable[dict[str, Any]], claims: Iterable[Claim]) -> list[str]:
    """The claims without a verdict, or with another than that of their rows."""
    found, wrong = {row["id"]: row["verdict"] for row in rows}, []
    for claim in claims:
        right = "on record" if claim.on_record else WRITTEN_VERDICTS[claim.written]
        if (verdict := found.get(claim.id, "no verdict")) not in (right, OPEN):
            wrong.append(f"{claim.id} {verdict}")
    return wrong


def line_of(number: int, name: str, rows: list[dict[str, Any]], wrong: list[str]) -> str:
    """One run, as it is kept: what differs from the rows, and what was not checked."""
    still_open = [row for row in rows if row["verdict"] == OPEN]
    noisy = [row["id"] for row in still_open if NOISE in row["reason"]]
    hidden = f", hidden by noise: {' '.join(noisy)}" if noisy else ""
    verdicts = f"{len(rows)} claims {', '.join(wrong) or WELL}"
    return f"{number} {name}: {verdicts}; {len(still_open) - len(noisy)} cannot be checked here{hidden}"


def summary(lines: list[str]) -> str:
    """What the kept runs show, in a line."""
    settings = dict.fromkeys(re.sub(r"^\d+ |:.*", "", line) for line in lines)
    hidden = {claim for line in lines for claim in line.partition("hidden by noise: ")[2].split()}
    well = sum(f" claims {WELL};" in line for line in lines)
    return (
        f"{len(lines)} runs, {well} with each verdict {WELL}; {len(hidden)} claims that noise hid in at least one; "
        f"{', '.join(settings)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.healthy", description=__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=10)
    parser.add_argument("--record", action="store_true", help="keep each run in recorded/healthy_runs.txt")
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    names = [name for name in SETTINGS if name != "xdist" or find_spec("xdist")]
    claims = load_registry(ROOT / "test_claims" / "registry").claims
    begun = len(RECORDED.read_text(encoding="utf-8").splitlines()) - 1 if options.record else 0
    lines = []
    for number in range(begun, begun + options.runs):
        name = names[number % len(names)]
        rows = rows_of(name, number, words)
        asked = [claims[row["id"]] for row in rows] if words and rows else claims.values()
        lines.append(line_of(number, name, rows, alarms(rows, asked)))
        print(lines[-1], flush=True)
        if options.record:
            with RECORDED.open("a", encoding="utf-8") as file:
                print(lines[-1], file=file)
    print(summary(lines))
    return int(not all(f" claims {WELL};" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
