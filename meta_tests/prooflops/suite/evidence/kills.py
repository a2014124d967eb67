"""Kills `make evidence` of this machine at random moments: only the running test is lost, and one more call ends it.

python -m meta_tests.prooflops.suite.evidence.kills [--kills 3] [--record] [ARGUMENTS OF make evidence]
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from meta_tests.conftest import ROOT, child_environment
from prooflops.suite.evidence.folder import Folder
from prooflops.suite.evidence.page import RED_STATUS

RECORDED = ROOT / "meta_tests" / "recorded" / "evidence_kills.txt"
AT_WORK_S = (30, 120)  # a kill comes after so long, whatever is running


def started(arguments: list[str], folder: Folder) -> subprocess.Popen[bytes]:
    """`make evidence` into this folder, in a process group of its own."""
    words = shlex.join(["--all", "--into", str(folder.path), *arguments])
    line = ["make", "evidence", f"PYTHON={sys.executable}", f"ARGS={words}"]
    return subprocess.Popen(line, cwd=ROOT, env=child_environment(), start_new_session=True)


def kill_one(arguments: list[str], folder: Folder) -> str:
    """Kills a collection at work. Raises AssertionError if more than its running test is gone."""
    before = folder.ended()
    run, after_s = started(arguments, folder), random.uniform(*AT_WORK_S)
    time.sleep(after_s)
    assert run.poll() is None, "the collection was complete before it could be killed"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    time.sleep(5)  # its pytest, which a process of its own cleans up, ends
    ended, lost = folder.ended(), [*folder.unended()]
    assert all(ended.get(test) == row for test, row in before.items()), "a test that had ended is gone, or differs"
    assert len(lost) <= 1, f"more than the running test is lost: {lost}"
    return f"killed after {after_s:.0f} s: {len(ended) - len(before)} tests kept, {len(lost)} lost with it"


def story(kills: int, arguments: list[str], folder: Folder) -> list[str]:
    """So many kills and a last call, a line for each. Raises AssertionError where something is lost for good."""
    lines = []
    for _ in range(kills):
        lines.append(kill_one(arguments, folder))
        print(lines[-1], flush=True)
    before = folder.ended()
    started(arguments, folder).wait()
    ended, tests = folder.ended(), folder.plan["tests"]
    assert all(ended[test] == row for test, row in before.items()), "a test that had ended before is gone, or differs"
    assert ended.keys() == set(tests), f"{len(set(tests) - ended.keys())} tests were not reached"
    red = sum(row["status"] in RED_STATUS for row in ended.values())
    last = (
        f"one more call ran the other {len(ended) - len(before):,}: {len(ended):,} of {len(tests):,} tests, {red} red"
    )
    return [*lines, last]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.prooflops.suite.evidence.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--record", action="store_true", help=f"keep what was found in recorded/{RECORDED.name}")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as results:
        lines = story(options.kills, arguments, Folder(Path(results, "here")))
    print("\n".join(lines))
    if options.record:
        words = shlex.join(["--kills", str(options.kills), "--record", *arguments])
        RECORDED.write_text("\n".join([f"# {parser.prog} {words}", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
