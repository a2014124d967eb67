"""Runs the faults of the topics given: `python -m meta_tests.faults TOPIC [--json FILE]`; exit 1 if one goes unnoticed.

All faults of a run share one process (importing torch once): the claims' test modules are dropped from `sys.modules`
between runs, so that each run imports them anew, over the patched modules.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.configuration
import pytest

from meta_tests.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
TOPICS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def verdicts_under(planted: Fault | None, claims: tuple[str, ...]) -> dict[str, Any]:
    """The verdict of each of `claims` with the fault planted, and what the run printed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "test_claims"]:
        del sys.modules[name]
    topics = sorted({claim.partition(".")[0] for claim in claims})
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if planted is not None:
            planted.plant(patch)
        files = [str(file) for topic in topics for file in sorted(ROOT.glob(f"test_claims/test_{topic}*.py"))]
        arguments = [*files, "--quick", "-q", "--tb=short"]
        arguments += [f"--claim={claim}" for claim in claims]
        arguments += ["--report", folder, "-p", "no:cacheprovider", "-o", f"gate_history={folder}/history"]
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pytest.main(arguments)
        file = Path(folder) / "verdicts.json"
        rows = json.loads(file.read_text()) if file.exists() else []
    verdicts = {row["id"]: row["verdict"] for row in rows}
    return {"exit": int(code), "verdicts": verdicts, "output": output.getvalue()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.faults", description=__doc__)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"one of {', '.join(TOPICS)}; default: all")
    parser.add_argument("--json", type=Path, help="write the result of every fault here")
    parser.add_argument("-v", action="store_true", help="show what each run under a fault printed")
    options = parser.parse_args()
    for topic in options.topics or TOPICS:
        if topic not in TOPICS:
            parser.error(f"TOPIC must be one of {', '.join(TOPICS)}, got {topic!r}")
        importlib.import_module(f"meta_tests.faults.{topic}")
    # What fails under a fault is no failure of the suite: hypothesis shall not remember and replay it.
    hypothesis.configuration.set_hypothesis_home_dir(tempfile.mkdtemp(prefix="proofline-faults-"))
    results = []
    for planted in FAULTS:
        run = verdicts_under(planted, planted.turns_red)
        unnoticed = [claim for claim in planted.turns_red if run["verdicts"].get(claim) != "FAILS"]
        results.append({"topic": planted.topic, "fault": planted.name, "unnoticed": unnoticed, **run})
        print(
            f"{'UNNOTICED' if unnoticed else 'noticed  '} {planted.topic}: {planted.name} {unnoticed or ''}", flush=True
        )
        if options.v or unnoticed:
            print(run["output"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(any(result["unnoticed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
