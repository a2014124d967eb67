"""The commit that `--gate-versus` and `--gate-bisect` mean by a revision.

A branch moves on, and what others changed in it is not this checkout's doing. So the name of a
branch means the merge base, at which this checkout left it. Any other revision is that commit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from prooflops_gate import git
from prooflops_gate.console.tables import many

BRANCHES = ("refs/heads/", "refs/remotes/", "FETCH_HEAD")
# `git merge` names in its hooks what it merges by this and the commit.
MERGED = "GITHEAD_"


class Revision(NamedTuple):
    """A commit, and what it is, in words."""

    commit: str
    label: str


class Fork(NamedTuple):
    """The commit at which a commit and this checkout part.

    `ahead` commits are in its history alone. `is_cut_off` says that a commit behind the bases lacks
    its parents, as in a shallow clone: they may lead to a later base.
    """

    bases: Sequence[str]
    ahead: int
    is_cut_off: bool


def meant(asked: str, text: str, root: Path) -> Revision | None:
    """The commit that a text means; None where it is unknown here.

    Raises UsageError, which begins with the option `asked`, for a branch whose merge base is not
    known.
    """
    tip = git.commit_named(root, text)
    if tip is None:
        return None
    parted = fork(tip, root)
    bases, ahead, is_cut_off = parted
    if text == tip or not ahead or not is_branch(text, root):
        return exactly(f"revision {text}", tip, parted)
    if is_cut_off:
        raise pytest.UsageError(
            f"{asked}: the merge base with {text} is not in this repository{shallow(text, root)}"
        )
    if not bases:
        raise pytest.UsageError(
            f"{asked}: {text} has no commit in common with this checkout, and so no merge base; "
            f"{text}^0 means its last commit"
        )
    base = f"one of {len(bases)} merge bases" if len(bases) > 1 else "merge base"
    where = f"{bases[0][:9]}; {text} is {many(ahead, 'commit')} ahead"
    return Revision(bases[0], f"{base} with {text} ({where})")


def exactly(name: str, commit: str, parted: Fork) -> Revision:
    """This very commit; its label says how many commits of its history this checkout lacks."""
    is_known = parted.ahead and not parted.is_cut_off
    lacks = f"; this checkout lacks {many(parted.ahead, 'commit')} of it" if is_known else ""
    return Revision(commit, f"{name} ({commit[:9]}{lacks})")


def fork(tip: str, root: Path) -> Fork:
    """The commit at which this commit and the checkout at `root` part."""
    ours = checked_out(root)
    bases = (git.output(root, "merge-base", "--all", tip, *ours) or "").split()
    ahead = git.output(root, "rev-list", "--count", tip, "--not", *ours)
    file = root / (git.output(root, "rev-parse", "--git-path", "shallow") or "")
    if not file.is_file():
        return Fork(bases, int(ahead or 0), is_cut_off=False)
    between = git.output(root, "rev-list", tip, *ours, "--not", *bases) or ""
    without_parents = set(file.read_text().split())
    return Fork(bases, int(ahead or 0), not without_parents.isdisjoint(between.split()))


def is_branch(text: str, root: Path) -> bool:
    """True if a revision is the name of a branch, of this repository or a remote, or fetched."""
    words = ("--verify", "--quiet", "--symbolic-full-name", "--end-of-options", text)
    return (git.output(root, "rev-parse", *words) or "").startswith(BRANCHES)


def checked_out(root: Path) -> list[str]:
    """The commits that the files come from: several while a merge is not yet committed."""
    found = [git.commit_named(root, name) for name in ("HEAD", "MERGE_HEAD")]
    merged = [name.removeprefix(MERGED) for name in os.environ if name.startswith(MERGED)]
    return [*filter(None, found), *merged]


def shallow(text: str, root: Path) -> str:
    """That a clone is shallow, and the fetch that completes it; empty for a complete one."""
    if git.output(root, "rev-parse", "--is-shallow-repository") != "true":
        return ""
    remote = text.partition("/")[0]
    if remote not in (git.output(root, "remote") or "").split():
        remote = "origin"
    what = "BRANCH" if text == "FETCH_HEAD" else f"'+refs/heads/*:refs/remotes/{remote}/*'"
    return (
        f", a shallow clone: `git fetch --unshallow {remote} {what}`, or in CI `fetch-depth: 0` "
        '(GitHub) or `GIT_DEPTH: "0"` (GitLab)'
    )
