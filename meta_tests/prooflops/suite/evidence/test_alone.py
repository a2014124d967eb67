"""Tests that measure time run alone, after those that run side by side; each of them says so."""

import ast
import re
import subprocess
import sys

import pytest

from meta_tests.conftest import ROOT, child_environment
from prooflops.suite.evidence.file import EvidenceFile

CLOCK = re.compile(r"timing\.time\(|perf_counter\(|flop_per_s\(device|timed_copy\(")
ALONE_BY_FIXTURE = {"benchmark", "sizing", "speed"}
FUNCTIONAL = """
import time

@pytest.mark.parametrize("n", range(3))
def test_functional(n):
    time.sleep(0.3)
"""
TIMED = """
import time

@pytest.mark.timed
def test_marked():
    time.sleep(0.3)

def test_benchmark(benchmark):
    benchmark.pedantic(time.sleep, args=(0.1,), rounds=3)
"""


def intervals(file):
    """When each test ran."""
    began = {row["test"].rpartition("/")[2]: row["at"] for row in file.rows("start")}
    ended = {row["test"].rpartition("/")[2]: row["at"] for row in file.rows("end")}
    return {test: (began[test], ended[test]) for test in ended}


def test_timed_tests_run_alone_and_others_side_by_side(house, tmp_path):
    house.test(TIMED, "test_claims/test_a.py")
    house.test(FUNCTIONAL, "test_claims/test_a.py")
    house.test(FUNCTIONAL, "test_claims/test_b.py")
    out = tmp_path / "run.jsonl"
    own = ["--out", str(out), "-n", "2", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "prooflops.suite.evidence", *own],
        cwd=house.root,
        env=child_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = intervals(EvidenceFile(out))
    assert len(ran) == 8
    ends_of_others = [end for test, (_, end) in ran.items() if "functional" in test]
    marked = ran["test_a.py::test_marked"]
    measured = ran["test_a.py::test_benchmark"]
    assert max(ends_of_others) <= marked[0] < marked[1] <= measured[0]


@pytest.mark.parametrize(
    "file", sorted((ROOT / "test_claims").glob("test_*.py")), ids="{0.stem}".format
)
def test_a_claim_that_reads_a_clock_says_so(file):
    text = file.read_text(encoding="utf-8")
    unmarked = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        marks = " ".join(ast.unparse(each) for each in node.decorator_list)
        fixtures = {each.arg for each in node.args.args}
        is_known = "mark.timed" in marks or bool(fixtures & ALONE_BY_FIXTURE)
        if CLOCK.search(ast.get_source_segment(text, node) or "") and not is_known:
            unmarked.append(node.name)
    assert not unmarked, f"@pytest.mark.timed is missing at {unmarked}"
