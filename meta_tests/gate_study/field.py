"""Tries the gate on public projects' own benchmarks: `make gate-field ARGS="prepare"`, then `ARGS="run pluggy twice"`.

prepare [PROJECT ...]              clones, virtual environments and trial commits
run PROJECT TRIAL [--runs N]       the gate with its defaults, HEAD against HEAD~1; a line of JSON per run

TRIAL: unchanged, slight (about 5 % more work), twice (a main function does its work twice). --folder holds all of it,
and results.jsonl. --source NAME=DIR clones a project from a folder instead of its URL.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TRIALS = ("unchanged", "slight", "twice")
GATE_NEEDS = ("pytest>=8.0", "pytest-benchmark>=5.0", "numpy>=1.23", "scipy>=1.11")
LONGEST_S = 900.0  # of a run: the gate's budget is 10 min
TWICE = """

def _twice(function):
    def both(*args, **kwargs):
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return both


"""


@dataclass(frozen=True)
class Project:
    """A repository, how its benchmarks are run, and what is planted: a row of projects.toml, explained there."""

    url: str
    commit: str
    suite: Sequence[str]
    path: str
    slight: Mapping[str, str] = field(default_factory=dict)
    twice: Sequence[str] = ()
    packages: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


ROWS = tomllib.loads((Path(__file__).parent / "projects.toml").read_text(encoding="utf-8"))
PROJECTS = {name: Project(**row) for name, row in ROWS.items()}


def call(*command: object, cwd: Path | None = None, **variables: str) -> str:
    """The output of a command. Raises SystemExit with it where the command fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=os.environ | variables, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} in {cwd} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def prepare(folder: Path, name: str, source: str | None, python: str) -> None:
    """Makes a project's clone, environment and trial commits, as far as they are not there."""
    project, home = PROJECTS[name], folder / name
    home.mkdir(parents=True, exist_ok=True)
    plugin = folder / "plugin"
    plugin.mkdir(exist_ok=True)
    (plugin / "prooflops").unlink(missing_ok=True)
    (plugin / "prooflops").symlink_to(ROOT / "prooflops")
    if not (home / "venv" / "done").exists():
        shutil.rmtree(home / "venv", ignore_errors=True)
        call(python, "-m", "venv", home / "venv")
        call(home / "venv/bin/python", "-m", "pip", "install", "-q", *GATE_NEEDS, *project.packages)
        (home / "venv" / "done").touch()
    repo = home / "repo"
    if not repo.exists():
        clone(project, source, repo)
    for trial in trials_of(project):
        make_trial(project, trial, repo)


def trials_of(project: Project) -> list[str]:
    """The trials that this project has something to plant for, and the unchanged one."""
    return [trial for trial in TRIALS if trial == "unchanged" or getattr(project, trial)]


def clone(project: Project, source: str | None, repo: Path) -> None:
    """The project at its commit, on a branch `base`."""
    part = repo.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    call("git", "clone", "-q", source or project.url, part)
    call("git", "checkout", "-q", "-b", "base", project.commit, cwd=part)
    part.rename(repo)


def commit(repo: Path, message: str) -> None:
    call("git", "add", "--all", cwd=repo)
    author = ("-c", "user.name=field", "-c", "user.email=field@localhost", "-c", "commit.gpgsign=false")
    call("git", *author, "commit", "-q", "--allow-empty", "--no-verify", "-m", message, cwd=repo)


def make_trial(project: Project, trial: str, repo: Path) -> None:
    """A branch of one commit on top of the base: the planted slowdown, or nothing."""
    call("git", "checkout", "-q", "--force", "-B", trial, "base", cwd=repo)
    if trial == "slight":
        for function, work in project.slight.items():
            plant_slight(repo, function, work)
    elif trial == "twice":
        for function in project.twice:
            plant_twice(repo, function)
    commit(repo, trial)


def source_of(repo: Path, function: str) -> tuple[Path, str, str, ast.FunctionDef]:
    """The file of a function, its text, and the function's name and definition there."""
    file, _, name = function.rpartition(":")
    text = (repo / file).read_text(encoding="utf-8")
    return repo / file, text, name, definition(ast.parse(text), name.split("."))


def plant_slight(repo: Path, function: str, work: str) -> None:
    """Puts statements at the beginning of a function, behind its docstring."""
    path, text, _, node = source_of(repo, function)
    first = node.body[1] if ast.get_docstring(node) is not None else node.body[0]
    lines = text.splitlines(keepends=True)
    lines.insert(first.lineno - 1, " " * first.col_offset + work + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def definition(tree: ast.AST, names: Sequence[str]) -> ast.FunctionDef:
    """The last definition of that name: those before it are overloads."""
    found = [node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == names[0]]
    if not found:
        raise SystemExit(f"no {names[0]} in the file: has the project changed?")
    if len(names) > 1:
        return definition(found[-1], names[1:])
    assert isinstance(found[-1], ast.FunctionDef)
    return found[-1]


def plant_twice(repo: Path, function: str) -> None:
    """Has a function do its work twice, by a wrapper at the end of its file."""
    path, text, name, _ = source_of(repo, function)
    path.write_text(text + (TWICE if "def _twice" not in text else "") + f"{name} = _twice({name})\n", encoding="utf-8")


def environment(folder: Path, name: str) -> dict[str, str]:
    project = PROJECTS[name]
    paths = (folder / "plugin", folder / name / "repo" / project.path)
    return {**project.environment, "PYTHONPATH": os.pathsep.join(str(path.resolve()) for path in paths)}


def run(folder: Path, name: str, trial: str) -> dict[str, Any]:
    """One run of the gate with its defaults, appended to results.jsonl."""
    project, home = PROJECTS[name], folder / name
    repo = home / "repo"
    if trial not in trials_of(project):
        raise SystemExit(f"nothing is planted into {name} for {trial}; there is {', '.join(trials_of(project))}")
    call("git", "checkout", "-q", "--force", trial, cwd=repo)
    command = [home / "venv/bin/python", "-m", "pytest", *project.suite, "-p", "prooflops.plugin"]
    with tempfile.TemporaryDirectory() as scratch:
        xml = Path(scratch) / "gate.xml"
        command += ["--gate", "--gate-versus", "HEAD~1", f"--junitxml={xml}", "-o", "junit_family=xunit1"]
        before, start = os.times(), time.time()
        done = subprocess.run(
            [str(word) for word in command],
            cwd=repo,
            env=os.environ | environment(folder, name),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
        )
        wall_s, after = time.time() - start, os.times()
        rows = verdicts(xml) if xml.exists() else {}
    printed = done.stdout.splitlines()
    pairs = re.search(r"^(\d+) pairs in", done.stdout, re.MULTILINE)
    result = {
        "project": name,
        "trial": trial,
        "started": round(start),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(after[2] + after[3] - before[2] - before[3], 1),
        "load": os.getloadavg()[0],
        "exit": done.returncode,
        "pairs": int(pairs[1]) if pairs else 0,
        "rows": rows,
        "printed": printed[-60:],
    }
    with open(folder / "results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    return result


def verdicts(xml: Path) -> dict[str, dict[str, Any]]:
    """Verdict, ratio, bounds and noise by benchmark, from the properties that the gate gives to its tests."""
    found = {}
    for case in ET.parse(xml).getroot().iter("testcase"):
        row = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        if "gate.time" in row:
            keys = [key for key in ("ratio", "low", "high", "noise") if f"gate.time.{key}" in row]
            figures = {key: float(row[f"gate.time.{key}"]) for key in keys}
            found[f"{case.get('file')}::{case.get('name')}"] = {"verdict": row["gate.time"], **figures}
    return found


def show(result: Mapping[str, Any]) -> None:
    counts = Counter(row["verdict"] for row in result["rows"].values())
    print(
        f"{result['project']} {result['trial']}: exit {result['exit']}, {result['pairs']} pairs, "
        f"{result['wall_s']:.0f} s: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}",
        flush=True,
    )
    if not counts:
        print("\n".join(result["printed"][-20:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "prooflops-field")
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("projects", nargs="*", choices=[*PROJECTS, []])
    preparing.add_argument("--source", action="append", default=[], metavar="NAME=DIR")
    preparing.add_argument("--python", default=sys.executable)
    running = commands.add_parser("run")
    running.add_argument("project", choices=PROJECTS)
    running.add_argument("trial", choices=TRIALS)
    running.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.command == "prepare":
        sources = dict(each.split("=", 1) for each in options.source)
        for name in options.projects or PROJECTS:
            prepare(folder, name, sources.get(name), options.python)
    else:
        for _ in range(options.runs):
            show(run(folder, options.project, options.trial))


if __name__ == "__main__":
    main()
