"""Collects evidence about a machine that may vanish at any moment: `make evidence`, or without any set-up

    python -m prooflops.suite.evidence [--out FILE] [--resume FILE] [--minutes 9] [TESTS OR OPTIONS OF PYTEST]

A call runs one slice. All that it learns goes to one file, test by test; a call with the same file goes on there, in
another clone too. A page about the file is written beside it; results/README.md compares the files there.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from prooflops.suite.evidence.file import RED, TASK, EvidenceFile
from prooflops_gate import cleanup_process
from prooflops_gate.run_state import REPLICATE

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
PLUGIN = (
    "-p",
    "prooflops.suite.evidence.recorder",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:faulthandler",
)
MARGIN_S = 90.0  # at the end of a slice, for the page and for bringing the file home
LOCK_S = 10.0  # within which the processes of a killed run end
MOST_STARTS = 3  # of a test that never ends


class Refused(Exception):
    """No evidence can be collected; the message says why."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns 0 if no test failed, 1 if one did, 4 if nothing can be collected."""
    began = time.time()
    options, rest = parser().parse_known_args(arguments)
    file = EvidenceFile(options.out or options.resume or file_in(RESULTS, rest))
    try:
        if not (60 * options.minutes > MARGIN_S and options.test_limit > 0):
            raise Refused(
                "--minutes must be above 1.5, of which the last 1.5 run no test, and --test-limit above 0 s"
            )
        ends_at = began + (1e9 if options.all else 60 * options.minutes - MARGIN_S)
        task = {"file": str(file.path.resolve()), "ends_at": ends_at, "limit_s": options.test_limit}
        if not options.index:
            with held(file, options.resume) as lock, cleanup_process.running() as register:
                run_slice(file, rest, {**task, "lock": lock}, register)
    except Refused as error:
        print(error, file=sys.stderr)
        return 4
    from prooflops.suite.evidence import page  # imports torch

    if options.index or file.path.resolve().parent == RESULTS:
        page.write_index(RESULTS)
    else:
        page.write(file)
    if not options.index:
        left = len(file.remaining())
        print(
            f"{file.path}: {left} tests are left, call again" if left else f"{file.path}: complete"
        )
    return int(any(row["status"] in RED for row in file.ended().values()))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m prooflops.suite.evidence", description=__doc__, allow_abbrev=False,
                                   formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    made.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: the unfinished file in results/, or a new one",
    )
    made.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on from this file; --out gets its lines, too",
    )
    made.add_argument(
        "--minutes", type=float, default=9.0, help="of a slice, default 9; the last 1.5 run no test"
    )
    made.add_argument(
        "--test-limit", type=float, default=180.0, metavar="SECONDS", help="of a test, default 180"
    )
    made.add_argument("--all", action="store_true", help="go on until all tests have run")
    made.add_argument(
        "--index", action="store_true", help="run nothing: write the pages in results/ anew"
    )
    return made


def file_in(folder: Path, arguments: Sequence[str]) -> Path:
    """The newest unfinished file of these arguments; else a new one, named after the day."""
    for file in map(EvidenceFile, sorted(folder.glob("*.jsonl"), reverse=True)):
        if not file.plan or (file.remaining() and list(arguments) in ([], file.plan["arguments"])):
            return file.path
    names = (
        folder / f"{datetime.now(timezone.utc):%Y-%m-%d}-{number}.jsonl" for number in count(1)
    )
    return next(path for path in names if not path.exists())


@contextmanager
def held(file: EvidenceFile, resumed: Path | None) -> Iterator[int]:
    """Opens the file for this run alone, with the lines of the one to resume. Raises Refused."""
    try:
        if resumed and not EvidenceFile(resumed).rows():
            raise Refused(f"--resume {resumed}: no evidence in it")
        file.path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(file.path, "ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise Refused(f"{file.path} cannot be written: {error.strerror}") from None
    until = time.monotonic() + LOCK_S
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Refused(f"another run is writing to {file.path}") from None
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
        known = {*file.lines()}
        if (
            new := [line for line in EvidenceFile(resumed).lines() if line not in known]
            if resumed
            else []
        ):
            file.append_lines(new)
        yield lock.fileno()


def run_slice(
    file: EvidenceFile, given: Sequence[str], task: dict[str, Any], register: Callable[..., None]
) -> None:
    """Runs the remaining tests until the slice is over, in a new pytest after each lost process. Raises Refused."""
    task["arguments"] = file.plan.get("arguments", given)
    if given not in ([], task["arguments"]):
        raise Refused(
            f"{file.path} was begun with {task['arguments']}: give these arguments, none, or another --out"
        )
    number, before = len(file.rows("slice")) + 1, len(file.ended())
    file.append("slice", slice=number, commit=commit())
    print(f"slice {number}, into {file.path}", flush=True)
    while True:
        for test, starts in file.unended().items():
            if starts >= MOST_STARTS:
                file.end_without_report(test, "crashed", f"started {starts} times, and never ended")
        if time.time() > task["ends_at"] or (file.plan and not file.remaining()):
            break
        known = len(file.rows())
        code, output = run_pytest(task, register)
        new = file.rows()[known:]
        if not new:
            raise Refused(f"pytest ran nothing:\n{output[-3000:]}")
        if (lost := [row for row in new if row["event"] == "start"][-1:]) and lost[0][
            "test"
        ] in file.unended():
            note_lost_test(file, lost[0], task, code, output[-20_000:])
    if not file.plan:
        raise Refused("the slice ended before the tests were collected: give it more --minutes")
    ran = len(file.ended()) - before
    file.append("over", slice=number)
    print(f"slice {number}: {ran} tests ran", flush=True)


def run_pytest(task: dict[str, Any], register: Callable[..., None]) -> tuple[int, str]:
    """Runs one pytest. Returns its exit status and its output, with the stacks of all threads where it was killed."""
    with tempfile.TemporaryDirectory() as folder:
        output, record = Path(folder, "output"), Path(folder, "record.json")
        whole = {**task, "stacks": str(output)}
        with open(output, "ab") as printed:
            child = subprocess.Popen(
                [sys.executable, "-m", "pytest", *PLUGIN, "--continue-on-collection-errors", *task["arguments"]],
                cwd=ROOT, env={**os.environ, TASK: json.dumps(whole), REPLICATE: str(record)},
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[task["lock"]],  # so a test process that outlives this one still holds the file
            )  # fmt: skip
        register("group", str(child.pid))
        code = child.wait()
        register("ended", str(child.pid))
        return code, output.read_text(encoding="utf-8", errors="replace")


def note_lost_test(
    file: EvidenceFile, start: dict[str, Any], task: dict[str, Any], code: int, log: str
) -> None:
    """Ends a test that timed out, or crashed, with its process. One that the slice cut off runs again."""
    if "Timeout (" not in log:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        file.end_without_report(start["test"], "crashed", f"its process ended with {how}", log)
    elif start["limit_s"] >= task["limit_s"]:
        reason = f"it took longer than its limit of {task['limit_s']:g} s"
        file.end_without_report(start["test"], "timed out", reason, log)


def commit() -> str:
    """The commit of this clone; empty without git, or outside a repository of its own."""
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    with suppress(OSError):
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, env=alone, capture_output=True, text=True
        )
        return "" if asked.returncode else asked.stdout.strip()
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
