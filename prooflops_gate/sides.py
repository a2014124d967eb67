"""The other side of a side-by-side comparison.

Another interpreter, another checkout, or a git revision.

Its processes must import *its* code. They start in its folder, with it (and its `src`) first on the
path, before an installed or editable copy. Their imports are checked afterwards, and this side's
code there is refused.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from prooflops_gate.process import Processes
from prooflops_gate.task import Pair, Replicate, Side


def import_paths(root: Path, here: Path) -> tuple[str, ...]:
    """The first folders on the import path of a side's processes, on both sides alike.

    Under `root`, the counterparts of `here`, its `src`, and the folders of its repository that the
    .pth files of editable installs name.
    """
    top = repository_of(here) or here
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
        for inside in (
            "bin/python",
            "Scripts/python.exe",
        ):
            if (path / "pyvenv.cfg").is_file() and (path / inside).exists():
                return _interpreter(path / inside, root, text)
        if path.resolve() == root.resolve():
            raise _same(text)
        return Side(
            f"checkout {text} ({commit_of(path)})",
            sys.executable,
            path.resolve(),
            import_paths(path.resolve(), root),
        )
    found = shutil.which(text) if os.sep in text or text.startswith(("python", "pypy")) else None
    if found:
        return _interpreter(Path(found).absolute(), root, text)
    return _revision(text, config, processes)


def _same(text: str) -> pytest.UsageError:
    return pytest.UsageError(
        f"--gate-versus {text}: both sides are the same (--gate-noise-floor is for that)"
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


def repository_of(root: Path) -> Path | None:
    """The working tree of git around `root`; None where there is none."""
    top = git(root, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def commit_named(root: Path, text: str) -> str | None:
    """The commit of a revision; None for one that is unknown here."""
    return (
        git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
        or None
    )


def is_changed(root: Path) -> bool:
    """Whether files differ from the commit that is checked out."""
    return bool(git(root, "status", "--porcelain", "--untracked-files=no"))


def git(root: Path, *words: str) -> str | None:
    """git's output; None where it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _why_none(root: Path) -> str:
    """Git's own words on why there is no repository, such as another owner's in a container."""
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse"], capture_output=True, text=True)
    except OSError:
        return "git is not installed"
    return done.stderr.partition("\n")[0]


def commit_of(root: Path) -> str:
    """The commit that is checked out, in words, and whether files differ from it."""
    commit = git(root, "rev-parse", "--short=9", "HEAD")
    if not commit:
        return "under no version control"
    return commit + (" with changes" if is_changed(root) else "")


def _revision(text: str, config: pytest.Config, processes: Processes) -> Side:
    root = config.rootpath
    top, commit = repository_of(root), commit_named(root, text)
    if top is None or not commit:
        shallow = git(root, "rev-parse", "--is-shallow-repository") == "true"
        fetch = (
            ", a shallow clone: `git fetch --unshallow`, or `fetch-depth: 0` in a workflow"
            if shallow
            else ""
        )
        where = (
            f"no revision of this repository{fetch}"
            if top
            else f"no git repository ({_why_none(root)})"
        )
        raise pytest.UsageError(
            f"--gate-versus {text}: no folder, no interpreter, and {where}; valid: an interpreter "
            "or a virtual environment, the folder of another checkout, or a git revision"
        )
    if commit == commit_named(root, "HEAD") and not is_changed(root):
        raise _same(text)
    return checkout(commit, f"revision {text} ({commit[:9]})", root, processes)


def checkout(commit: str, label: str, root: Path, processes: Processes) -> Side:
    """A commit of the repository around `root`, in a worktree of its own.

    Raises UsageError without such a folder.
    """
    top = repository_of(root)
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
    ignored = (
        git(top, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory") or ""
    )
    wanted = [
        name
        for name in ignored.splitlines()
        if name.endswith(".py") and (tree / name).parent.is_dir()
    ]
    copied = [name for name in wanted if not (tree / name).exists()]
    for name in copied:
        shutil.copy(top / name, tree / name)
    return f", with {' and '.join(copied)} as this side has it" if copied else ""


BUILD_IT = "build a second checkout and give --gate-versus its folder"


def lacking(other: Side, root: Path) -> str:
    """Built files that the checkout at `root` has and a fresh one lacks, as the likely reason of a
    failure there.
    """
    built = (
        git(root, "ls-files", "--others", "--ignored", "--exclude-standard", "--", "*.so", "*.pyd")
        or ""
    )
    files = [file for file in built.splitlines() if "site-packages" not in file]
    found = [f"built extensions ({files[0]})"] if files else []
    found += ["submodules"] if ((repository_of(root) or root) / ".gitmodules").exists() else []
    return (
        f"\nA checkout of a revision has no {' and no '.join(found)}: {BUILD_IT}"
        if other.fresh and found
        else ""
    )


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
    """Those files that this side has."""
    return [file for file in dict.fromkeys(files) if (side.root / file).exists()]


def check_origins(pair: Pair, root: Path, asked: str) -> None:
    """Refuses a comparison in which the other side ran this side's code, or either ran an installed
    copy of it.
    """
    before, after = pair
    if before.side.root == after.side.root:
        if before.prefix == after.prefix:
            same = "both sides are the same (--gate-noise-floor is for that)"
            raise pytest.UsageError(f"{asked}: {same}")
        return
    roots = [repository_of(side.root) or side.root for side in (before.side, after.side)]
    if roots[0] == roots[1]:
        # Two folders of one repository.
        roots = [before.side.root, after.side.root]
    theirs, ours = (each.resolve() for each in roots)
    for done, own, foreign in ((before, theirs, ours), (after, ours, theirs)):
        for name, file in done.modules.items():
            if _is_foreign(Path(file), foreign, own, Path(done.prefix)):
                raise pytest.UsageError(
                    f"{asked}: {done.side.label} (in {done.side.root}) imported {name} from {file},"
                    " which is the other side's: both would run the same code; see PYTHONPATH"
                )
    theirs_built, ours_built = _built(before), _built(after)
    if before.side.fresh and ours_built and not theirs_built:
        raise pytest.UsageError(
            f"{asked}: this side imported the built extension {ours_built[0]}, which a checkout of "
            f"a revision lacks: other code would be compared; {BUILD_IT}"
        )
    if not before.modules and not after.modules:
        raise pytest.UsageError(f"{asked}: neither side imported anything from {root}")


def _is_foreign(file: Path, foreign: Path, own: Path, prefix: Path) -> bool:
    """Whether a file is the other side's: interpreters may lie within a checkout."""
    is_own = file.is_relative_to(own) or file.is_relative_to(prefix)
    return file.is_relative_to(foreign) and not is_own


def _built(done: Replicate) -> list[str]:
    """The compiled modules that a process imported."""
    return [file for file in done.modules.values() if file.endswith((".so", ".pyd"))]
