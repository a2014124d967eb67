"""Tries the gate on public projects' own benchmarks.

`make gate-field ARGS="prepare PROJECT"` makes a clone, a virtual environment and trial commits;
`ARGS="run PROJECT TRIAL"` runs the gate with its defaults, HEAD against HEAD~1.

TRIAL: unchanged, slight (about 5 % more work), twice (a main function does its work twice).
--folder holds all of it, and a line a run in results.jsonl.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TRIALS = ("unchanged", "slight", "twice")
GATE_NEEDS = ("pytest>=8.0", "pytest-benchmark>=5.0", "numpy>=1.23", "scipy>=1.11")
# The gate's budget is 10 min.
LONGEST_RUN_S = 900.0
TWICE = """
def _twice(function):
    return lambda *args, **kwargs: (function(*args, **kwargs), function(*args, **kwargs))[1]
"""


@dataclass(frozen=True)
class Project:
    """A repository, how its benchmarks are run, and what is planted.

    It is a row of projects.toml, explained there.
    """

    url: str
    commit: str
    suite: Sequence[str]
    path: str
    slight: Mapping[str, str] = field(default_factory=dict)
    twice: Sequence[str] = ()
    packages: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    # A project drawn by the rule is developing, or held out.
    role: str = ""


ROWS = tomllib.loads((Path(__file__).parent / "projects.toml").read_text(encoding="utf-8"))
PROJECTS = {name: Project(**row) for name, row in ROWS.items()}


def call(*command, cwd=None):
    """Raises SystemExit with the output of a command that fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))} in {cwd} failed:\n"
            f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )


def prepare(folder, name):
    """Makes a project's clone, environment and trial commits, as far as they are not there."""
    project, home = PROJECTS[name], folder / name
    home.mkdir(parents=True, exist_ok=True)
    repo, part = home / "repo", home / "repo.part"
    if not repo.exists():
        shutil.rmtree(part, ignore_errors=True)
        call("git", "clone", "-q", project.url, part)
        call("git", "checkout", "-q", "-b", "base", project.commit, cwd=part)
        part.rename(repo)
    if not (home / "venv" / "done").exists():
        shutil.rmtree(home / "venv", ignore_errors=True)
        call(sys.executable, "-m", "venv", home / "venv")
        for packages in (["-U", "pip"], [*GATE_NEEDS, *project.packages]):
            call(home / "venv/bin/python", "-m", "pip", "install", "-q", *packages, cwd=repo)
        (home / "venv" / "done").touch()
    for trial in trials_of(project):
        make_trial(project, trial, repo)


def trials_of(project):
    """The trials that this project has something to plant for, and the unchanged one."""
    return [trial for trial in TRIALS if trial == "unchanged" or getattr(project, trial)]


def make_trial(project, trial, repo):
    """A branch of one commit on top of the base: the planted slowdown, or nothing."""
    call("git", "checkout", "-q", "--force", "-B", trial, "base", cwd=repo)
    for function, work in project.slight.items() if trial == "slight" else ():
        plant_slight(repo, function, work)
    for function in project.twice if trial == "twice" else ():
        plant_twice(repo, function)
    author = ("-c", "user.name=field", "-c", "user.email=field@localhost")
    options = ("-qa", "--allow-empty", "--no-verify", "--no-gpg-sign")
    call("git", *author, "commit", *options, "-m", trial, cwd=repo)


def source_of(repo, function):
    """The file of a function, its text, and the function's name and definition there."""
    file, _, name = function.rpartition(":")
    text = (repo / file).read_text(encoding="utf-8")
    node = ast.parse(text)
    for part in name.split("."):
        found = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part]
        if not found:
            raise SystemExit(f"no {part} in {file}: has the project changed?")
        # Those before the last are overloads.
        node = found[-1]
    return repo / file, text, name, node


def plant_slight(repo, function, work):
    """Puts statements at the beginning of a function, behind its docstring."""
    path, text, _, node = source_of(repo, function)
    first = node.body[1] if ast.get_docstring(node) is not None else node.body[0]
    lines = text.splitlines(keepends=True)
    lines.insert(first.lineno - 1, " " * first.col_offset + work + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def plant_twice(repo, function):
    """Has a function do its work twice, by a wrapper at the end of its file."""
    path, text, name, node = source_of(repo, function)
    wrapped = f"_twice({name})"
    if "staticmethod" in map(ast.unparse, node.decorator_list):
        wrapped = f"staticmethod({wrapped})"
    helper = "" if "def _twice" in text else TWICE
    path.write_text(f"{text}{helper}{name} = {wrapped}\n", encoding="utf-8")


def suite(folder, name, revision, *words):
    """Runs a project's benchmarks at a revision, with more options of pytest."""
    project, home, plugin = PROJECTS[name], folder / name, folder / "plugin"
    plugin.mkdir(exist_ok=True)
    (plugin / "prooflops_gate").unlink(missing_ok=True)
    (plugin / "prooflops_gate").symlink_to(ROOT / "prooflops_gate")
    call("git", "checkout", "-q", "--force", revision, cwd=home / "repo")
    command = ["timeout", "--foreground", LONGEST_RUN_S]
    command += [home / "venv/bin/python", "-m", "pytest", *project.suite, *words]
    paths = os.pathsep.join(map(str, (plugin, home / "repo" / project.path)))
    variables = os.environ | project.environment | {"PYTHONPATH": paths}
    return subprocess.run(
        list(map(str, command)), cwd=home / "repo", env=variables, capture_output=True, text=True
    )


def run(folder, name, trial):
    """One run of the gate with its defaults."""
    trials = trials_of(PROJECTS[name])
    if trial not in trials:
        raise SystemExit(f"{name} has no trial {trial}; there is {', '.join(trials)}")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "gate.json"
        start = time.time()
        gate = ("-p", "prooflops_gate.plugin", "--gate", "--gate-versus", "HEAD~1")
        done = suite(folder, name, trial, *gate, f"--gate-json={file}")
        wall_s = time.time() - start
        if not file.exists():
            raise SystemExit(done.stdout + done.stderr)
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return {
        "project": name,
        "trial": trial,
        "exit": done.returncode,
        "wall_s": round(wall_s, 1),
        "verdicts": Counter(row["verdict"] for row in rows),
        "rows": rows,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    home = Path(tempfile.gettempdir()) / "prooflops-field"
    parser.add_argument("--folder", type=Path, default=home)
    parser.add_argument("command", choices=["prepare", "run"])
    parser.add_argument("project", choices=PROJECTS)
    parser.add_argument("trial", choices=TRIALS, nargs="?", default="unchanged")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.command == "prepare":
        prepare(folder, options.project)
        return
    found = run(folder, options.project, options.trial)
    with open(folder / "results.jsonl", "a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")
    counts = [f"{count} {verdict}" for verdict, count in sorted(found["verdicts"].items())]
    print(f"exit {found['exit']} after {found['wall_s']:.0f} s: {', '.join(counts)}")


if __name__ == "__main__":
    main()
