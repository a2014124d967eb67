"""git's answers about the repository around a folder, whoever started this process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Variables that a hook inherits name the user's repository, index and objects.
# These are the names of `git rev-parse --local-env-vars`, without the configuration that git
# itself passes on to other repositories, and what `git --literal-pathspecs` and a push set.
HOOK_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
    "GIT_GLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_QUARANTINE_PATH",
)


def environment() -> dict[str, str]:
    """This process's environment, without what a hook of git inherits."""
    return {key: value for key, value in os.environ.items() if key not in HOOK_VARIABLES}


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """git in this folder. Raises OSError where it is not installed."""
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment())


def output(root: Path, *words: str) -> str | None:
    """git's output; None where it fails or is not installed."""
    try:
        done = run(root, *words)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def repository_of(root: Path) -> Path | None:
    """The working tree of git around `root`; None where there is none."""
    top = output(root, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def why_none(root: Path) -> str:
    """Git's own words on why there is no repository, such as another owner's in a container."""
    try:
        done = run(root, "rev-parse")
    except OSError:
        return "git is not installed"
    given = "; GIT_DIR is set, and is not read" if "GIT_DIR" in os.environ else ""
    return done.stderr.partition("\n")[0] + given


def commit_named(root: Path, text: str) -> str | None:
    """The commit of a revision; None for one that is unknown here."""
    words = ("--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    return output(root, "rev-parse", *words) or None


def commit_of(root: Path) -> str:
    """The commit that is checked out, in words, and whether files differ from it."""
    commit = output(root, "rev-parse", "--short=9", "HEAD")
    if not commit:
        return "under no version control"
    return commit + (" with changes" if is_changed(root) else "")


def is_changed(root: Path) -> bool:
    """True if files differ from the commit that is checked out."""
    return bool(output(root, "status", "--porcelain", "--untracked-files=no"))


def untracked(root: Path, *options: str) -> list[str]:
    """The paths under `root` that git does not track, as `git ls-files` names them."""
    found = output(root, "ls-files", "-z", "--others", *options)
    return found.split("\0")[:-1] if found else []
