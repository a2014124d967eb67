"""Fresh processes of pytest, of this checkout or another side, and the record that each leaves.

Nothing of them outlives the run: the cleanup process (`prooflops.gate.cleanup_process`) removes them, their files and
the worktree of another revision after success, an error, ^C or a kill alike. The user's working tree is never touched.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prooflops.gate import cleanup_process, turns
from prooflops.gate.call_resources import measured_in
from prooflops.gate.child_plugin import RECORD, TASK
from prooflops.machine.core_speed import PATIENCE_S, slow_core

PACKAGE = Path(__file__).resolve().parents[1]
# The child plugin and all that it imports of this package; in a child they are a package of their own, COPY.
COPIED = (
    "gate/child_plugin.py", "gate/call_resources.py", "gate/turns.py", "history/plain.py", "machine/contention.py",
    "machine/cpu.py", "machine/core_speed.py", "machine/instructions.py",
)  # fmt: skip
COPY = "prooflops_gate"
# So many times as long as a process takes, it waits for a core at full speed in all. A pair that is taken again costs
# more where slow spells last: simulated with spells of 0.5 s each, two processes of 64 benchmarks take 12 s a pair that
# can be kept, instead of 20 s with waits of 0.05 s a benchmark.
PATIENCE = 2
PREFIX, OWNER = "prooflops-gate-", "owner"  # of the folder of a run, and the file in it with the run's process
# Variables of the environment that would change or disturb the child's run.
DROPPED = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "GITHUB_STEP_SUMMARY", "PYTEST_VERSION")
NO_BYTECODE, BYTECODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
# Options that belong to the parent or to plain runs: the gate, reports, selection by the last run, saving, coverage. By
# their whole names, and --gate-…: a conftest may have options that begin like these, such as --cache-size.
PARENTS = (
    "--gate", "--junitxml", "--junit-xml", "--junitprefix", "--junit-prefix", "--last-failed", "--lf", "--failed-first",
    "--ff", "--new-first", "--nf", "--last-failed-no-failures", "--lfnf", "--cache-show", "--cache-clear", "--sw",
    "--stepwise", "--sw-skip", "--stepwise-skip", "--sw-reset", "--stepwise-reset", "--exitfirst", "--maxfail",
    "--benchmark-autosave", "--benchmark-save", "--benchmark-save-data", "--benchmark-compare",
    "--benchmark-compare-fail", "--benchmark-json", "--benchmark-histogram", "--benchmark-storage", "--pdb", "--pdbcls",
    "--trace", "--trace-config", "--report-log", "--report-log-exclude-logs-on-passed-tests", "--html",
    "--self-contained-html", "--verbose", "--quiet", "--verbosity", "--rootdir", "--config-file", "--durations",
    "--durations-min", "--inifile", "--benchmark-disable", "--benchmark-skip", "--cov", "--cov-report", "--cov-config",
    "--cov-branch", "--cov-context", "--cov-append", "--cov-fail-under", "--cov-reset", "--no-cov", "--no-cov-on-fail",
)  # fmt: skip
PARENTS_SHORT = ("-v", "-q", "-x", "-c", "-s", "-n", "-r")


class ReplicateFailed(RuntimeError):
    """A process ended without a record: the message says which, how, and what it printed last."""


@dataclass(frozen=True)
class Side:
    """One of the two things compared: which interpreter runs which checkout."""

    label: str
    python: str
    root: Path
    paths: tuple[str, ...] = ()  # goes before everything on PYTHONPATH
    fresh: bool = False  # checked out for this run: without built extensions and submodules


@dataclass(frozen=True)
class Replicate:
    """One process that has ended, and its record: the plugin's, or the part of it that the child plugin knows."""

    side: Side
    record: dict[str, Any]
    prefix: str  # of its interpreter
    modules: dict[str, str]  # imported ones and their files, without site-packages and the standard library
    reports: list[dict[str, Any]]  # of its tests, serialised by pytest
    # Per benchmark, the seconds of its call, and whether its pace is fixed.
    calls: Mapping[str, Mapping[str, Any]]
    wall_s: float  # of the whole process, without the turns of others
    footprint: Mapping[str, Any] = field(default_factory=dict)  # see `turns.footprint`

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """The machine's; None where the plugin was not active."""
        found: dict[str, Any] | None = self.record["prooflops"].get("fingerprint")
        return found


@dataclass(frozen=True)
class _Started:
    """A process that runs."""

    number: int
    side: Side
    process: subprocess.Popen[bytes]
    path: Path  # of the record that it leaves
    output: Path
    began: float


class Replicates:
    """Starts processes, one after the other or two that take turns; a context, at whose end nothing of them is left."""

    def __init__(self, config: pytest.Config, limit_s: float, resources: bool = True) -> None:
        self._config = config
        self._arguments = passed_on(config)
        self._limit_s = limit_s
        self._count = self._trees = 0
        self.examined: Sequence[str] = ()  # benchmarks of which both sides have had a figure
        self._hash_seed = ""  # of the next processes; where empty, each draws its own, as Python does
        self._resources = resources  # whether memory and instructions are measured
        self._by_side: Counter[str] = Counter()  # processes with benchmarks, by label
        self._fastest_s: dict[str, float] = {}  # of the work of `CoreSpeed`, by label: another Python, another figure
        self._patience_s = PATIENCE_S
        self._stack = ExitStack()

    def __enter__(self) -> Replicates:
        self._register = self._stack.enter_context(cleanup_process.running())
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._register("folder", str(self.folder))
        (self.folder / OWNER).write_text(str(os.getpid()), encoding="ascii")
        self._plugins = self.folder / "plugins"
        (self._plugins / COPY).mkdir(parents=True)
        for file in COPIED:
            text = re.sub(
                r"from prooflops\.(gate|history|machine)\b", f"from {COPY}", (PACKAGE / file).read_text("utf-8")
            )
            (self._plugins / COPY / Path(file).name).write_text(text, encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def share_hash_seed(self) -> None:
        """Gives the next processes one hash seed, drawn anew, unless the environment sets one.

        The order within sets and the collisions within dicts follow from it: a part of the noise between processes,
        which cancels within a pair that shares it, and is another one in the next pair.
        """
        if "PYTHONHASHSEED" not in os.environ:
            self._hash_seed = str(int.from_bytes(os.urandom(4), "little"))

    def _of_python(self) -> dict[str, str]:
        """The variables of Python that this run gives its processes."""
        variables = {"PYTHONHASHSEED": self._hash_seed} if self._hash_seed else {}
        if os.environ.get(NO_BYTECODE) and BYTECODE not in os.environ:
            # Each process would compile anew all that it imports: 5 s with torch. So many images set it.
            variables |= {NO_BYTECODE: "", BYTECODE: str(self.folder / "bytecode")}
        return variables

    def worktree(self, repository: Path, revision: str) -> Path:
        """A checkout of `revision` in a folder of its own. Raises UsageError where git refuses."""
        remove_leftovers(repository)
        self._trees += 1
        path = self.folder / f"worktree-{self._trees}"
        self._register("worktree", str(repository), str(path))
        git = subprocess.Popen(
            ["git", "-C", str(repository), "worktree", "add", "--detach", "--force", str(path), revision],
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
        side: Side,
        targets: Sequence[str],
        ids: Sequence[str] | None,
        benchmarks_only: bool = True,
        paces: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Replicate:
        """One process of `side` over the files `targets`, of which it runs `ids` (None: all), paced by `paces`.

        Raises ReplicateFailed for one that crashed, took too long, or could not collect.
        """
        started = self._start(side, targets, ids, benchmarks_only, paces)
        try:
            return self._ended(started, self._limit_s)
        finally:
            self._end(started)

    def run_in_turn(
        self,
        asked: Sequence[tuple[Side, Sequence[str]]],
        ids: Sequence[str],
        paces: Mapping[str, Mapping[str, Any]],
        limit_s: float,
    ) -> list[Replicate]:
        """Processes of these sides over their files, at the same time, in which each test waits for its turn.

        The first side begins with the first test, the next with the second. Raises ReplicateFailed, see `run`.
        """
        started: list[_Started] = []
        with ExitStack() as stack:
            channels: list[socket.socket] = []
            for side, targets in asked:
                here, there = socket.socketpair()
                channels.append(stack.enter_context(here))
                with there:
                    started.append(self._start(side, targets, ids, True, paces, there))
                stack.callback(self._end, started[-1])
            limit_s = min(limit_s, self._limit_s)
            runs = [each.process.poll for each in started]
            turns.give(channels, lambda each: runs[each]() is None, time.monotonic() + limit_s)
            return [self._ended(each, limit_s) for each in started]

    def _start(
        self,
        side: Side,
        targets: Sequence[str],
        ids: Sequence[str] | None,
        benchmarks_only: bool,
        paces: Mapping[str, Mapping[str, Any]] | None,
        turn: socket.socket | None = None,
    ) -> _Started:
        self._count += 1
        stem = self.folder / f"{self._count:04d}"
        path, output = stem.with_suffix(".json"), stem.with_suffix(".txt")
        told = stem.with_suffix(".task")
        task: dict[str, object] = {
            "ids": None if ids is None else list(ids),
            "benchmarks_only": benchmarks_only,
            "paces": dict(paces or {}),
            "examined": list(self.examined),
            "measured": measured_in(self._by_side[side.label]) if self._resources else "",
            "fastest_s": self._fastest_s.get(side.label),
            "patience_s": self._patience_s,
            "turn": turn.fileno() if turn else None,
        }
        variables = self._of_python()
        # Neither settings of the machine, nor for what the tests start.
        task["restore"] = {name: os.environ.get(name) for name in variables}
        told.write_text(json.dumps(task), encoding="utf-8")  # no variable is as long as the ids of 2,000 benchmarks
        variables |= {TASK: str(told), RECORD: str(path)}
        began = time.monotonic()
        process = self._process(side, targets, variables, output, turn)
        return _Started(self._count, side, process, path, output, began)

    def _ended(self, started: _Started, limit_s: float) -> Replicate:
        """What a process leaves, once it has ended."""
        side = started.side
        try:
            code: int | None = started.process.wait(max(started.began + limit_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            code = None
        wall_s = time.monotonic() - started.began
        record = json.loads(started.path.read_text(encoding="utf-8")) if started.path.exists() else {}
        found = record.pop("replicate", None)
        if found is None or code not in (0, 1, 5):
            raise ReplicateFailed(self._failure(started, code, found["errors"] if found else []))
        prefix, modules, reports, calls = (found[key] for key in ("prefix", "modules", "reports", "calls"))
        self._by_side[side.label] += bool(record["benchmarks"])
        self._label_slow(record, side, calls, found["fastest_s"])
        wall_s -= found["idle_s"]
        # In vain where it never ran at full speed: the core may have slowed down for good.
        self._patience_s = PATIENCE * (wall_s - found["waited_s"]) if found["was_fast"] else self._patience_s / 2
        return Replicate(side, record, prefix, modules, reports, calls, wall_s, found["footprint"])

    def _end(self, started: _Started) -> None:
        if started.process.poll() is None:
            _kill(started.process)
        self._register("ended", str(started.process.pid))

    def _label_slow(
        self, record: dict[str, Any], side: Side, calls: Mapping[str, Mapping[str, Any]], fastest_s: float
    ) -> None:
        """Labels the benchmarks during which the core never ran at the speed that any process of this side saw."""
        fastest_s = self._fastest_s[side.label] = min(fastest_s, self._fastest_s.get(side.label, fastest_s))
        for bench in record["benchmarks"]:
            call = calls.get(bench["fullname"], {})
            if why := slow_core(call.get("stretch_s"), fastest_s):
                extra = bench.setdefault("extra_info", {})
                seen = extra.get("contention") or {}
                signs = "; ".join(filter(None, [seen.get("why"), why]))
                slow = {"contended": True, "why": signs, "slowness": call["stretch_s"] / fastest_s}
                extra["contention"] = seen | slow

    def _process(
        self,
        side: Side,
        targets: Sequence[str],
        variables: dict[str, str],
        output: Path,
        turn: socket.socket | None,
    ) -> subprocess.Popen[bytes]:
        command = [side.python, "-m", "pytest", "-p", f"{COPY}.child_plugin", "-o", "addopts="]
        command.append(f"--rootdir={side.root}")
        if self._config.pluginmanager.hasplugin("cacheprovider"):
            command += ["-o", f"cache_dir={self.folder / 'cache'}"]
        inifile = self._config.inipath
        if inifile and inifile.is_relative_to(self._config.rootpath):
            theirs = side.root / inifile.relative_to(self._config.rootpath)
            command += ["-c", str(theirs)] if theirs.exists() else []
        environment = {key: value for key, value in os.environ.items() if key not in DROPPED} | variables
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        moved = [_moved(path, self._config.rootpath, side.root) for path in inherited]
        environment["PYTHONPATH"] = os.pathsep.join([str(self._plugins), *side.paths, *moved])
        with open(output, "wb") as printed:
            child = subprocess.Popen(
                [*command, *self._arguments, *targets],
                cwd=side.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(turn.fileno(),) if turn else (),
            )
        self._register("group", str(child.pid))
        return child

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
        head = f"replicate {started.number} ({side.label}: {side.python} in {side.root}) {how}. It printed:"
        return "\n".join([head, *(errors or printed)])


def environment_of_git() -> dict[str, str]:
    """For git in another worktree: in a hook this names the user's index, and a checkout would overwrite it."""
    return {key: value for key, value in os.environ.items() if key != "GIT_INDEX_FILE"}


def remove_leftovers(repository: Path) -> None:
    """Removes the worktrees of runs that were killed together with their cleanup process; no others."""
    git = ["git", "-C", str(repository), "worktree"]
    listed = subprocess.run([*git, "list", "--porcelain"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        kind, _, path = line.partition(" ")
        folder = Path(path).parent
        if kind == "worktree" and folder.name.startswith(PREFIX) and not _is_owned(folder):
            subprocess.run([*git, "remove", "--force", "--force", path], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def _is_owned(folder: Path) -> bool:
    """Whether the run that made this folder still goes on."""
    try:
        os.kill(int((folder / OWNER).read_text(encoding="ascii")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError):
        return True  # another user's, or just being written: not ours to remove
    return True


def _kill(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        child.kill()
    child.wait()


def _moved(path: str, old: Path, new: Path) -> str:
    """`path`, where it lies under `old`, at the same place under `new`."""
    real = Path(path).resolve()
    return str(new / real.relative_to(old)) if real.is_relative_to(old) else path


def passed_on(config: pytest.Config) -> list[str]:
    """The options of this run that its children get as well: the user's own, and those of other plugins.

    From the ini setting `addopts`, the environment and the command line; without those that belong to the parent, and
    without files and node ids, which differ from child to child.
    """
    words = _words(config.getini("addopts")) + shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    words += [str(word) for word in config.invocation_params.args]
    actions = getattr(getattr(config, "_parser", None), "optparser", None)
    known = getattr(actions, "_option_string_actions", {})
    kept: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-") or word == "-":
            continue
        name, equals, _ = word.partition("=")
        long = name.startswith("--")
        if not long and len(word) > 2 and getattr(known.get(word[:2]), "nargs", None) == 0:
            words.insert(index, "-" + word[2:])  # several options in one word, as in -vk "a or b"
            word = name = word[:2]
        action = known.get(name) or (None if long else known.get(word[:2]))
        takes = action is not None and action.nargs is None and not equals and (long or len(word) == 2)
        value = words[index : index + 1] if takes else []
        index += len(value)
        if name in ("-o", "--override-ini") and (value or [word])[0].startswith("addopts"):
            continue
        if name in PARENTS or name.startswith("--gate-") or (not long and word.startswith(PARENTS_SHORT)):
            continue
        kept += [word, *value]
    return kept


def _words(setting: object) -> list[str]:
    return shlex.split(setting) if isinstance(setting, str) else [str(word) for word in setting]  # type: ignore[attr-defined]
