"""Collects evidence about this machine in slices of limited time: `make evidence`, or without any set-up

    python -m prooflops.suite.evidence [--all] [--limit SECONDS] [--quick] [TESTS OR OPTIONS OF PYTEST]

Each call runs one slice (`--all`: all of them) and continues after the last one, even if killed. Tests that never ran
on this kind of device come first. A test over its own time limit is ended, and its stacks are kept. The folder under
results/ gets a page; results/README.md compares the machines.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prooflops.gate import cleanup_process
from prooflops.run_state import REPLICATE
from prooflops.suite.evidence import page
from prooflops.suite.evidence.folder import Folder, chosen

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ("-p", "prooflops.suite.evidence.recorder", "-p", "no:cacheprovider", "-p", "no:faulthandler")
ASK = """
import json, sys
from prooflops.machine import device as machine
device = machine.chosen(sys.argv[1] or None)
print(json.dumps(machine.fingerprint(device)))
"""
LOCK_S = 10.0  # the processes of a killed run end within this time
GRACE_S = 10.0  # a process may overrun its slice this long before it is killed


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns 0 if no test failed, 1 if one did, 4 for a wrong option."""
    options, rest = parser().parse_known_args(arguments)
    if options.index:
        page.write_index(options.results)
        return 0
    own = [word for word in ("--quick", "--thorough") if getattr(options, word.lstrip("-"))]
    own += [f"--device={options.device}"] if options.device else []
    with cleanup_process.running() as register:
        try:
            folder = (
                Folder(options.into)
                if options.into
                else chosen(options.results, facts(options.device), [*own, *rest], options.fresh)
            )
            with locked(folder):
                collection = Collection(folder, [*own, *rest], options.limit, options.test_limit, register)
                while collection.run_slice() and options.all:
                    pass
                rows = page.write(folder, folder.path.parent)
        except Refused as error:
            print(error, file=sys.stderr)
            return 4
    archive(folder)
    left = len(folder.remaining())
    print(f"{folder.path}/README.md: " + (f"{left} tests are left, call again" if left else "complete"))
    return int(any(row["status"] in page.RED_STATUS for row in rows))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m prooflops.suite.evidence", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--limit", type=positive, default=540, metavar="SECONDS", help="of a slice, default 540")
    made.add_argument("--test-limit", type=positive, default=180, metavar="SECONDS", help="of a test, default 180")
    made.add_argument("--all", action="store_true", help="one slice after the other until all tests have run")
    made.add_argument("--quick", action="store_true", help="a fifth of the examples, short benchmarks")
    made.add_argument("--thorough", action="store_true", help="ten times the examples, long benchmarks")
    made.add_argument("--device", help="as for pytest")
    made.add_argument("--fresh", action="store_true", help="begin a new folder, even if one is unfinished")
    made.add_argument("--results", type=Path, default=ROOT / "results", metavar="DIR", help="default results/")
    made.add_argument("--into", type=Path, metavar="DIR", help="this folder, whatever its name")
    made.add_argument("--index", action="store_true", help="only write the page that compares the machines anew")
    return made


def positive(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0 seconds, got {text}")
    return float(text)


class Refused(Exception):
    """No evidence can be collected; the message says why."""


def facts(device: str | None) -> dict[str, Any]:
    """The device's fingerprint, read in a subprocess with a 2-minute limit in case the driver hangs."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK, device or ""],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return dict(json.loads(asked.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        raise Refused("the device does not answer within 2 minutes") from None
    except (ValueError, IndexError):
        raise Refused(f"the device cannot be asked:\n{asked.stderr.strip()[-2000:]}") from None


@contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Keeps two runs from writing into one folder."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with open(folder.path / ".lock", "w", encoding="utf-8") as lock:
        until = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    raise Refused(f"another run is writing into {folder.path}") from None
                time.sleep(0.1)
        os.set_inheritable(lock.fileno(), True)  # so a test process that outlives this one still holds it
        yield


class Collection:
    """Fills a folder slice by slice; a slice restarts pytest after each lost process."""

    def __init__(
        self,
        folder: Folder,
        arguments: Sequence[str],
        limit_s: float,
        test_limit_s: float,
        register: Callable[..., None],
    ) -> None:
        self.folder = folder
        self.arguments = list(arguments)
        self.limit_s = limit_s
        self.test_limit_s = test_limit_s
        self.register = register

    def run_slice(self) -> bool:
        """Runs one slice. Returns whether tests remain."""
        if self.folder.plan and not self.folder.remaining():
            return False
        number = 1 + sum(row["event"] == "start" for row in self.folder.rows("slices.jsonl"))
        began, before = time.time(), len(self.folder.ended())
        self.folder.append("slices.jsonl", event="start", slice=number, limit_s=self.limit_s)
        margin_s = min(15.0, 0.05 * self.limit_s)
        ends_at = began + self.limit_s - margin_s  # the rest is for the page and the archive
        processes = 0
        print(f"slice {number}: {self.limit_s:g} s at most, into {self.folder.path}", flush=True)
        while not self.folder.plan or (self.folder.remaining() and time.time() < ends_at - margin_s):
            self.folder.give_up_what_kills()
            known, processes = len(self.folder.rows("tests.jsonl")), processes + 1
            output = self.run_process(f"{number:02d}-{processes:02d}", number, ends_at, margin_s)
            if len(self.folder.rows("tests.jsonl")) == known:
                raise Refused(f"pytest ran nothing:\n{output[-3000:]}")
        ran, left = len(self.folder.ended()) - before, len(self.folder.remaining())
        seconds = round(time.time() - began, 1)
        self.folder.append("slices.jsonl", event="end", slice=number, seconds=seconds, tests=ran, processes=processes)
        print(f"slice {number}: {ran} tests in {seconds:.0f} s, {left} left", flush=True)
        return bool(left)

    def run_process(self, name: str, number: int, ends_at: float, margin_s: float) -> str:
        """Runs one pytest process, records a test lost with it, and returns its output."""
        output, stacks = (self.folder.path / f"{kind}-{name}.txt" for kind in ("output", "stacks"))
        task = {"folder": str(self.folder.path), "number": number, "ends_at": ends_at, "margin_s": margin_s,
                "limit_s": self.test_limit_s, "stacks": str(stacks), "arguments": self.arguments}  # fmt: skip
        with tempfile.TemporaryDirectory() as elsewhere, open(output, "wb") as printed:
            child = subprocess.Popen(
                [sys.executable, "-m", "pytest", *PLUGIN, "--continue-on-collection-errors", *self.arguments],
                cwd=ROOT,
                env={**os.environ, "PROOFLOPS_EVIDENCE": json.dumps(task), REPLICATE: f"{elsewhere}/record.json"},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=False,  # the lock
            )
            self.register("group", str(child.pid))
            try:
                code = child.wait(timeout=max(ends_at - time.time(), 0) + GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                code = child.wait()
            self.register("ended", str(child.pid))
        text = output.read_text(encoding="utf-8", errors="replace")
        self.note_lost_test(number, code, ends_at, stacks.read_text(errors="replace") if stacks.exists() else "", text)
        return text

    def note_lost_test(self, number: int, code: int, ends_at: float, stacks: str, output: str) -> None:
        """Records a test that timed out or crashed with its process. A test that the slice cut off runs again."""
        unended = self.folder.unended()
        if not unended or (start := [*unended.values()][-1][-1])["slice"] != number:
            return
        timed_out = "Timeout (" in stacks
        if timed_out and start["limit_s"] >= self.test_limit_s:
            reason = f"it took longer than its limit of {self.test_limit_s:g} s"
            self.folder.end_without_a_report(start["test"], "timed out", reason, stacks)
        elif not timed_out and time.time() < ends_at:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            log = f"{stacks}\n{output[-10_000:]}"
            self.folder.end_without_a_report(start["test"], "crashed", f"its process ended with {how}", log)


def archive(folder: Folder) -> None:
    """Packs the folder into one file beside it."""
    with tarfile.open(f"{folder.path}.tar.gz", "w:gz") as packed:
        packed.add(
            folder.path, arcname=folder.path.name, filter=lambda each: None if each.name.endswith(".lock") else each
        )
