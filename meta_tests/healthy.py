"""Runs the claims again and again where nothing is wrong, and says whether the verdicts agree.

    python -m meta_tests.healthy [RUNS] [--record] [-- WORDS OF PYTEST]

Each run has another seed, and one of the settings below: the order of the tests, threads, locale, time zone, workers of
pytest-xdist where it is installed. A verdict that is red, or another than in the first run, is an alarm; one that noise
hid ("not checked") is counted apart. `--record` keeps the counts in recorded/healthy_runs.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "meta_tests" / "recorded" / "healthy_runs.txt"
SEED = "PROOFLOPS_ORDER_SEED"
RED, OPEN = ("FAILS", "error"), "not checked"
SETTINGS: dict[str, tuple[list[str], dict[str, str]]] = {
    "as it is": ([], {}),
    "random order": (["-p", "meta_tests.healthy"], {SEED: "{seed}"}),
    "one thread": ([], {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
    "two threads": ([], {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}),
    "another locale": ([], {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}),
    "another time zone": ([], {"TZ": "Asia/Kathmandu"}),
    "xdist": (["-n", "2"], {}),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of such a run: the tests in an order drawn by the seed."""
    if SEED in os.environ:
        random.Random(os.environ[SEED]).shuffle(items)


def verdicts_of(name: str, seed: int, words: list[str]) -> dict[str, str]:
    """The verdicts of one run under these settings."""
    options, variables = SETTINGS[name]
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--quick", f"--hypothesis-seed={seed}"]
        line += [f"--report={folder}", "-o", f"gate_history={folder}/history", *options, *(words or ["test_claims"])]
        environment = {**os.environ, **{key: text.format(seed=seed) for key, text in variables.items()}}
        done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
        files = [*Path(folder).glob("verdicts.json"), *Path(folder).glob("partial/verdicts.json")]
        if not files:
            raise SystemExit(
                f"{name}: exit {done.returncode}, and no verdicts:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
            )
        return {row["id"]: row["verdict"] for row in json.loads(files[0].read_text(encoding="utf-8"))["claims"]}


def alarms(first: dict[str, str], found: dict[str, str]) -> list[str]:
    """The claims that are red, or decided otherwise than in the first run."""
    changed = [
        f"{claim}: {first.get(claim, 'not there')} -> {verdict}"
        for claim, verdict in found.items()
        if verdict in RED or (OPEN not in (verdict, first.get(claim)) and verdict != first.get(claim))
    ]
    return changed + [f"{claim}: {verdict} -> not there" for claim, verdict in first.items() if claim not in found]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.healthy", description=__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=10)
    parser.add_argument("--record", action="store_true", help="keep the counts in recorded/healthy_runs.txt")
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    names = [name for name in SETTINGS if name != "xdist" or find_spec("xdist")]
    first: dict[str, str] = {}
    red = hidden = 0
    used = [name for _, name in zip(range(options.runs), cycle(names), strict=False)]
    for number, name in enumerate(used):
        found = verdicts_of(name, number, words)
        first = first or found
        red += bool(wrong := alarms(first, found))
        hidden += sum((verdict == OPEN) != (first.get(claim) == OPEN) for claim, verdict in found.items())
        print(f"{number + 1}: {name}: {len(found)} claims, {'; '.join(wrong) or 'as in the first run'}", flush=True)
    text = (
        f"healthy runs: {len(used)} of {len(first)} claims, {red} with an alarm; {hidden} verdicts were open in one "
        f"run and not in another; {', '.join(dict.fromkeys(used))}"
    )
    print(text)
    if options.record:
        RECORDED.write_text(f"# python -m meta_tests.healthy {len(used)} --record\n{text}\n", encoding="utf-8")
    return int(red > 0)


if __name__ == "__main__":
    sys.exit(main())
