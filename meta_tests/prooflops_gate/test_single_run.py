"""One run compared with the history, or stored as a baseline."""

from meta_tests.prooflops_gate.foreign_repo import valid_json
from prooflops_gate.history import records


def test_a_recorded_run_is_listed_named_and_compared(plain_repo):
    run = plain_repo.run("--gate-record", "main")
    assert run.code == 0
    plain_repo.test(4)
    files = ("--gate-json", "one.json", "--gate-markdown", "one.md")
    run = plain_repo.run("--gate-baseline", "main", "--benchmark-autosave", *files)
    assert "1 CHANGED" in run.output
    content = valid_json(plain_repo.root / "one.json")
    assert (content["gates"], content["fails"], content["counts"]["CHANGED"]) == (False, False, 1)
    assert "## CHANGED (1)" in (plain_repo.root / "one.md").read_text()
    assert run.output.splitlines()[-2].endswith("; report only: never fails for a verdict"), (
        run.output
    )
    assert "INCONCLUSIVE" in run.output
    assert len(plain_repo.records()) == 2
    assert len(list(plain_repo.root.glob(".benchmarks/*/*.json"))) == 1, (
        "pytest-benchmark's own storage should go on"
    )
    plain_repo.test(4, name="test_renamed")
    run = plain_repo.run("--gate-baseline", "latest")
    assert "1 MISSING" in run.output
    assert "1 NEW" in run.output
    listed = plain_repo.run("--gate-history", "-v").output
    assert "3 records" in listed, listed
    assert "baseline main" in listed, listed
    assert "test_renamed" in listed, listed


def test_a_run_that_did_not_succeed_is_no_baseline(plain_repo):
    (plain_repo.root / "test_last.py").write_text("def test_last():\n    assert False\n")
    for options, code, why in (([], 1, "tests failed"), (["-k", "nothing"], 5, "no test ran")):
        run = plain_repo.run("--gate-record", "main", *options)
        assert (run.code, f"not stored as main: {why}" in run.output) == (code, True)
    assert not records.baselines(plain_repo.root / ".prooflops" / "history")


def test_a_benchmark_that_is_skipped_is_not_missing(plain_repo):
    assert plain_repo.run("--gate-record", "main").code == 0
    (plain_repo.root / "conftest.py").write_text(
        "import pytest\ndef pytest_runtest_setup(): pytest.skip('not today')\n"
    )
    run = plain_repo.run("--gate-baseline", "main")
    assert "MISSING" not in run.output
    assert "INCONCLUSIVE: skipped this time: not today" in run.output
