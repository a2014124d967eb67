"""Runs the claims and benchmarks so that no test ends the run: `make validate`, `make evidence`, or

    python -m prooflops.suite.runner [--out PATH] [--resume [FILE]] [TESTS OR OPTIONS OF PYTEST]

Tests run in processes of their own: claims side by side, and those that measure time alone
afterwards. A process that is lost, or that has lost its device, is replaced. All that is learned
goes to one file, test by test; verdicts, record and pages are made of it. A run that was killed or
interrupted goes on with --resume.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from prooflops.suite.evidence.file import EvidenceFile, machine_of, new_file
from prooflops.suite.runner.process import processes_for
from prooflops.suite.runner.screen import Screen
from prooflops.suite.runner.slice import Refused, Slice
from prooflops_gate import cleanup_process

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
RUNS = ROOT / ".prooflops" / "runs"
# The newest files of runs are kept, in which --resume looks for an unfinished one.
KEPT_RUNS = 10
# At the end of a slice, for the page and for bringing the file home.
MARGIN_S = 90.0
# Within which the processes of a killed run end.
LOCK_S = 10.0
# No end of a run, in seconds from now.
FOREVER_S = 1e9
# What pytest does itself, without running tests in this process or in its own way.
LEFT_TO_PYTEST = (
    "--collect-only", "--co", "--help", "-h", "--version", "-V", "--fixtures", "--markers",
    "--model", "--report-compare", "--last-failed", "--lf", "--pdb", "--trace", "--junitxml",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns pytest's code: 1 a test failed, 2 interrupted, 4 refused."""
    options, rest = parser().parse_known_args(arguments)
    if is_left_to_pytest(rest):
        plugins = ["-p", "prooflops_gate.plugin", "-p", "prooflops.plugin"]
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *plugins, *rest])
    if options.index:
        from prooflops.suite.evidence import page

        page.write_index(RESULTS)
        return 0
    try:
        return run(chosen_file(options, rest), options, rest)
    except Refused as error:
        print(error, file=sys.stderr)
        return 4


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "python -m prooflops.suite.runner", description=__doc__, add_help=False, allow_abbrev=False
    )
    made.add_argument("--out", type=Path, metavar="PATH", help="the run's file, or its folder")
    made.add_argument(
        "--resume",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="go on with this run, by default with the newest unfinished one; --out gets its lines",
    )
    made.add_argument("--minutes", type=float, help="of this call; the last 1.5 run no test")
    made.add_argument(
        "--test-limit", type=float, default=180.0, metavar="SECONDS", help="of a test, default 180"
    )
    made.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="that run claims side by side, default one a core",
    )
    made.add_argument("--index", action="store_true", help="only write the pages in results/ anew")
    return made


def is_left_to_pytest(words: Sequence[str]) -> bool:
    """Whether these arguments ask pytest for something else than running tests here."""
    names = [word.partition("=")[0] for word in words]
    all_devices = "--device=all" in words or "--device all" in " ".join(words)
    gated = any(name.startswith("--gate") for name in names)
    return all_devices or gated or "RANK" in os.environ or bool({*names} & {*LEFT_TO_PYTEST})


def chosen_file(options: argparse.Namespace, rest: Sequence[str]) -> EvidenceFile:
    """The file of this run. Raises Refused for an option that cannot be followed."""
    if options.minutes is not None and 60 * options.minutes <= MARGIN_S:
        raise Refused("--minutes must be above 1.5, of which the last 1.5 run no test")
    if options.test_limit <= 0 or (options.processes is not None and options.processes < 1):
        raise Refused("--test-limit must be above 0 s, and --processes at least 1")
    if options.resume == Path():
        unfinished = unfinished_in(RUNS, [])
        if unfinished is None:
            raise Refused(f"--resume: there is no unfinished run in {RUNS}; name its file")
        options.resume = unfinished
    out = options.out or options.resume
    if out is None:
        if left := unfinished_in(RUNS, []):
            print(f"An unfinished run is there; to go on with it: --resume {shown(left)}")
        RUNS.mkdir(parents=True, exist_ok=True)
        remove_old_runs(RUNS)
        return EvidenceFile(new_file(RUNS))
    if out.is_dir():
        day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
        return EvidenceFile(unfinished_in(out, rest) or new_file(out, day))
    return EvidenceFile(out)


def unfinished_in(folder: Path, arguments: Sequence[str]) -> Path | None:
    """The newest unfinished run of these arguments, or of any."""
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        file = EvidenceFile(path)
        if file.remaining() and list(arguments) in ([], file.plan["arguments"]):
            return path
    return None


def remove_old_runs(folder: Path) -> None:
    """Removes the files of all but the newest runs, and of those to which a process writes."""
    for path in sorted(folder.glob("*.jsonl"))[:-KEPT_RUNS]:
        with suppress(OSError), open(path, "ab") as file:
            # Fails where a run holds the lock.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def shown(path: Path) -> str:
    """A path as one types it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def run(file: EvidenceFile, options: argparse.Namespace, given: Sequence[str]) -> int:
    """Runs one slice, and makes of the file what it amounts to. Raises Refused."""
    began = time.time()
    length_s = 60 * options.minutes - MARGIN_S if options.minutes else FOREVER_S
    screen = Screen()
    is_new = not file.path.exists()
    screen.verbosity = sum(word in ("-v", "--verbose") for word in given)
    with held(file, options.resume) as lock, cleanup_process.running() as register:
        arguments = arguments_of(file, given)
        number, before = len(file.rows("slice")) + 1, len(file.ended())
        file.append("slice", slice=number, commit=commit())
        screen.write_line(f"run {shown(file.path)}")
        task = {
            "arguments": arguments,
            "ends_at": began + length_s,
            "limit_s": options.test_limit,
        }
        wanted = options.processes or processes_for(arguments)
        part = Slice(file, task, wanted, lock, register, screen)
        try:
            part.run()
        except KeyboardInterrupt:
            part.stopped = "interrupted"
        finally:
            if is_new and not file.plan:
                # Nothing has run, so that there is nothing to go on with.
                file.path.unlink()
        if not file.plan:
            raise Refused(f"{part.stopped or 'the time was over'} before the tests were collected")
        file.append("over", slice=number, stopped=part.stopped)
    # After the tests, as it imports what draws the pages.
    from prooflops.suite.runner import ending

    ran = len(file.ended()) - before
    return ending.conclude(file, part.introduction, screen, ran, interrupted=bool(part.stopped))


@contextmanager
def held(file: EvidenceFile, resumed: Path | None) -> Iterator[int]:
    """Opens the file for this run alone, with the lines of the one to resume. Raises Refused."""
    known_plan = EvidenceFile(resumed).plan if resumed else {}
    if resumed and not known_plan:
        raise Refused(f"--resume {resumed}: it holds no run")
    if resumed and not EvidenceFile(resumed).remaining():
        raise Refused(
            f"--resume {resumed}: this run of {machine_of(known_plan)} is complete: "
            f"all {len(known_plan['tests'])} tests have ended; begin another run without --resume"
        )
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
        if resumed and resumed.resolve() != file.path.resolve():
            take_over(file, EvidenceFile(resumed))
        yield lock.fileno()


def take_over(file: EvidenceFile, resumed: EvidenceFile) -> None:
    """Adds the lines of the run to resume.

    Raises Refused where the file holds another machine's run.
    """
    if file.plan and machine_of(file.plan) != machine_of(resumed.plan):
        raise Refused(
            f"{file.path} is a run of {machine_of(file.plan)}, and {resumed.path} one of "
            f"{machine_of(resumed.plan)}: give another --out"
        )
    known = {*file.lines()}
    file.append_lines([line for line in resumed.lines() if line not in known])


def arguments_of(file: EvidenceFile, given: Sequence[str]) -> list[str]:
    """The arguments of pytest: those of the file where it has begun. Raises Refused for others."""
    known = file.plan.get("arguments")
    if known is not None and list(given) not in ([], known):
        raise Refused(
            f"{file.path} was begun with {known}: give these arguments, none, or another --out"
        )
    return list(given) if known is None else list(known)


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
