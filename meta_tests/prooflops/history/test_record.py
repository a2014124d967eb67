"""The record of one run: where it is kept, and what happens where it cannot be."""

import json

from meta_tests.prooflops.foreign import Foreign


def test_the_environment_says_where_the_history_is(plain_repo: Foreign) -> None:
    run = plain_repo.run("--gate-record", "main", PROOFLOPS_HISTORY="elsewhere")
    assert run.code == 0
    (path,) = plain_repo.records("elsewhere")
    assert json.loads(path.read_text())["prooflops"]["schema"] == 1, "readers know a record's form by it"


def test_a_full_disk_is_reported_and_the_history_stays(plain_repo: Foreign) -> None:
    assert plain_repo.run("--gate-record", "main").code == 0
    (before,) = plain_repo.records()
    text = before.read_text()
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write("import os\ndef full(_): raise OSError(28, 'No space left on device')\nos.fsync = full\n")
    run = plain_repo.run("--gate-baseline", "main")
    assert run.code == 1
    assert "could not be stored" in run.output
    assert "No space left on device" in run.output
    assert "INTERNALERROR" not in run.output
    assert plain_repo.records() == [before]
    assert before.read_text() == text
