"""Each claim that measures time says so, and runs alone."""

import ast
import re

import pytest

from meta_tests.conftest import ROOT

CLOCK = re.compile(r"timing\.time\(|perf_counter\(|flop_per_s\(device|timed_copy\(")
ALONE_BY_FIXTURE = {"benchmark", "sizing", "speed"}


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
