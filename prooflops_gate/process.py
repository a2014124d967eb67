"""Fresh processes of pytest, of this checkout or another side, and what each leaves.

Nothing of them outlives the run: the cleanup process (`prooflops_gate.cleanup_process`) removes
them, their files and the worktree of another revision after success, an error, ^C or a kill alike.
The user's working tree is never touched.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prooflops_gate import cleanup_process, git
from prooflops_gate.child import turns
from prooflops_gate.child.plugin import TASK_FILE
from prooflops_gate.machine.core_speed import PATIENCE_S, with_core_speed
from prooflops_gate.options import words_for_children
from prooflops_gate.run_state import RECORD_TO
from prooflops_gate.task import PAGE_BYTES, OutOfTime, Replicate, ReplicateFailed, Side, Task
from prooflops_gate.unpatched import os, time

# A child imports this very package, from a folder that holds nothing else: there it may be missing,
# or another release.
PACKAGE = Path(__file__).resolve().parent
# Times its own duration a process waits for a core at full speed.
PATIENCE = 0.5
# Environment variables that would change or disturb the child's run; the last ones start coverage.
DROPPED = (
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_WORKER",
    "GITHUB_STEP_SUMMARY",
    "PYTEST_VERSION",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
    "COV_CORE_SOURCE",
    "COV_CORE_CONFIG",
    "COV_CORE_DATAFILE",
    "COV_CORE_BRANCH",
    "COV_CORE_CONTEXT",
    *git.HOOK_VARIABLES,
)
VALGRIND = (
    "valgrind",
    "--quiet",
    "--tool=callgrind",
    "--instr-atstart=no",
    "--dump-line=no",
    "--callgrind-out-file={}.%p",
)
# Arguments of personality(2): a query, and its flag ADDR_NO_RANDOMIZE.
QUERY, FIXED_ADDRESSES = 0xFFFFFFFF, 0x0040000
# The variable that fills the environment.
PADDING = "PROOFLOPS_PADDING"
NO_BYTECODE, BYTECODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
KEPT = ("prefix", "modules", "reports", "calls", "collected", "footprint", "start_cpu_s")
KEPT_COUNTS = ("counts", "steps", "dumps")
# Exit codes of pytest: passed, some failed, none collected.
WITH_RECORD = (0, 1, 5)


class _Started(NamedTuple):
    number: int
    side: Side
    process: subprocess.Popen[bytes]
    record: Path
    output: Path
    began: float


class Processes:
    """Starts processes, one alone or several in turn, and leaves none of them behind.

    It remembers of each side how fast its cores have run, as each Python has its own fixed work.
    """

    def __init__(self, config: pytest.Config, limit_s: float) -> None:
        self._config, self._limit_s = config, limit_s
        self._numbers, self._trees = itertools.count(1), itertools.count(1)
        self._fastest_s: dict[str, float] = {}
        self._patience_s = PATIENCE_S
        self._stack = ExitStack()

    def __enter__(self) -> Processes:
        self._register = self._stack.enter_context(cleanup_process.running(git.environment()))
        self.folder = Path(tempfile.mkdtemp(prefix="prooflops-gate-"))
        self._register("folder", str(self.folder))
        self._plugins = self.folder / "plugins"
        self._plugins.mkdir()
        (self._plugins / PACKAGE.name).symlink_to(PACKAGE)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def worktree(self, repository: Path, revision: str) -> Path:
        """A checkout of `revision` in a folder of its own. Raises UsageError where git refuses."""
        path = self.folder / f"worktree-{next(self._trees)}"
        self._register("worktree", str(repository), str(path))
        add = ["worktree", "add", "--detach", "--force", str(path), revision]
        adding = subprocess.Popen(
            ["git", "-C", str(repository), *add],
            env=git.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._register("group", str(adding.pid))
        message = adding.communicate()[1]
        self._register("ended", str(adding.pid))
        if adding.returncode:
            raise pytest.UsageError(f"{revision}: git worktree: {message.strip()}")
        return path

    def run(self, asked: Sequence[tuple[Side, Sequence[str]]], task: Task) -> list[Replicate]:
        """A process for each side over its files, which does this task.

        Several live at the same time and run their tests in turn, the first side beginning; those
        that count wait for no turn. Raises ReplicateFailed for one that crashed, took too long, or
        could not collect, and OutOfTime where the task's end was reached.
        """
        limit_s = min(task.limit_s, self._limit_s, task.ends - time.monotonic())
        started: list[_Started] = []
        with ExitStack() as stack:
            channels: list[socket.socket] = []
            for side, targets in asked:
                with ExitStack() as of_child:
                    there = None
                    if len(asked) > 1 and not task.counting:
                        here, there = socket.socketpair()
                        channels.append(stack.enter_context(here))
                        of_child.enter_context(there)
                    started.append(self._start(side, targets, task, there))
                stack.callback(self._end, started[-1])

            def is_alive(number: int) -> bool:
                return started[number].process.poll() is None

            turns.alternate(channels, is_alive, time.monotonic() + limit_s)
            return [self._ended(each, limit_s, task) for each in started]

    def _start(
        self, side: Side, targets: Sequence[str], task: Task, turn: socket.socket | None
    ) -> _Started:
        number = next(self._numbers)
        stem = self.folder / f"{number:04d}"
        record, output, written = (stem.with_suffix(f".{kind}") for kind in ("json", "txt", "task"))
        command, variables = self._command(side), self._of_python(task) | {PADDING: ""}
        dumps = ""
        if task.counting and task.counting.valgrind:
            dumps = str(stem.with_suffix(".dump"))
            under = [word.format(dumps) for word in VALGRIND]
            command = [*under, interpreter_of(side.python), *command[1:]]
        own = {
            "targets": list(targets),
            "fastest_s": self._fastest_s.get(side.label),
            "patience_s": self._patience_s if task.patient else 0.0,
            "turn": turn.fileno() if turn else None,
            "dumps": dumps,
            # Python's variables are neither settings of the machine, nor for what the tests start.
            "restore": {name: os.environ.get(name) for name in variables},
        }
        # A file: 2,000 names exceed a variable's length.
        written.write_text(json.dumps({**task.for_child(), **own}), encoding="utf-8")
        began = time.monotonic()
        environment = self._environment(side) | variables
        environment |= {TASK_FILE: str(written), RECORD_TO: str(record)}
        missing_bytes = task.layout.environment_bytes - _size(command, environment)
        environment[PADDING] = "x" * (missing_bytes % PAGE_BYTES)
        with open(output, "wb") as printed, fixed_addresses() if dumps else nullcontext():
            process = subprocess.Popen(
                command,
                cwd=side.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(turn.fileno(),) if turn else (),
            )
        self._register("group", str(process.pid))
        return _Started(number, side, process, record, output, began)

    def _of_python(self, task: Task) -> dict[str, str]:
        """Variables for the child's Python.

        The hash seed, and a place for bytecode where none is written.
        """
        seed = task.layout.hash_seed
        variables = {"PYTHONHASHSEED": seed} if seed else {}
        if os.environ.get(NO_BYTECODE) and BYTECODE not in os.environ:
            # Otherwise each process compiles all its imports anew: 5 s with torch. Many images set
            # it.
            variables |= {NO_BYTECODE: "", BYTECODE: str(self.folder / "bytecode")}
        return variables

    def _command(self, side: Side) -> list[str]:
        plugins = ["-p", "prooflops_gate.child.options", "-p", "prooflops_gate.child.plugin"]
        words = words_for_children(self._config, self.folder / "cache")
        place = [f"--rootdir={side.root}", *self._ini(side)]
        return [side.python, "-m", "pytest", *plugins, *words, *place]

    def _ini(self, side: Side) -> list[str]:
        """The side's counterpart of this run's ini file.

        Where it has none, the file itself if `-c` names it.
        """
        ini, root = self._config.inipath, self._config.rootpath
        if ini and ini.is_relative_to(root):
            theirs = side.root / ini.relative_to(root)
            if theirs.exists():
                return ["-c", str(theirs)]
        return ["-c", str(ini)] if ini and self._config.option.inifilename else []

    def _environment(self, side: Side) -> dict[str, str]:
        """The environment, with PYTHONPATH.

        The link, the side's folders, then the given ones, moved to this side.
        """
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        moved = [_moved(path, self._config.rootpath, side.root) for path in inherited]
        paths = os.pathsep.join([str(self._plugins), *side.paths, *moved])
        kept = {key: value for key, value in os.environ.items() if key not in DROPPED}
        return kept | {"PYTHONPATH": paths}

    def _ended(self, started: _Started, limit_s: float, task: Task) -> Replicate:
        """Waits for a process, and reads its record."""
        side, left_s = started.side, started.began + limit_s - time.monotonic()
        try:
            code: int | None = started.process.wait(max(left_s, 0.0))
        except subprocess.TimeoutExpired:
            code = None
        wall_s = time.monotonic() - started.began
        record: dict[str, Any] = {}
        if started.record.exists():
            record = json.loads(started.record.read_text(encoding="utf-8"))
        found = record.pop("replicate", None)
        if found is None or code not in WITH_RECORD:
            if code is None and time.monotonic() >= task.ends:
                raise OutOfTime(f"{side.label} did not end within the budget (--gate-budget)")
            raise ReplicateFailed(self._failure(started, code, found["errors"] if found else []))
        left = {key: found[key] for key in KEPT}
        if found["counts"] is not None:
            left |= {key: found[key] for key in KEPT_COUNTS}
            return Replicate(side, record, wall_s=wall_s, **left)
        fastest_s = min(found["fastest_s"], self._fastest_s.get(side.label, math.inf))
        self._fastest_s[side.label] = fastest_s
        _label_slow(record["benchmarks"], found["calls"], fastest_s)
        wall_s -= found["idle_s"]
        # Without a moment at full speed, waiting was useless: the core may have slowed down for
        # good.
        if task.patient:
            self._patience_s /= 2
            if found["was_fast"]:
                self._patience_s = PATIENCE * (wall_s - found["waited_s"])
        return Replicate(side, record, wall_s=wall_s, **left)

    def _end(self, started: _Started) -> None:
        if started.process.poll() is None:
            try:
                os.killpg(started.process.pid, signal.SIGKILL)
            except OSError:
                started.process.kill()
            started.process.wait()
        self._register("ended", str(started.process.pid))

    def _failure(self, started: _Started, code: int | None, errors: Sequence[str]) -> str:
        if code is None:
            how = f"was ended after {self._limit_s:.0f} s (--gate-budget)"
        elif code < 0:
            how = f"crashed with {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        side = started.side
        lines = started.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        printed = [line for line in lines if line.startswith("Fatal")] + lines[-15:]
        where = f"process {started.number} ({side.label}: {side.python} in {side.root})"
        return "\n".join([f"{where} {how}. It printed:", *(errors or printed)])


def _label_slow(
    benchmarks: Sequence[dict[str, Any]], calls: Mapping[str, Mapping[str, Any]], fastest_s: float
) -> None:
    """Labels the benchmarks during which the core never ran at the best speed that any process of
    this side saw.
    """
    for bench in benchmarks:
        test = bench.get("test", bench["fullname"])
        stretch_s: Any = calls.get(test, {}).get("stretch_s")
        extra = bench.setdefault("extra_info", {})
        seen = extra.get("contention") or {}
        extra["contention"] = with_core_speed(seen, stretch_s, fastest_s)


def _size(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Bytes that a process finds at the beginning of its stack.

    The words of its command, and its environment.
    """
    words = (*command, *itertools.chain(*environment.items()))
    return sum(len(os.fsencode(word)) + 1 for word in words)


@cache
def interpreter_of(python: str) -> str:
    """The program behind `python`, which may be a shell script, as pyenv's.

    Valgrind would count the shell.
    """
    with open(shutil.which(python) or python, "rb") as file:
        if file.read(2) != b"#!":
            return python
    return subprocess.check_output(
        [python, "-c", "import sys; print(sys.executable)"], text=True
    ).strip()


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """Starts processes without random placement of memory.

    Where a container forbids it, counts scatter a little.
    """
    personality = ctypes.CDLL(None).personality
    before = personality(QUERY)
    personality(before | FIXED_ADDRESSES)
    try:
        yield
    finally:
        personality(before)


def _moved(path: str, old: Path, new: Path) -> str:
    """`path`, moved from `old` to the same place under `new` where it lies there."""
    real = Path(path).resolve()
    return str(new / real.relative_to(old)) if real.is_relative_to(old) else path
