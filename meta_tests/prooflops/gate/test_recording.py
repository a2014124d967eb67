"""A baseline of fresh processes, where it can be stored and where not; `test_against_history` compares with one."""

from pathlib import Path

from meta_tests.prooflops.gate.foreign_repo import run


def test_a_history_that_cannot_be_written_is_reported_and_so_are_the_processes(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(
        foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "2",
        PROOFLOPS_HISTORY=str(tmp_path / "file"),
    )  # fmt: skip
    assert done.code == 1
    assert "could not be written" in done.output
    assert " passed" in done.output
