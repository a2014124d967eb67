"""The commit that a revision means, in real repositories, and what a hook of git inherits."""

import re
import subprocess

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meta_tests.prooflops_gate.foreign_repo import run_git
from meta_tests.prooflops_gate.outcomes import outcome
from prooflops_gate import git
from prooflops_gate.revision import meant, shallow

# Git passes its configuration on to other repositories.
PASSED_ON = {"GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT"}
FORKED = [(), (0,), (1,), (2,), (1,), (4,)]


def repository(folder, parents, **branches):
    """A repository of commits with these parents; `main` and `head`, the numbers of two, are the
    branches. Returns the commits' hashes.
    """
    run_git(folder, "init", "-q", "-b", "head", ".")
    lines = []
    for number, earlier in enumerate(parents):
        lines += [f"commit refs/all/{number}", f"mark :{number + 1}"]
        lines += [f"committer a <a@b> {number} +0000", "data 1", "x"]
        for parent, word in zip(earlier, ("from", "merge"), strict=False):
            lines.append(f"{word} :{parent + 1}")
        lines.append(f"M 644 inline file\ndata 1\n{number}")
    for name, number in branches.items():
        lines += [f"reset refs/heads/{name}", f"from :{number + 1}"]
    run_git(folder, "fast-import", "--quiet", text="\n".join([*lines, ""]))
    run_git(folder, "reset", "-q", "--hard")
    names = (f"refs/all/{number}" for number in range(len(parents)))
    return run_git(folder, "rev-parse", *names).split()


def before(parents, number):
    """A commit and all before it."""
    found = {number}
    for parent in parents[number]:
        found |= before(parents, parent)
    return found


def merge_bases(parents, *tips):
    """The common commits that are before no other common one."""
    common = set.intersection(*(before(parents, tip) for tip in tips))
    return {n for n in common if not any(n in before(parents, m) - {m} for m in common)}


@st.composite
def histories(draw):
    """The parents of each commit, up to two of those before it, and which are `main` and `head`."""
    size = draw(st.integers(2, 9))
    earlier = [st.lists(st.integers(0, n - 1), unique=True, max_size=2) for n in range(1, size)]
    main, head = (draw(st.integers(0, size - 1)) for _ in range(2))
    return [(), *(tuple(draw(each)) for each in earlier)], main, head


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(history=histories(), depth=st.integers(1, 4))
@example(history=([(), (0,), (1,), (2,), (3, 0), (1,)], 5, 4), depth=3)
@example(history=([(), (0,), (0,), (1, 2), (2, 1)], 4, 3), depth=2)
def test_a_branch_means_a_merge_base_and_a_shallow_clone_knows_it_or_names_the_fetch(
    tmp_path_factory, history, depth
):
    parents, main, head = history
    top = tmp_path_factory.mktemp("history")
    there, clone = top / "there", top / "clone"
    there.mkdir()
    commits = repository(there, parents, main=main, head=head)
    ahead = len(before(parents, main) - before(parents, head))
    bases = merge_bases(parents, main, head)

    def answers_as_the_whole_history_does(found, refusal, name):
        if not bases:
            assert f"{name} has no commit in common with this checkout" in refusal
            return
        assert found.commit in {commits[number] for number in bases}, refusal
        assert (f"{name} is {ahead} commit" in found.label) == bool(ahead), found
        assert (f"one of {len(bases)} merge bases" in found.label) == (len(bases) > 1), found

    def asked(root, name):
        return outcome(pytest.UsageError, lambda: meant(f"--gate-versus {name}", name, root))

    answers_as_the_whole_history_does(*asked(there, "main"), "main")
    run_git(top, "clone", "-q", "--depth", str(depth), "--no-single-branch", there.as_uri(), clone)
    found, refusal = asked(clone, "origin/main")
    fetch = re.search("a shallow clone: `(git fetch --unshallow .*?)`", refusal)
    if fetch:
        subprocess.run(fetch[1], shell=True, cwd=clone, check=True, capture_output=True)
        found, refusal = asked(clone, "origin/main")
    answers_as_the_whole_history_does(found, refusal, "origin/main")


@pytest.fixture
def clone(tmp_path):
    """A clone on `head`, two commits behind `main`, which moved on; each commit's hash."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    commits = repository(there, FORKED, main=5, head=3)
    for words in (
        ("tag", "light", "main"),
        ("tag", "-am", "x", "annotated", "main"),
        ("branch", "both", "main"),
        ("tag", "both", "main"),
        ("branch", "deadbeef", "main"),
        ("update-ref", f"refs/heads/{commits[5]}", "main"),
    ):
        run_git(there, *words)
    run_git(tmp_path, "clone", "-q", there.as_uri(), here)
    run_git(here, "fetch", "-q", "origin", "main")
    for name in ("main", "both", "deadbeef", commits[5]):
        run_git(here, "update-ref", f"refs/heads/{name}", commits[5])
    run_git(here, "branch", "-q", "--set-upstream-to=origin/main")
    return here, commits


BRANCHES = ["main", "heads/main", "refs/heads/main", "origin/main", "FETCH_HEAD", "@{u}"]
COMMITS = ["main^0", "origin/main^{commit}", "light", "annotated", "both", "main@{0}"]


@pytest.mark.parametrize("name", [*BRANCHES, "deadbeef", "origin/deadbeef"])
def test_the_name_of_a_branch_means_the_merge_base(clone, name):
    here, commits = clone
    found = meant(f"--gate-versus {name}", name, here)
    label = f"merge base with {name} ({commits[1][:9]}; {name} is 2 commits ahead)"
    assert found == (commits[1], label)


@pytest.mark.parametrize("name", [*COMMITS, "the hash", "its beginning"])
def test_any_other_revision_means_that_commit(clone, name):
    here, commits = clone
    # A branch has the hash as its name.
    name = {"the hash": commits[5], "its beginning": commits[5][:12]}.get(name, name)
    found = meant(f"--gate-versus {name}", name, here)
    label = f"revision {name} ({commits[5][:9]}; this checkout lacks 2 commits of it)"
    assert found == (commits[5], label)


def test_what_the_checkout_is_at_or_has_merged_is_that_commit(clone):
    here, commits = clone
    assert meant("", "no-such", here) is None
    for name, number in (("HEAD", 3), ("head", 3), ("HEAD~1", 2), ("@{-1}", None)):
        expected = number and (commits[number], f"revision {name} ({commits[number][:9]})")
        assert meant("", name, here) == expected
    run_git(here, "checkout", "-q", "--detach")
    assert meant("", "main", here).commit == commits[1]
    assert meant("", "head", here).commit == commits[3]


@pytest.mark.parametrize("name", ["origin/main", "FETCH_HEAD", "main"])
def test_a_shallow_clone_of_one_branch_names_the_fetch_that_it_needs(clone, tmp_path, name):
    there, one = tmp_path / "there", tmp_path / "one"
    run_git(tmp_path, "clone", "-q", "--depth", "1", there.as_uri(), one)
    assert meant("", "origin/main", one) is None
    (fetch,) = re.findall("a shallow clone: `(.*?)`", shallow(name, one))
    subprocess.run(fetch.replace("BRANCH", "main"), shell=True, cwd=one, check=True)
    if name == "main":
        run_git(one, "branch", "main", "origin/main")
    assert meant("", name, one).commit == clone[1][1]


@pytest.mark.parametrize("in_hook", [False, True])
def test_files_that_a_merge_brought_are_not_charged(clone, monkeypatch, in_hook):
    here, commits = clone
    if in_hook:
        # `git merge` itself sets this variable.
        monkeypatch.setenv(f"GITHEAD_{commits[5]}", "main")
    else:
        run_git(here, "merge", "-q", "--no-commit", "-s", "ours", "main")
    assert meant("", "main", here) == (commits[5], f"revision main ({commits[5][:9]})")


def test_no_variable_of_a_hook_reaches_git(clone, monkeypatch):
    here, commits = clone
    (here / "ignored").touch()
    local = set(run_git(here, "rev-parse", "--local-env-vars").split())
    assert local - PASSED_ON <= set(git.HOOK_VARIABLES)
    for name in git.HOOK_VARIABLES:
        monkeypatch.setenv(name, "/nowhere")
    folder = here / "folder"
    folder.mkdir()
    assert git.repository_of(folder) == here
    assert git.commit_named(folder, "HEAD") == commits[3]
    assert git.untracked(here, "--", "ign*") == ["ignored"]
    assert not PASSED_ON & set(git.HOOK_VARIABLES)
