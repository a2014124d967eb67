"""Runs claims and benchmarks one by one, so that no test can end the run.

`make validate` and `make evidence` call it:

    python -m prooflops.suite.evidence [--out PATH] [--resume [FILE]] [TESTS OR OPTIONS OF PYTEST]

pytest-xdist runs claims side by side. Then one plain process runs the tests that measure time, as
pytest-benchmark needs; without xdist it runs all tests. A process that is lost, or that has lost
its device, is replaced. Each result goes to one file at once. Verdicts, record and pages are made
from it, and an interrupted run resumes with it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

import pytest

from prooflops.suite import commands
from prooflops.suite.evidence.file import EvidenceFile, machine_of, new_file
from prooflops.suite.ranks import VARIABLES
from prooflops.suite_root import SUITE_ROOT
from prooflops_gate import cleanup_process
from prooflops_gate.git import commit_named, repository_of
from prooflops_gate.machine import limits

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
RUNS = ROOT / ".prooflops" / "runs"
# The newest files of runs are kept, in which --resume looks for an unfinished one.
KEPT_RUNS = 10
# The last seconds of a slice are for writing the page and copying the file.
MARGIN_S = 90.0
# The processes of a killed run end within this time.
LOCK_S = 10.0
FOREVER_S = 1e9
MOST_STARTS_OF_A_TEST = 3
STOPPED = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
)
# All workers share the card.
MOST_WORKERS = 8
LARGEST_WORKER_BYTES = 2 * 2**30
# Given "--report /folder", pytest looks for conftest.py in that folder, so plugins are named.
PLUGINS = ("no:cacheprovider", "no:faulthandler", "prooflops_gate.plugin", "prooflops.plugin")
# With these options pytest runs no tests, or runs them in its own way.
LEFT_TO_PYTEST = (
    "--claims", "--collect-only", "--co", "--version", "-V", "--fixtures",
    "--markers", "--model", "--last-failed", "--lf", "--pdb", "--trace",
    "--junitxml",
)  # fmt: skip


class Refused(Exception):
    """The run cannot begin, or not go on; the message says why."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns pytest's code: 1 a test failed, 2 interrupted, 4 refused."""
    options, rest = parser().parse_known_args(arguments)
    if options.out and is_of_all_devices(rest):
        print(
            f"--out {options.out}: a file holds the run of one device, but --device=all has "
            "several; name one device, or drop --out",
            file=sys.stderr,
        )
        return pytest.ExitCode.USAGE_ERROR
    if is_left_to_pytest(rest):
        plugins = ["-p", "prooflops_gate.plugin", "-p", "prooflops.plugin"]
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *plugins, *rest])
    if options.index:
        from prooflops.suite.evidence.gallery import write_gallery

        write_gallery(RESULTS)
        return 0
    if options.check:
        return check(options.check)
    try:
        file = chosen_file(options, rest)
        with locked(file, is_resumed=bool(options.resume)) as lock:
            return run(file, options, arguments_of(file, rest), lock, commands.given(arguments))
    except Refused as error:
        print(error, file=sys.stderr)
        return 4


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "python -m prooflops.suite.evidence",
        description="Runs claims and benchmarks, and keeps each result in one file. "
        "An interrupted run resumes with that file. `pytest --help` lists the other options.",
        allow_abbrev=False,
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="file of the run, or its folder (default: .prooflops/runs)",
    )
    made.add_argument(
        "--resume",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="resume this run (default: the newest unfinished one)",
    )
    made.add_argument(
        "--minutes",
        type=float,
        help="longest time of this call, whose last 1.5 minutes start no test (default: no limit)",
    )
    made.add_argument(
        "--timeout",
        type=float,
        default=180.0,
        metavar="SECONDS",
        help="longest time of a test (default: 180)",
    )
    made.add_argument(
        "-n",
        "--numprocesses",
        default="auto",
        metavar="N",
        help="number of processes, as for xdist (default: auto)",
    )
    made.add_argument("--index", action="store_true", help="only rewrite the pages in results/")
    made.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="only say whether the gallery accepts this file: a whole run by the current method",
    )
    return made


def check(path: Path) -> int:
    """Says whether the gallery takes a file. Returns 0 if so, else 1."""
    from prooflops.suite.evidence.gallery import why_refused
    from prooflops.suite.evidence.page import report_of_file

    if path.suffix != ".jsonl":
        print(f"{path}: this is not a record (.jsonl) of make evidence")
        return 1
    file = EvidenceFile(path)
    why = why_refused(report_of_file(file)) if file.plan else "this file has no run"
    what_to_do = "run make evidence again" if why else "open a pull request with it"
    print(f"{path}: {why or 'accepted'}; {what_to_do}")
    return 1 if why else 0


def is_left_to_pytest(words: Sequence[str]) -> bool:
    """True if these arguments request something else of pytest than running tests here."""
    names = [word.partition("=")[0] for word in words]
    gated = any(name.startswith("--gate") for name in names)
    is_of_job = {*VARIABLES} <= {*os.environ}
    return is_of_all_devices(words) or gated or is_of_job or bool({*names} & {*LEFT_TO_PYTEST})


def is_of_all_devices(words: Sequence[str]) -> bool:
    return "--device=all" in words or "--device all" in " ".join(words)


# ---- the file ------------------------------------------------------------------------------------


def chosen_file(options: argparse.Namespace, rest: Sequence[str]) -> EvidenceFile:
    """The file of this run. Raises Refused for an option that cannot be followed."""
    # NaN compares with nothing.
    if options.minutes is not None and not 60 * options.minutes > MARGIN_S:
        raise Refused("--minutes must be above 1.5: no test starts in the last 1.5 minutes")
    if not 0 < options.timeout <= FOREVER_S:
        raise Refused(f"--timeout must be above 0 and at most {FOREVER_S:,.0f} s")
    if options.resume and options.out:
        raise Refused("--resume adds to the file that it resumes: drop --out, or resume a copy")
    if options.resume == Path():
        unfinished = unfinished_in(RUNS, [])
        if unfinished is None:
            raise Refused(f"--resume: there is no unfinished run in {RUNS}; name its file")
        options.resume = unfinished.path
    out = options.out or options.resume
    if out is None:
        if left := unfinished_in(RUNS, []):
            print(f"there is an unfinished run; to resume: {left.resume}")
        remove_old_runs(RUNS)
        return new_file(RUNS)
    if out.is_dir():
        day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
        return unfinished_in(out, rest) or new_file(out, day)
    return EvidenceFile(out.absolute())


def unfinished_in(folder: Path, arguments: Sequence[str]) -> EvidenceFile | None:
    """The newest unfinished run of these arguments, or of any."""
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        file = EvidenceFile(path.absolute())
        if file.remaining() and list(arguments) in ([], file.plan["arguments"]):
            return file
    return None


def remove_old_runs(folder: Path) -> None:
    """Removes the files of all but the newest runs, and of those to which a process writes."""
    for path in sorted(folder.glob("*.jsonl"))[:-KEPT_RUNS]:
        with suppress(OSError), open(path, "ab") as file:
            # This fails where a run has locked the file.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@contextmanager
def locked(file: EvidenceFile, *, is_resumed: bool) -> Iterator[int]:
    """Opens the file of a run that is not complete, for this run alone. Raises Refused."""
    option, how = ("--resume", "without --resume") if is_resumed else ("--out", "in another file")
    if is_resumed and not file.plan:
        raise Refused(f"--resume {file.path}: this file has no run")
    try:
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
            except OSError:
                # A file system without locks.
                break
        if file.plan and not file.remaining():
            raise Refused(
                f"{option} {file.path}: this run of {machine_of(file.plan)} is complete: "
                f"all {len(file.plan['tests'])} tests have ended; start another run {how}"
            )
        yield lock.fileno()


def arguments_of(file: EvidenceFile, given: Sequence[str]) -> list[str]:
    """The arguments of pytest: those of the file where it has begun. Raises Refused for others."""
    known = file.plan.get("arguments")
    if known is not None and list(given) not in ([], known):
        raise Refused(
            f"{file.path} was started with {known}: repeat these arguments, give none, or name "
            "another --out"
        )
    return list(given) if known is None else list(known)


# ---- the run -------------------------------------------------------------------------------------


def run(
    file: EvidenceFile,
    options: argparse.Namespace,
    arguments: Sequence[str],
    lock: int,
    command: str,
) -> int:
    """Runs one slice: starts pytest again until no test is left. Returns its last code."""
    length_s = 60 * options.minutes - MARGIN_S if options.minutes else FOREVER_S
    ends_at = time.time() + length_s
    for test, starts in file.unended().items():
        if starts >= MOST_STARTS_OF_A_TEST:
            file.end_without_report(test, "crashed", f"started {starts} times, and never ended")
    # A clone without git may lie in another repository.
    commit = commit_named(ROOT, "HEAD") if repository_of(ROOT) == ROOT else ""
    number = len(file.rows("slice")) + 1
    # Given the folder, the same command finds the file.
    finds_file = options.out is not None and options.out.is_dir()
    file.append("slice", slice=number, commit=commit or "", command=command, finds_file=finds_file)
    print(f"run {file.path}", flush=True)
    words = words_for_workers(file, options.numprocesses, arguments)
    with tempfile.TemporaryDirectory() as folder, cleanup_process.running() as register:
        task = {
            "path": str(file.path),
            "stacks": str(Path(folder, "stacks.txt")),
            "arguments": arguments,
            "ends_at": ends_at,
            "limit_s": options.timeout,
        }
        while True:
            left, started = len(file.remaining()), len(file.rows("start"))
            variables = {
                "PROOFLOPS_EVIDENCE": json.dumps({**task, "side_by_side": bool(words)}),
                "PROOFLOPS_CONTROLLER": "1" if words else "",
            }
            code = run_pytest([*words, *arguments], variables, lock, register)
            if file.is_over or code in STOPPED:
                break
            if not words:
                for row in file.rows("start")[started:][-1:]:
                    if row["test"] in file.unended():
                        file.end_lost(row["test"], task)
                if len(file.remaining()) == left:
                    break
            words = []
    if not file.plan:
        # Nothing has run, so that there is nothing to go on with.
        file.path.unlink()
        return code
    write_pages(file)
    if file.remaining():
        print(file.partial, f"to resume: {file.resume}", sep="\n", flush=True)
    else:
        print(f"complete: {file.path}", flush=True)
    return code


def words_for_workers(file: EvidenceFile, number: str, arguments: Sequence[str]) -> list[str]:
    """The options by which xdist runs tests side by side; none for one plain process.

    A few tests run in one process, as a process needs 10 CPU seconds to import and collect.
    """
    plan = file.plan
    is_done = plan and {*file.remaining()} <= {*plan.get("alone", ())}
    names = [word.partition("=")[0] for word in arguments]
    is_narrowed = any(name in ("--claim", "-k") or "::" in name for name in names)
    if is_done or is_narrowed or number == "0" or not find_spec("xdist"):
        return []
    most = MOST_WORKERS
    if number == "auto":
        free_bytes = limits.free_bytes()
        fitting = most if free_bytes is None else free_bytes // LARGEST_WORKER_BYTES
        most = max(1, min(most, limits.usable_cores(), fitting))
    # pytest-benchmark warns in each process that xdist disables benchmarks.
    workers = ("-n", number, "--maxprocesses", str(most), "--dist", "worksteal")
    return [*workers, "--benchmark-disable"]


def run_pytest(
    words: Sequence[str], variables: Mapping[str, str], lock: int, register: Callable[..., None]
) -> int:
    """Runs pytest once, in a process group of its own. Returns its exit code."""
    plugins = [word for plugin in PLUGINS for word in ("-p", plugin)]
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", *plugins, "--continue-on-collection-errors", *words],
        cwd=SUITE_ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # A process that outlives this one keeps the file locked.
        pass_fds=[lock],
    )
    register("group", str(child.pid))
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    register("ended", str(child.pid))
    return code


def write_pages(file: EvidenceFile) -> None:
    """Writes the page beside a file that is kept, and the index of the folder `results`."""
    path = file.path.resolve()
    if ROOT / ".prooflops" in path.parents:
        return
    # Here, as it imports torch, which takes longer than all else of this process.
    from prooflops.suite.evidence import gallery, page

    if path.parent == RESULTS:
        gallery.write_gallery(file.path.parent)
    else:
        page.write(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
