"""Child runs over demonstration claims: verdicts, exit codes, refusals, what is written."""

import json
import re
import subprocess
import sys

import pytest

from meta_tests.conftest import ROOT, SUITE, fork_pytest, new_house, run_pytest_for_each
from prooflops_gate.history import records as history

HOLDING = """
@pytest.mark.claim("demo.holds")
def test_it_is_so():
    assert True
"""


EVERY_KIND = """
from hypothesis import given, strategies
@pytest.mark.claim("demo.if")
@given(x=strategies.integers())
def test_property(x, device):
    assert x == x

@pytest.mark.claim("demo.wrong")
def test_wrong(record_figure):
    record_figure("7.0x")

@pytest.mark.claim("demo.wrong")
@pytest.mark.needs("gpus>=64")
def test_wrong_on_many_gpus(): ...

@pytest.mark.claim("demo.fails")
def test_fails():
    assert 1 == 2, "one is not two"

@pytest.mark.claim("demo.crashes")
@given(x=strategies.integers())
def test_crashes(x):
    {}["bf16"]

@pytest.mark.claim("demo.returns")
@given(x=strategies.integers())
def test_returns_what_it_should_assert(x):
    return x != x

@pytest.mark.claim("demo.raises")
def test_raises():
    with pytest.raises(ValueError):
        ...

@pytest.mark.claim("demo.gpu")
def test_gpu():
    raise RuntimeError("must not run without CUDA")

@pytest.mark.claim("demo.skipped")
def test_passes(): ...

@pytest.mark.claim("demo.skipped")
def test_skips():
    pytest.skip("nobody knows")
"""


def end_of(run, house):
    """What a run prints from its verdicts on, without the names of this machine."""
    shown = r"^=+ verdicts =.*^[^\n]*: pytest [^\n]*\n[^\n]*"
    text = re.search(shown, run.output, re.MULTILINE | re.DOTALL)[0]
    text = re.sub(r"history/[^/]+/\S+", "history/<record>", text)
    text = re.sub(r"^.* · torch .*", "<day, machine, torch>", text, flags=re.MULTILINE)
    return text.replace(str(house.root), "<house>")


@pytest.fixture(scope="module")
def whole_house(tmp_path_factory):
    """A claim of each kind and a benchmark."""
    house = new_house(tmp_path_factory.mktemp("house"))
    house.claim("demo.holds")
    house.claim("demo.if", written="holds-if", condition="the moon is full")
    house.claim("demo.wrong", written="wrong", correction="it is otherwise")
    house.claim("demo.fails", statement="One is two.")
    house.claim("demo.crashes")
    house.claim("demo.returns")
    house.claim("demo.raises")
    house.claim("demo.gpu", needs='["cuda"]')
    house.claim("demo.skipped")
    house.test(HOLDING + EVERY_KIND)
    house.test(
        "def test_sum(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=5)",
        "bench/test_demo.py",
    )
    return house


@pytest.fixture(scope="module")
def whole_run(whole_house):
    """One run over all of it."""
    return whole_house.run("--device", "cpu", "--peak", "bf16=989e12", "-v")


@pytest.fixture(scope="module")
def whole_record(whole_house, whole_run):
    """The one record that this run left, and where."""
    (path,) = history.record_files(whole_house.root / ".prooflops" / "history")
    record = history.read(path)
    assert isinstance(record, dict), record
    return path, record


def test_the_end_of_a_run(whole_run, whole_house, golden):
    golden("run_whole", end_of(whole_run, whole_house))


def test_a_verdict_has_its_reason_its_cases_and_its_figures(whole_run):
    assert whole_run.verdicts["demo.if"]["cases"] == 100, "every example of a property is a case"
    assert "1 of 2 tests not run here" in whole_run.verdicts["demo.wrong"]["reason"]
    assert whole_run.verdicts["demo.wrong"]["figures"] == ["7.0x"]


READ_CLAIMS = {
    "--claims": 0,
    "--claims=MOON": 0,
    "--claims=mooon": 0,
    "--claim=moon": 4,
    "--claim=dem": 4,
    "--claim=demo.hold": 4,
    "--claim=demo.if --claim=demo.wrong": 0,
}


def test_claims_are_read_by_their_words_and_few_chosen_ones_are_stated(whole_house, golden):
    lines = [f"--device=cpu {line}" for line in READ_CLAIMS]
    runs = run_pytest_for_each(whole_house.root, lines, PROOFLOPS_HISTORY="read/history")
    ends = dict(zip(READ_CLAIMS, runs.values(), strict=True))
    assert {line: run.code for line, run in ends.items()} == READ_CLAIMS
    said = {line: run.output.strip() for line, run in ends.items()}
    chosen = [*READ_CLAIMS][-1]
    said[chosen] = end_of(ends[chosen], whole_house)
    text = "\n".join(f"$ pytest {line}\n{text}" for line, text in said.items())
    golden("run_claims_read", text)


def test_pytest_benchmark_reads_the_record(whole_record, tmp_path):
    file, _ = whole_record
    command = [sys.executable, "-m", "pytest_benchmark", "compare", file]
    # No conftest is loaded in that folder.
    compared = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert compared.returncode == 0, compared.stderr
    assert "test_sum" in compared.stdout + compared.stderr


def test_a_terminal_without_utf_8_shows_claims(tmp_path):
    plugin = "import sys\nsys.stdout.reconfigure(encoding='ascii')\n"
    (tmp_path / "ascii_terminal.py").write_text(plugin)
    options = ("-p", "ascii_terminal", "--claims=2mkn")
    run = fork_pytest(ROOT, *options, imported=SUITE, path=tmp_path)
    assert run.code == 0
    assert r"a matrix of m \xd7 k by one of k \xd7 n costs 2\xb7m\xb7k\xb7n FLOPs." in run.output


TABLE_IS_SHOWN = {
    "--benchmark-autosave": False,
    "--benchmark-compare": True,
    "--benchmark-compare --benchmark-quiet": False,
    "--benchmark-cprofile=cumtime": True,
}


def test_the_table_of_pytest_benchmark_is_printed_where_an_option_asks_for_it(whole_house):
    lines = [f"bench --device=cpu --quick {options}" for options in TABLE_IS_SHOWN]
    runs = run_pytest_for_each(whole_house.root, lines, PROOFLOPS_HISTORY="tables/history")
    assert all("pace: quick (20 examples per " in run.output for run in runs.values())
    shown = ["Name (time in " in run.output for run in runs.values()]
    assert dict(zip(TABLE_IS_SHOWN, shown, strict=True)) == TABLE_IS_SHOWN, [*runs.values()]


def test_a_known_failure_leaves_the_run_green_and_one_cured_is_reported(house, golden):
    house.claim("demo.holds")
    house.claim("demo.fails")
    house.test(HOLDING)
    house.test('@pytest.mark.claim("demo.fails")\ndef test_fails():\n    assert 1 == 2')
    listed = house.root / "known.txt"
    listed.write_text("demo.fails  # this card cannot\n\ndemo.holds\n")
    run = house.run("--known-failures", "known.txt")
    assert run.code == 0
    assert run.verdicts["demo.fails"]["verdict"] == "FAILS"
    assert run.verdicts["demo.fails"]["known"]
    assert run.verdicts["demo.holds"]["verdict"] == "holds"
    golden("run_known_failures", end_of(run, house))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(house):
    folders = {
        "--report=/proc/x/y": "/proc/x/y",
        "--report=conftest.py": "conftest.py",
        "-q": "/proc/x",
    }
    lines = ["--collect-only", *folders]
    runs = run_pytest_for_each(house.root, lines, PROOFLOPS_HISTORY="/proc/x")
    assert "cannot be written" not in runs.pop("--collect-only").output
    for option, run in runs.items():
        assert run.code == 4
        assert f"cannot be written to {folders[option]}: " in run.output
        assert "collected" not in run.output


def test_a_claim_without_a_test_stops_a_whole_run_but_no_partial_one(house, golden):
    house.claim("demo.holds")
    house.claim("demo.forgotten")
    house.test(HOLDING)
    run = house.run()
    assert run.code == 4
    refusal = re.search(r"^ERROR: .*\n(?:  .*\n)*", run.output, re.MULTILINE)
    golden("run_refused", refusal[0])
    for narrowing in (["-k", "demo.holds"], ["--ignore-glob=*/test_other.py"]):
        partial = house.run(*narrowing)
        assert partial.code == 0
        assert set(partial.verdicts) == {"demo.holds"}


def test_a_marker_that_names_no_claim_stops_the_run(house):
    house.test('@pytest.mark.claim("demo.stray")\ndef test_it(): ...')
    run = house.run()
    assert run.code == 4
    assert re.search(r"add a row, or correct the id\s+'demo\.stray' in .*test_demo", run.output)


PARTS = """
@pytest.mark.claim("demo.two-tests")
def test_first(): ...

@pytest.mark.claim("demo.two-tests", "demo.two-files")
def test_second(): ...
"""
STOPS = """
@pytest.mark.claim("demo.before")
def test_before(): ...

def test_stops():
    raise KeyboardInterrupt

@pytest.mark.claim("demo.before", "demo.after")
def test_after(): ...
"""
WHOLE = "-o testpaths='test_claims/test_demo.py test_claims/test_other.py'"
PART_LINES = {
    "whole": f"--report reports {WHOLE}",
    "deselected": "--report deselected -k test_first test_claims/test_demo.py "
    "test_claims/test_other.py",
    "named": "--report named test_claims/test_demo.py::test_first",
    "one file": "--report one_file test_claims/test_demo.py -k test -m 'not timed' --deselect x "
    "--ignore y",
    "chosen": "--report chosen --claim demo.two-files --claim demo.before",
    "uncollected": "--report uncollected --continue-on-collection-errors "
    "test_claims/test_demo.py test_claims/test_broken.py",
    "interrupted": "--report reports test_claims/test_stops.py",
}


@pytest.fixture(scope="module")
def part_house(tmp_path_factory):
    """Runs of which some tests did not run, all in one process."""
    house = new_house(tmp_path_factory.mktemp("house"))
    for claim in ("two-tests", "two-files", "before", "after"):
        house.claim(f"demo.{claim}")
    house.test(PARTS)
    house.test(
        '@pytest.mark.claim("demo.two-files")\ndef test_third(): ...', "test_claims/test_other.py"
    )
    house.test(STOPS, "test_claims/test_stops.py")
    house.test("import nothing_of_this_name", "test_claims/test_broken.py")
    lines = {key: f"-p no:cacheprovider --device cpu {line}" for key, line in PART_LINES.items()}
    runs = run_pytest_for_each(house.root, lines.values())
    return house, {key: runs[line] for key, line in lines.items()}


def verdicts_in(folder):
    content = json.loads((folder / "verdicts.json").read_text())
    assert content["whole"] is (folder.name == "reports"), content["partial"]
    return {row["id"]: (row["verdict"], row["reason"]) for row in content["claims"]}


@pytest.mark.parametrize(
    ("run", "answer", "scope"),
    [
        ("whole", "2 claims: 2 hold, 0 FAIL", ""),
        ("deselected", "0 of 4 claims: 0 FAIL; 1 ran in part", ""),
        ("named", "0 of 4 claims: 0 FAIL; 1 ran in part", ""),
        (
            "one file",
            "1 of 4 claims: 1 holds, 0 FAIL; 1 ran in part",
            "only test_claims/test_demo.py -k test -m not timed --deselect x --ignore y",
        ),
        (
            "chosen",
            "2 of 4 claims: 2 hold, 0 FAIL; 1 ran in part",
            "only --claim demo.two-files --claim demo.before",
        ),
    ],
)
def test_a_claim_has_no_verdict_by_a_part_of_its_tests(part_house, run, answer, scope):
    _, runs = part_house
    output = runs[run].output
    lines = output.splitlines()
    assert answer in lines
    assert (f"partial run: {scope}" in lines) is bool(scope)
    named = re.search(r"^ran in part \(.*\): demo.two-(tests|files)$", output, re.MULTILINE)
    assert bool(named) is ("in part" in answer), output
    assert "not checked" not in output


def test_a_file_that_cannot_be_collected_is_red_beside_what_ran(part_house):
    house, runs = part_house
    run = runs["uncollected"]
    assert run.code == 1, run.output
    content = json.loads((house.root / "uncollected/partial/verdicts.json").read_text())
    assert [row["test"] for row in content["red_tests"]] == ["test_claims/test_broken.py"]
    assert content["counts"]["holds"] == 1


def test_a_run_that_is_stopped_says_so_and_leaves_the_last_whole_report(part_house, golden):
    house, runs = part_house
    run = runs["interrupted"]
    reports = house.root / "reports"
    assert run.code == 2
    golden("run_interrupted", end_of(run, house))
    assert set(verdicts_in(reports)) == {"demo.two-tests", "demo.two-files"}, "overwritten"
    found = verdicts_in(reports / "partial")
    assert found["demo.before"] == ("not checked", "1 of 2 tests ran: interrupted")
    assert found["demo.after"] == ("not checked", "0 of 1 test ran: interrupted")
