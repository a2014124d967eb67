"""Child runs of the suite over demonstration claims: verdicts, exit codes, refusals, what is written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT, House
from proofline import history

HOLDING = """
@pytest.mark.claim("demo.holds")
def test_it_is_so():
    assert True
"""


def test_each_kind_of_claim_gets_its_verdict_and_a_failure_names_claim_and_source(house: House) -> None:
    house.claim("demo.holds")
    house.claim("demo.if", written="holds-if", condition="the moon is full")
    house.claim("demo.wrong", written="wrong", correction="it is otherwise")
    house.claim("demo.fails", statement="One is two.")
    house.claim("demo.gpu", needs='["cuda"]')
    house.claim("demo.skipped")
    house.test(HOLDING)
    house.test("""
from hypothesis import given, strategies
@pytest.mark.claim("demo.if")
@given(x=strategies.integers())
def test_property(x, device):
    assert x == x

@pytest.mark.claim("demo.wrong")
def test_wrong(figure):
    figure("7.0x")

@pytest.mark.claim("demo.wrong")
@pytest.mark.needs("gpus>=64")
def test_wrong_on_many_gpus(): ...

@pytest.mark.claim("demo.fails")
def test_fails():
    assert 1 == 2, "one is not two"

@pytest.mark.claim("demo.gpu")
def test_gpu():
    raise RuntimeError("must not run without CUDA")

@pytest.mark.claim("demo.skipped")
def test_passes(): ...

@pytest.mark.claim("demo.skipped")
def test_skips():
    pytest.skip("nobody knows")
""")
    house.test("def test_sum(benchmark):\n    assert benchmark(sum, range(100)) == 4950", "bench/test_demo.py")
    run = house.run("--device", "cpu", "-v")

    assert run.code == 1, run.output
    found = {claim: row["verdict"] for claim, row in run.verdicts.items()}
    assert found == {
        "demo.holds": "holds",
        "demo.if": "holds if",
        "demo.wrong": "corrected",
        "demo.fails": "FAILS",
        "demo.gpu": "not checked",
        "demo.skipped": "not checked",
    }
    assert run.verdicts["demo.if"]["cases"] == 100, "every example of a property is a case"
    assert run.verdicts["demo.skipped"]["reason"] == "nobody knows"
    assert run.verdicts["demo.gpu"]["reason"] == "needs a CUDA device"
    assert "1 of 2 tests not run here" in run.verdicts["demo.wrong"]["reason"]
    assert run.verdicts["demo.wrong"]["figures"] == ["7.0x"]
    for text in ("demo.fails: One is two.", "source: A lecture, minute 3", "holds if the moon is full"):
        assert text in run.output, f"{text!r} is missing from the output"

    report = (house.root / "reports" / "report.md").read_text()
    assert "| `demo.fails` | One is two. | FAILS: " in report
    records = list(history.records(house.root / ".proofline" / "history"))
    assert len(records) == 1
    path, record = records[0]
    assert isinstance(record, dict)
    assert [bench["name"] for bench in record["benchmarks"]] == ["test_sum"]
    assert len(record["proofline"]["verdicts"]) == 6
    assert record["proofline"]["fingerprint"]["device"] == "cpu"
    assert "hz_actual" not in record["machine_info"]["cpu"]
    compared = subprocess.run(
        [Path(sys.executable).parent / "pytest-benchmark", "compare", path], capture_output=True, text=True
    )
    assert compared.returncode == 0, compared.stderr
    assert "test_sum" in compared.stdout + compared.stderr, "pytest-benchmark must be able to read our records"


def test_a_known_failure_does_not_redden_the_run_and_one_that_now_holds_is_reported(house: House) -> None:
    house.claim("demo.holds")
    house.claim("demo.fails")
    house.test(HOLDING)
    house.test('@pytest.mark.claim("demo.fails")\ndef test_fails():\n    assert 1 == 2')
    listed = house.root / "known.txt"
    listed.write_text("demo.fails  # this card cannot\n\ndemo.holds\n")
    run = house.run("--known-failures", "known.txt")
    assert run.code == 0, run.output
    assert run.verdicts["demo.fails"]["verdict"] == "FAILS"
    assert run.verdicts["demo.fails"]["known"]
    assert run.verdicts["demo.holds"]["verdict"] == "holds"
    assert "demo.holds is listed in --known-failures but now holds" in run.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "abacus"], ("--device abacus", "valid here: cpu")),
        (["--device", "cuda:99"], ("--device cuda:99: this machine has no such device", "valid here: cpu")),
        (["--claim", "demo.hold"], ("--claim", "demo.holds", "did you mean")),
        (["--quick", "--thorough"], ("exclude each other",)),
        (["--known-failures", "absent.txt"], ("absent.txt", "No such file")),
        (["--known-failures", "known.txt"], ("no claim is named demo.typo", "demo.holds")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_refused_before_anything_runs(house: House, arguments: list[str], said: tuple[str, ...]) -> None:
    house.claim("demo.holds")
    house.test('open("it ran", "w").close()')
    house.test(HOLDING)
    (house.root / "known.txt").write_text("demo.typo\n")
    run = house.run(*arguments)
    assert run.code == 4, run.output
    assert all(text in run.output for text in said), run.output
    assert not (house.root / "it ran").exists(), "a test module was imported before the refusal"
    assert not (house.root / "reports").exists()


def test_a_marker_without_a_claim_stops_the_run(house: House) -> None:
    house.claim("demo.holds")
    house.test(HOLDING.replace("demo.holds", "demo.typo"))
    run = house.run()
    assert run.code == 4
    assert "'demo.typo' (test_claims/test_demo.py::test_it_is_so)" in run.output
    assert "passed" not in run.output


def test_a_claim_without_a_test_stops_a_whole_run_but_no_partial_one(house: House) -> None:
    house.claim("demo.holds")
    house.claim("demo.forgotten")
    house.test(HOLDING)
    run = house.run()
    assert run.code == 4
    assert "no test settles: demo.forgotten" in run.output
    partial = house.run("-k", "demo.holds")
    assert partial.code == 0, partial.output
    assert set(partial.verdicts) == {"demo.holds"}


def test_only_the_selected_claims_run(house: House) -> None:
    house.claim("demo.holds")
    house.claim("demo.other")
    house.test(HOLDING)
    house.test('@pytest.mark.claim("demo.other")\ndef test_other():\n    assert False')
    run = house.run("--claim", "demo.holds")
    assert run.code == 0, run.output
    assert set(run.verdicts) == {"demo.holds"}


def test_a_clone_with_another_copy_installed_is_refused(house: House, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("installed")
    for package in ("accounting", "proofline"):
        shutil.copytree(ROOT / package, elsewhere / package, ignore=shutil.ignore_patterns("__pycache__"))
    house.claim("demo.holds")
    house.test(HOLDING)
    # An installed copy is imported by its entry point, before the clone's conftest; `-p` does the same here.
    code = f"import sys; sys.path[0] = {str(elsewhere)!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "-p", "proofline.plugin"], cwd=house.root, capture_output=True, text=True
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"was imported from {elsewhere}" in done.stderr, done.stderr


def test_an_interrupted_run_leaves_the_history_readable(house: House) -> None:
    house.claim("demo.holds")
    house.test(HOLDING)
    house.run()
    house.test("def test_interrupted():\n    raise KeyboardInterrupt")
    run = house.run()
    assert run.code == 2, run.output
    records = [record for _, record in history.records(house.root / ".proofline" / "history")]
    assert len(records) == 2
    assert all(isinstance(record, dict) for record in records)
    json.loads((house.root / "reports" / "verdicts.json").read_text())
