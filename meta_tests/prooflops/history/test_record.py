"""The record of one run: where it is kept, and what happens where it cannot be."""

from __future__ import annotations

import os

from meta_tests.conftest import ROOT
from meta_tests.prooflops.foreign import Foreign


def test_the_environment_says_where_the_history_is(plain_repo: Foreign) -> None:
    run = plain_repo.run("--gate-record", "main", PROOFLOPS_HISTORY="elsewhere")
    assert run.code == 0
    assert len(plain_repo.records("elsewhere")) == 1


def test_a_full_disk_is_reported_and_the_history_stays(plain_repo: Foreign) -> None:
    assert plain_repo.run("--gate-record", "main").code == 0
    (before,) = plain_repo.records()
    text = before.read_text()
    (plain_repo.root / "sitecustomize.py").write_text(
        "import os\n"
        "def full(descriptor): raise OSError(28, 'No space left on device')\n"
        "os.fsync = full\n"
    )  # fmt: skip
    run = plain_repo.run("--gate-baseline", "main", path=f"{plain_repo.root}{os.pathsep}{ROOT}")
    assert run.code == 1
    assert "could not be stored" in run.output
    assert "No space left on device" in run.output
    assert "INTERNALERROR" not in run.output
    assert plain_repo.records() == [before]
    assert before.read_text() == text
