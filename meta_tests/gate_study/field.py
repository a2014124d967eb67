"""Tries the gate on public projects' own benchmarks.

`make gate-field ARGS="prepare"`, then `ARGS="run pluggy twice"`.

prepare [PROJECT ...]           clones, virtual environments and trial commits
run PROJECT TRIAL [--runs N]    the gate with its defaults, HEAD against HEAD~1; JSON, a line a run
study [--held-out] [--runs N]   all runs of the drawn projects that the results lack
table                           the results as Markdown

TRIAL: unchanged, slight (about 5 % more work), twice (a main function does its work twice).
--load busy keeps one core busy. --folder holds all of it, and results.jsonl.
--source NAME=DIR clones a project from a folder instead of its URL.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TRIALS, LOADS = ("unchanged", "slight", "twice"), ("quiet", "busy")
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


def call(*command: object, cwd: Path | None = None) -> None:
    """Raises SystemExit with the output of a command that fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))} in {cwd} failed:\n"
            f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )


def prepare(folder: Path, name: str, source: str | None, python: str) -> None:
    """Makes a project's clone, environment and trial commits, as far as they are not there."""
    project, home = PROJECTS[name], folder / name
    home.mkdir(parents=True, exist_ok=True)
    repo, part = home / "repo", home / "repo.part"
    if not repo.exists():
        shutil.rmtree(part, ignore_errors=True)
        call("git", "clone", "-q", source or project.url, part)
        call("git", "checkout", "-q", "-b", "base", project.commit, cwd=part)
        part.rename(repo)
    if not (home / "venv" / "done").exists():
        shutil.rmtree(home / "venv", ignore_errors=True)
        call(python, "-m", "venv", home / "venv")
        for packages in (["-U", "pip"], [*GATE_NEEDS, *project.packages]):
            call(home / "venv/bin/python", "-m", "pip", "install", "-q", *packages, cwd=repo)
        (home / "venv" / "done").touch()
    for trial in trials_of(project):
        make_trial(project, trial, repo)


def trials_of(project: Project) -> list[str]:
    """The trials that this project has something to plant for, and the unchanged one."""
    return [trial for trial in TRIALS if trial == "unchanged" or getattr(project, trial)]


def make_trial(project: Project, trial: str, repo: Path) -> None:
    """A branch of one commit on top of the base: the planted slowdown, or nothing."""
    call("git", "checkout", "-q", "--force", "-B", trial, "base", cwd=repo)
    for function, work in project.slight.items() if trial == "slight" else ():
        plant_slight(repo, function, work)
    for function in project.twice if trial == "twice" else ():
        plant_twice(repo, function)
    author = (
        "-c",
        "user.name=field",
        "-c",
        "user.email=field@localhost",
        "-c",
        "commit.gpgsign=false",
    )
    call("git", *author, "commit", "-qa", "--allow-empty", "--no-verify", "-m", trial, cwd=repo)


def source_of(repo: Path, function: str) -> tuple[Path, str, str, Any]:
    """The file of a function, its text, and the function's name and definition there."""
    file, _, name = function.rpartition(":")
    text = (repo / file).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        found = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part]
        if not found:
            raise SystemExit(f"no {part} in {file}: has the project changed?")
        # Those before the last are overloads.
        node = found[-1]
    return repo / file, text, name, node


def plant_slight(repo: Path, function: str, work: str) -> None:
    """Puts statements at the beginning of a function, behind its docstring."""
    path, text, _, node = source_of(repo, function)
    first = node.body[1] if ast.get_docstring(node) is not None else node.body[0]
    lines = text.splitlines(keepends=True)
    lines.insert(first.lineno - 1, " " * first.col_offset + work + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def plant_twice(repo: Path, function: str) -> None:
    """Has a function do its work twice, by a wrapper at the end of its file."""
    path, text, name, node = source_of(repo, function)
    static = any(
        isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list
    )
    wrapped = f"staticmethod(_twice({name}))" if static else f"_twice({name})"
    path.write_text(
        text + (TWICE if "def _twice" not in text else "") + f"{name} = {wrapped}\n",
        encoding="utf-8",
    )


def suite(
    folder: Path, name: str, revision: str, *words: object
) -> subprocess.CompletedProcess[str]:
    """Runs a project's benchmarks at a revision, with more options of pytest."""
    project, home, plugin = PROJECTS[name], folder / name, folder / "plugin"
    plugin.mkdir(exist_ok=True)
    (plugin / "prooflops").unlink(missing_ok=True)
    (plugin / "prooflops").symlink_to(ROOT / "prooflops")
    call("git", "checkout", "-q", "--force", revision, cwd=home / "repo")
    command = [
        "timeout",
        "--foreground",
        LONGEST_RUN_S,
        home / "venv/bin/python",
        "-m",
        "pytest",
        *project.suite,
        *words,
    ]
    paths = os.pathsep.join(map(str, (plugin, home / "repo" / project.path)))
    variables = os.environ | project.environment | {"PYTHONPATH": paths}
    return subprocess.run(
        list(map(str, command)), cwd=home / "repo", env=variables, capture_output=True, text=True
    )


def fails_min_5(folder: Path, name: str, trial: str, storage: str) -> int | None:
    """Benchmarks that fail pytest-benchmark's min:5% between two plain runs.

    None where it cannot compare them.
    """
    options = [
        "--benchmark-enable",
        f"--benchmark-storage=file://{storage}",
        "--benchmark-save=run",
    ]
    suite(folder, name, f"{trial}~1", *options)
    done = suite(
        folder, name, trial, *options, "--benchmark-compare=0001", "--benchmark-compare-fail=min:5%"
    )
    found = done.stderr.count("has failed PercentageRegressionCheck")
    return None if done.returncode and not found else found


def run(folder: Path, name: str, trial: str, load: str) -> dict[str, Any]:
    """One run of the gate with its defaults beside that load, appended to results.jsonl."""
    trials = trials_of(PROJECTS[name])
    if trial not in trials:
        raise SystemExit(
            f"nothing is planted into {name} for {trial}; there is {', '.join(trials)}"
        )
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        if load == "busy":
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        file, start = Path(scratch) / "gate.json", time.time()
        gate = (
            "-p",
            "prooflops_gate.plugin",
            "--gate",
            "--gate-versus",
            "HEAD~1",
            f"--gate-json={file}",
        )
        done = suite(folder, name, trial, *gate)
        wall_s = time.time() - start
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
        min_5 = fails_min_5(folder, name, trial, scratch)
    pairs = re.search(r"(\d+) pairs in", done.stdout)
    result = {
        "project": name,
        "role": PROJECTS[name].role,
        "trial": trial,
        "load": load,
        "started": round(start),
    }
    result |= {
        "exit": done.returncode,
        "pairs": int(pairs[1]) if pairs else 0,
        "wall_s": round(wall_s, 1),
    }
    result |= {
        "verdicts": Counter(row["verdict"] for row in rows),
        "reds": sum(row["fails"] for row in rows),
    }
    result |= {
        "tiers": Counter(row["decided_by"] for row in rows if row["verdict"] != "INCONCLUSIVE"),
        "min_5": min_5,
    }
    result |= {"rows": rows, "printed": (done.stdout + done.stderr).splitlines()[-60:]}
    with open(folder / "results.jsonl", "a", encoding="utf-8") as lines:
        lines.write(json.dumps(result) + "\n")
    return result


def results(folder: Path) -> list[dict[str, Any]]:
    file = folder / "results.jsonl"
    return (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if file.exists()
        else []
    )


def study(folder: Path, role: str, runs: int) -> None:
    """The runs of the projects of a role that the results lack."""
    done = Counter((each["project"], each["trial"], each.get("load")) for each in results(folder))
    for name, project in PROJECTS.items():
        for trial, load in itertools.product(
            trials_of(project) if project.role == role else (), LOADS
        ):
            for _ in range(runs - done[name, trial, load]):
                show(run(folder, name, trial, load))


def table(folder: Path) -> None:
    """The drawn projects' results by suite and by role.

    Runs that fail, verdicts, what decided them, and seconds.
    """
    columns = (
        "runs|exit 1|ended in 2 min|min:5% red|benchmarks|same|found|open"
        "|by time|by instructions|s, median"
    )
    print(f"|role|suite|trial|load|{columns}|\n|{'---|' * 15}")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in results(folder):
        for suite in (each["project"], "all") if each.get("role") else ():
            groups.setdefault((each["role"], suite, each["trial"], each["load"]), []).append(each)
    for key, runs in sorted(groups.items()):
        counts: Counter[str] = Counter()
        tiers: Counter[str] = Counter()
        for each in runs:
            counts.update(each["verdicts"])
            tiers.update(each["tiers"])
        figures = [
            len(runs),
            sum(each["exit"] != 0 for each in runs),
            sum(each["wall_s"] <= 120 for each in runs),
        ]
        figures += [sum(bool(each["min_5"]) for each in runs), counts.total(), counts["SAME"]]
        figures += [
            counts["SLOWER"] + counts["MORE INSTRUCTIONS"],
            counts["INCONCLUSIVE"],
            tiers["time"],
        ]
        figures += [tiers["instructions"], round(median(each["wall_s"] for each in runs))]
        print(f"|{'|'.join(map(str, (*key, *figures)))}|")


def show(result: Mapping[str, Any]) -> None:
    counts = ", ".join(
        f"{count} {verdict}" for verdict, count in sorted(result["verdicts"].items())
    )
    counts = counts or "\n".join(result["printed"][-20:])
    run = f"{result['project']} {result['trial']} {result['load']}"
    ended = f"exit {result['exit']}, {result['pairs']} pairs, {result['wall_s']:.0f} s"
    print(f"{run}: {ended}: {counts}; min:5% fails {result['min_5']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "prooflops-field"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("projects", nargs="*", choices=[*PROJECTS, []])
    preparing.add_argument("--source", action="append", default=[], metavar="NAME=DIR")
    preparing.add_argument("--python", default=sys.executable)
    running = commands.add_parser("run")
    running.add_argument("project", choices=PROJECTS)
    running.add_argument("trial", choices=TRIALS)
    running.add_argument("--load", choices=LOADS, default="quiet")
    studying = commands.add_parser("study")
    studying.add_argument(
        "--held-out", dest="role", action="store_const", const="held out", default="developing"
    )
    for each in (running, studying):
        each.add_argument("--runs", type=int, default=1)
    commands.add_parser("table")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.command == "prepare":
        for name in options.projects or PROJECTS:
            prepare(
                folder,
                name,
                dict(each.split("=", 1) for each in options.source).get(name),
                options.python,
            )
    elif options.command == "study":
        study(folder, options.role, options.runs)
    elif options.command == "table":
        table(folder)
    else:
        for _ in range(options.runs):
            show(run(folder, options.project, options.trial, options.load))


if __name__ == "__main__":
    main()
