"""The other side of a side-by-side comparison.

Another interpreter, another checkout, or a git revision.

Its processes must import *its* code. They start in its folder, with it (and its `src`) first on the
path, before an installed or editable copy. Their imports are checked afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from prooflops_gate import git
from prooflops_gate.process import Processes
from prooflops_gate.revision import Revision, meant, shallow
from prooflops_gate.task import Side

# The files of compiled code.
BUILT = ("*.so", "*.dylib")


def import_paths(root: Path, here: Path) -> tuple[str, ...]:
    """The first folders on the import path of a side's processes, on both sides alike.

    Under `root`, the counterparts of `here`, its `src`, and the folders of its repository that the
    .pth files of editable installs name.
    """
    top = git.repository_of(here) or here
    lines = []
    for folder in site.getsitepackages():
        for file in sorted(Path(folder).glob("*.pth")):
            lines += file.read_text("utf-8", errors="replace").splitlines()
    # Comments, code and relative paths lie under no folder.
    editable = [path for path in map(Path, lines) if path.is_relative_to(top)]
    relative = [os.path.relpath(folder, here) for folder in (here / "src", here, *editable)]
    moved = [Path(os.path.normpath(root / path)) for path in relative]
    return tuple(str(path) for path in dict.fromkeys(moved) if path.is_dir())


def other_side(text: str, config: pytest.Config, processes: Processes) -> Side:
    """The side that `--gate-versus` names.

    Raises UsageError for one that is unknown, or the same as this.
    """
    root = config.rootpath
    path = Path(text)
    if path.is_dir():
        # A virtual environment's folder means its interpreter.
        if (path / "pyvenv.cfg").is_file() and (path / "bin/python").exists():
            return _interpreter(path / "bin/python", root, text)
        if path.resolve() == root.resolve():
            raise _same(text)
        return Side(
            f"checkout {text} ({git.commit_of(path)})",
            sys.executable,
            path.resolve(),
            import_paths(path.resolve(), root),
        )
    found = shutil.which(text) if os.sep in text or text.startswith(("python", "pypy")) else None
    if found:
        return _interpreter(Path(found).absolute(), root, text)
    return _revision(text, config, processes)


def _same(text: str, why: str = "") -> pytest.UsageError:
    return pytest.UsageError(
        f"--gate-versus {text}: {why}both sides are the same (--gate-noise-floor is for that)"
    )


def _interpreter(python: Path, root: Path, text: str) -> Side:
    question = "import sys, pytest, pytest_benchmark; print(sys.prefix)"
    done = subprocess.run([str(python), "-c", question], capture_output=True, text=True, cwd=root)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise pytest.UsageError(
            f"--gate-versus {text}: that interpreter needs pytest and pytest-benchmark: {last}"
        )
    if done.stdout.strip() == sys.prefix:
        raise _same(text)
    return Side(f"interpreter {text}", str(python), root, import_paths(root, root))


def _revision(text: str, config: pytest.Config, processes: Processes) -> Side:
    root, asked = config.rootpath, f"--gate-versus {text}"
    found = meant(asked, text, root)
    if not found:
        where = f"no revision of this repository{shallow(text, root)}"
        if git.repository_of(root) is None:
            where = f"no git repository ({git.why_none(root)})"
        raise pytest.UsageError(
            f"{asked}: no folder, no interpreter, and {where}; valid: an interpreter "
            "or a virtual environment, the folder of another checkout, or a git revision"
        )
    if found.commit == git.commit_named(root, "HEAD") and not git.is_changed(root):
        raise _same(text, f"{found.label} is checked out here, and ")
    return checkout(found, root, processes)


def checkout(wanted: Revision, root: Path, processes: Processes) -> Side:
    """A commit of the repository around `root`, in a worktree of its own.

    Raises UsageError without such a folder.
    """
    commit, label = wanted
    top = git.repository_of(root)
    assert top, root
    tree = processes.worktree(top, commit)
    inside = tree / root.resolve().relative_to(top.resolve())
    if not inside.is_dir():
        raise pytest.UsageError(f"{label} has no folder {inside.relative_to(tree)}")
    label += _copy_generated(top, tree)
    return Side(label, sys.executable, inside, import_paths(inside, root), fresh=True)


def _copy_generated(top: Path, tree: Path) -> str:
    """Gives a tree the ignored Python files beside tracked ones, such as a version that a build
    wrote; says which.
    """
    copied = [
        name
        for name in git.untracked(top, "--ignored", "--exclude-standard", "--directory")
        if name.endswith(".py") and (tree / name).parent.is_dir() and not (tree / name).exists()
    ]
    for name in copied:
        shutil.copy(top / name, tree / name)
    return f", with {' and '.join(copied)} as this side has it" if copied else ""


BUILD_IT = "prepare a second checkout and give --gate-versus its folder"


def lacking(other: Side, root: Path, failure: str) -> str:
    """The likely reason of this failure in a fresh checkout; empty if there is none.

    The checkout at `root` has something that a fresh one lacks.
    """
    if not other.fresh:
        return ""
    found = [f"{name}, which git does not track" for name in _untracked_in(failure, other, root)]
    if not found:
        built = git.untracked(root, "--ignored", "--exclude-standard", "--", *BUILT)
        own = [file for file in built if "site-packages" not in file]
        found += [f"built extensions ({own[0]})"] if own else []
        top = git.repository_of(root) or root
        found += ["submodules"] if (top / ".gitmodules").exists() else []
    return f"A checkout of a revision has no {' and no '.join(found)}: {BUILD_IT}" if found else ""


def _untracked_in(failure: str, other: Side, root: Path) -> list[str]:
    """The paths named in the text of a failure that git does not track at `root`, and `other`
    lacks.
    """
    words = re.split(r"[\s'\"(),:;=<>]+", failure)
    named = [word.rstrip(".") for word in words if "/" in word or "." in word]
    found = []
    for name in (*re.findall(r"['\"]([^'\"\n]+)['\"]", failure), *named):
        there = Path(os.path.normpath(other.root / name))
        relative = os.path.relpath(there, other.root)
        if (root / relative).exists() and not there.exists():
            found += [relative] if git.untracked(root, "--directory", "--", relative) else []
    return list(dict.fromkeys(found))


def targets(config: pytest.Config, other: Side) -> list[str]:
    """The paths that the other side collects at first.

    The arguments of this run, as far as they exist there.
    """
    base, root = config.invocation_params.dir, config.rootpath.resolve()
    paths = [(base / argument.partition("::")[0]).resolve() for argument in config.args]
    found = [str(path.relative_to(root)) for path in paths if path.is_relative_to(root)]
    if not (there := existing(found, other)):
        raise pytest.UsageError(
            f"{other.label} has none of {', '.join(found)}: there is nothing to compare with"
        )
    return there


def existing(files: Sequence[str], side: Side) -> list[str]:
    """Those of the files that this side has."""
    return [file for file in dict.fromkeys(files) if (side.root / file).exists()]
