"""Fresh processes of pytest, of this checkout or another side, and the record that each leaves.

Nothing of them outlives the run: the cleanup process (`prooflops_gate.cleanup_process`) removes them, their files and
the worktree of another revision after success, an error, ^C or a kill alike. The user's working tree is never touched.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prooflops_gate import cleanup_process
from prooflops_gate.child import turns
from prooflops_gate.child.calls import PROCESSES
from prooflops_gate.child.plugin import RECORD, TASK
from prooflops_gate.machine.core_speed import PATIENCE_S, slow_core
from prooflops_gate.options import words_for_children

# A child imports this very package, from a folder that holds nothing else: there it may be missing, or another release.
PACKAGE = Path(__file__).resolve().parent
PATIENCE = 0.5  # times its own duration a process waits for a core at full speed
# Environment variables that would change or disturb the child's run.
DROPPED = (
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_WORKER",
    "GITHUB_STEP_SUMMARY",
    "PYTEST_VERSION",
)
VALGRIND = (
    "valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no", "--callgrind-out-file={}.%p",
)  # fmt: skip
ASK, FIXED_ADDRESSES = 0xFFFFFFFF, 0x0040000  # personality(2), and its ADDR_NO_RANDOMIZE
PADDING, PAGE = "PROOFLOPS_PADDING", 4096  # variable that fills the environment; bytes
NO_BYTECODE, BYTECODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
KEPT = ("prefix", "modules", "reports", "calls", "footprint", "start_cpu_s")  # of a child's data
COUNTS = ("counts", "steps", "dumps", "builds")  # in addition, of one that counts
Paces = Mapping[
    str, Mapping[str, Any]
]  # pytest-benchmark's options by node id; under "" those of all others


class ReplicateFailed(RuntimeError):
    """A process ended without a record: the message says which, how, and its last output."""


class OutOfTime(RuntimeError):
    """The process was ended because the comparison's time is up."""


@dataclass(frozen=True)
class Side:
    """One of the two things compared: which interpreter runs which checkout."""

    label: str
    python: str
    root: Path
    paths: tuple[str, ...] = ()  # first on PYTHONPATH
    fresh: bool = False  # checked out for this run: without built extensions and submodules


@dataclass(frozen=True)
class Replicate:
    """One ended process, and its record: the plugin's, or the part of it that the child plugin knows."""

    side: Side
    record: dict[str, Any]
    prefix: str  # of its interpreter
    modules: dict[
        str, str
    ]  # imported modules and their files, without site-packages and the standard library
    reports: list[dict[str, Any]]  # of its tests, serialised by pytest
    calls: Mapping[
        str, Mapping[str, Any]
    ]  # per benchmark: the seconds of its call, and whether its pace is fixed
    wall_s: float  # of the whole process, without the turns of others
    footprint: Mapping[str, Any] = field(default_factory=dict)  # see `turns.footprint`
    start_cpu_s: float = 0.0  # CPU time of its start, imports, collection and fixtures
    counts: Mapping[str, int] | None = (
        None  # instructions by benchmark, where they and no times were measured
    )
    steps: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # bytecodes by Python function, by benchmark
    dumps: Mapping[str, str] = field(default_factory=dict)  # callgrind's file by benchmark
    builds: Mapping[str, Any] = field(default_factory=dict)  # see `callgrind.builds`

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """The machine's fingerprint; None where the plugin was not active."""
        found: dict[str, Any] | None = self.record["prooflops"].get("fingerprint")
        return found


class Counted(NamedTuple):
    """What a process counts in place of timing: instructions under valgrind, and what each function takes."""

    until: float = math.inf  # no test begins after it
    by_function: bool = False
    valgrind: bool = True  # else only bytecodes are counted, by function


class _Started(NamedTuple):
    number: int
    side: Side
    process: subprocess.Popen[bytes]
    record: Path
    output: Path
    began: float


class Replicates:
    """Starts processes, one alone or several that take turns; a context that leaves none of them behind."""

    def __init__(self, config: pytest.Config, limit_s: float, resources: bool = True) -> None:
        self._config, self._limit_s = config, limit_s
        self._ends = math.inf  # on the monotonic clock: no process outlives it
        self._numbers, self._trees = itertools.count(1), itertools.count(1)
        self.examined: Sequence[str] = ()  # benchmarks that both sides have timed
        self.repeated: Mapping[
            str, float
        ] = {}  # seconds of the tests that are run several times in a process
        self._hash_seed = ""  # of the next processes; empty: each draws its own, as Python does
        self._size = 0  # of the next processes' command and environment, modulo PAGE
        self._resources = resources  # whether memory is measured
        self.same_memory: Sequence[
            str
        ] = ()  # benchmarks of which it has not changed: it costs up to 50 times a call
        self._by_side: Counter[str] = Counter()  # processes with benchmarks, by label
        self._fastest_s: dict[
            str, float
        ] = {}  # of `CoreSpeed`'s work, by label: each Python has its own
        self._patience_s = PATIENCE_S
        self._stack = ExitStack()

    def __enter__(self) -> Replicates:
        self._register = self._stack.enter_context(cleanup_process.running())
        self.folder = Path(tempfile.mkdtemp(prefix="prooflops-gate-"))
        self._register("folder", str(self.folder))
        self._plugins = self.folder / "plugins"
        self._plugins.mkdir()
        (self._plugins / PACKAGE.name).symlink_to(PACKAGE)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def until(self, ends: float) -> Iterator[None]:
        """Within, no process outlives this moment of the monotonic clock: OutOfTime is raised for one that would."""
        self._ends = ends
        try:
            yield
        finally:
            self._ends = math.inf

    def share_hash_seed(self, seed: int | None = None) -> None:
        """Draws one hash seed for the next processes, unless the environment sets one: its noise cancels in a pair.

        So does that of the environment's size, which moves memory (Mytkowicz et al., ASPLOS 2009).
        """
        self._size = random.randrange(PAGE) if seed is None else 0
        if "PYTHONHASHSEED" not in os.environ:
            self._hash_seed = str(int.from_bytes(os.urandom(4), "little") if seed is None else seed)

    def worktree(self, repository: Path, revision: str) -> Path:
        """A checkout of `revision` in a folder of its own. Raises UsageError where git refuses."""
        path = self.folder / f"worktree-{next(self._trees)}"
        self._register("worktree", str(repository), str(path))
        git = subprocess.Popen(
            [
                "git",
                "-C",
                str(repository),
                "worktree",
                "add",
                "--detach",
                "--force",
                str(path),
                revision,
            ],
            env=environment_of_git(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._register("group", str(git.pid))
        message = git.communicate()[1]
        self._register("ended", str(git.pid))
        if git.returncode:
            raise pytest.UsageError(f"{revision}: git worktree: {message.strip()}")
        return path

    def run(
        self,
        asked: Sequence[tuple[Side, Sequence[str]]],
        ids: Sequence[str] | None,
        *,
        benchmarks_only: bool = True,
        paces: Paces | None = None,
        limit_s: float = math.inf,
        counted: Counted | None = None,
    ) -> list[Replicate]:
        """A process for each side over its files, which runs the tests `ids` (None: all), paced by `paces`.

        Several live at the same time and run their tests in turn, the first side beginning. With `counted` they
        count in place of timing, and wait for no turn. Raises ReplicateFailed for one that crashed, took too long, or
        could not collect.
        """
        limit_s = min(limit_s, self._limit_s, self._ends - time.monotonic())
        task = {"ids": ids and list(ids), "benchmarks_only": benchmarks_only, "paces": paces or {}}
        started: list[_Started] = []
        with ExitStack() as stack:
            channels: list[socket.socket] = []
            for side, targets in asked:
                with ExitStack() as of_child:
                    there = None
                    if len(asked) > 1 and not counted:
                        here, there = socket.socketpair()
                        channels.append(stack.enter_context(here))
                        of_child.enter_context(there)
                    started.append(self._start(side, targets, task, there, counted))
                stack.callback(self._end, started[-1])
            turns.alternate(
                channels,
                lambda each: started[each].process.poll() is None,
                time.monotonic() + limit_s,
            )
            return [self._ended(each, limit_s) for each in started]

    def _start(
        self,
        side: Side,
        targets: Sequence[str],
        task: Mapping[str, Any],
        turn: socket.socket | None,
        counted: Counted | None,
    ) -> _Started:
        number = next(self._numbers)
        record, output, written = (
            self.folder / f"{number:04d}.{kind}" for kind in ("json", "txt", "task")
        )
        command, variables = self._command(side), self._of_python() | {PADDING: ""}
        dumps = str(record.with_suffix(".dump")) if counted and counted.valgrind else ""
        if dumps:
            command = [
                *(word.format(dumps) for word in VALGRIND),
                interpreter_of(side.python),
                *command[1:],
            ]
        own = {
            "targets": list(targets),
            "examined": list(self.examined),
            "repeated": {} if counted else dict(self.repeated),
            "same_memory": list(self.same_memory),
            "measured": self._resources and self._by_side[side.label] < PROCESSES,
            "fastest_s": self._fastest_s.get(side.label),
            "patience_s": self._patience_s,
            "turn": turn.fileno() if turn else None,
            "dumps": dumps,
            "counted": counted and counted._asdict(),
            # Python's variables are neither settings of the machine, nor for processes that the tests start.
            "restore": {name: os.environ.get(name) for name in variables},
        }
        written.write_text(
            json.dumps({**task, **own}), encoding="utf-8"
        )  # 2,000 node ids exceed a variable's length
        began = time.monotonic()
        environment = (
            self._environment(side) | variables | {TASK: str(written), RECORD: str(record)}
        )
        environment[PADDING] = "x" * ((self._size - _size(command, environment)) % PAGE)
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

    def _of_python(self) -> dict[str, str]:
        """Variables for the child's Python: the hash seed, and a shared place for bytecode where none is written."""
        variables = {"PYTHONHASHSEED": self._hash_seed} if self._hash_seed else {}
        if os.environ.get(NO_BYTECODE) and BYTECODE not in os.environ:
            # Otherwise each process compiles all its imports anew: 5 s with torch. Many images set it.
            variables |= {NO_BYTECODE: "", BYTECODE: str(self.folder / "bytecode")}
        return variables

    def _command(self, side: Side) -> list[str]:
        plugins = [
            word
            for name in ("options", "plugin")
            for word in ("-p", f"prooflops_gate.child.{name}")
        ]
        words = words_for_children(self._config, self.folder / "cache")
        return [
            side.python,
            "-m",
            "pytest",
            *plugins,
            *words,
            f"--rootdir={side.root}",
            *self._ini(side),
        ]

    def _ini(self, side: Side) -> list[str]:
        """The side's counterpart of this run's ini file; where it has none, the file itself if `-c` names it."""
        ini, root = self._config.inipath, self._config.rootpath
        if (
            ini
            and ini.is_relative_to(root)
            and (theirs := side.root / ini.relative_to(root)).exists()
        ):
            return ["-c", str(theirs)]
        return ["-c", str(ini)] if ini and self._config.option.inifilename else []

    def _environment(self, side: Side) -> dict[str, str]:
        """The environment, with PYTHONPATH: the link, the side's folders, then the given ones, moved to this side."""
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        moved = [_moved(path, self._config.rootpath, side.root) for path in inherited]
        paths = os.pathsep.join([str(self._plugins), *side.paths, *moved])
        return {key: value for key, value in os.environ.items() if key not in DROPPED} | {
            "PYTHONPATH": paths
        }

    def _ended(self, started: _Started, limit_s: float) -> Replicate:
        """Waits for a process, and reads its record."""
        side = started.side
        try:
            code: int | None = started.process.wait(
                max(started.began + limit_s - time.monotonic(), 0.0)
            )
        except subprocess.TimeoutExpired:
            code = None
        wall_s = time.monotonic() - started.began
        record = (
            json.loads(started.record.read_text(encoding="utf-8"))
            if started.record.exists()
            else {}
        )
        found = record.pop("replicate", None)
        if found is None or code not in (0, 1, 5):
            if code is None and time.monotonic() >= self._ends:
                raise OutOfTime(f"{side.label} did not end within the budget (--gate-budget)")
            raise ReplicateFailed(self._failure(started, code, found["errors"] if found else []))
        if found["counts"] is not None:
            return Replicate(
                side, record, wall_s=wall_s, **{key: found[key] for key in (*KEPT, *COUNTS)}
            )
        self._by_side[side.label] += bool(record["benchmarks"])
        fastest_s = self._fastest_s[side.label] = min(
            found["fastest_s"], self._fastest_s.get(side.label, math.inf)
        )
        _label_slow(record["benchmarks"], found["calls"], fastest_s)
        wall_s -= found["idle_s"]
        # Without a moment at full speed, waiting was useless: the core may have slowed down for good.
        self._patience_s = (
            PATIENCE * (wall_s - found["waited_s"]) if found["was_fast"] else self._patience_s / 2
        )
        return Replicate(side, record, wall_s=wall_s, **{key: found[key] for key in KEPT})

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
        head = f"process {started.number} ({side.label}: {side.python} in {side.root}) {how}. It printed:"
        return "\n".join([head, *(errors or printed)])


def _label_slow(
    benchmarks: Sequence[dict[str, Any]], calls: Mapping[str, Mapping[str, Any]], fastest_s: float
) -> None:
    """Labels the benchmarks during which the core never ran at the best speed that any process of this side saw."""
    for bench in benchmarks:
        stretch_s: Any = calls.get(bench["fullname"], {}).get("stretch_s")
        if why := slow_core(stretch_s, fastest_s):
            extra = bench.setdefault("extra_info", {})
            seen = extra.get("contention") or {}
            signs = "; ".join(filter(None, [seen.get("why"), why]))
            extra["contention"] = seen | {
                "contended": True,
                "why": signs,
                "slowness": stretch_s / fastest_s,
            }


def _size(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Bytes that a process finds at the beginning of its stack: the words of its command, and its environment."""
    return sum(
        len(os.fsencode(word)) + 1 for word in (*command, *itertools.chain(*environment.items()))
    )


@cache
def interpreter_of(python: str) -> str:
    """The program behind `python`, which may be a shell script, as pyenv's: valgrind would count the shell."""
    with open(shutil.which(python) or python, "rb") as file:
        if file.read(2) != b"#!":
            return python
    return subprocess.check_output(
        [python, "-c", "import sys; print(sys.executable)"], text=True
    ).strip()


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """Starts processes without random placement of memory; where a container forbids it, counts scatter a little."""
    personality = ctypes.CDLL(None).personality
    before = personality(ASK)
    personality(before | FIXED_ADDRESSES)
    try:
        yield
    finally:
        personality(before)


def environment_of_git() -> dict[str, str]:
    """For git in another worktree: in a hook this names the user's index, and a checkout would overwrite it."""
    return {key: value for key, value in os.environ.items() if key != "GIT_INDEX_FILE"}


def _moved(path: str, old: Path, new: Path) -> str:
    """`path`, moved from `old` to the same place under `new` where it lies there."""
    real = Path(path).resolve()
    return str(new / real.relative_to(old)) if real.is_relative_to(old) else path
