"""A baseline is a name for a commit: stored by `--gate-record`, compared by `--gate-baseline`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from prooflops_gate import git
from prooflops_gate.history import records
from prooflops_gate.revision import Revision, exactly, fork, shallow

UNFINISHED: Mapping[int, str] = {
    pytest.ExitCode.TESTS_FAILED: "tests failed",
    pytest.ExitCode.INTERRUPTED: "the run was interrupted",
    pytest.ExitCode.NO_TESTS_COLLECTED: "no test ran",
}


def store(name: str, folder: Path, root: Path, status: int) -> str:
    """Names the commit of a run that ended with this exit `status`, and returns a line about it.

    Raises OSError where the history cannot be written.
    """
    commit = git.commit_named(root, "HEAD")
    if status != pytest.ExitCode.OK:
        why = UNFINISHED.get(status, f"the run ended with exit code {int(status)}")
    elif commit is None:
        why = "the project is not under git"
    elif git.is_changed(root):
        why = f"files differ from commit {commit[:9]}"
    else:
        stored = records.store_baseline(folder, name, commit)
        return f"baseline {name}: commit {commit[:9]}, named in {stored}"
    return f"not stored as {name}: {why}"


def revision_of(name: str, folder: Path, root: Path) -> Revision:
    """The commit of a baseline. Raises UsageError if it cannot be checked out beside it."""
    try:
        commit = records.baseline(folder, name)
    except records.UnknownBaseline as error:
        raise pytest.UsageError(str(error)) from error
    if git.repository_of(root) is None:
        why = "the project is not under git"
    elif git.commit_named(root, commit) is None:
        why = f"commit {commit[:9]} is not in this repository{shallow(commit, root)}"
    elif commit == git.commit_named(root, "HEAD") and not git.is_changed(root):
        why = "both sides are the same (--gate-noise-floor is for that)"
    else:
        return exactly(f"the baseline {name}", commit, fork(commit, root))
    raise pytest.UsageError(f"--gate-baseline {name}: {why}")
