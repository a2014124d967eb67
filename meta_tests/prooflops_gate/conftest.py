"""The foreign repository in which the gate runs."""

import shutil
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops_gate.foreign_repo import (
    INI,
    MORE_TESTS,
    commit_all,
    run_git,
    write_quick_plan,
)


@pytest.fixture
def foreign(tmp_path):
    """The foreign repo under git, its one commit checked out."""
    repo = tmp_path / "foreign"
    shutil.copytree(
        ROOT / "meta_tests" / "foreign", repo, ignore=shutil.ignore_patterns("__pycache__")
    )
    (repo / "pytest.ini").write_text(INI)
    (repo / ".gitignore").write_text("__pycache__\n.prooflops\n")
    (repo / "test_more.py").write_text(MORE_TESTS.format(name="old_name", steps=400))
    write_quick_plan(tmp_path / "path")
    run_git(repo, "init", "-q")
    commit_all(repo)
    return repo
