"""The ways of docs/architecture.md: their files are there, a claim executes all of its own."""

import json
import re
import subprocess
import sys

import pytest

from meta_tests.conftest import ROOT, child_environment

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WAYS = {
    match[1]: (int(match[2]), match[3])
    for match in re.finditer(
        r"## The way of a (\w+).*?: (\d+) files\n.*?```\n(.*?)```", PAGE, re.DOTALL
    )
}
MOST_FILES = {"claim": 14, "benchmark": 18}
# Python imports it in each process that the way of a claim takes.
SITE = """
import atexit, json, os, sys
seen = set()
def note(frame, event, argument):
    if frame.f_code.co_name != "<module>":
        seen.add(frame.f_code.co_filename)
def write():
    sys.settrace(None)
    with open(os.path.join(os.environ["SEEN"], str(os.getpid())), "w") as file:
        json.dump(sorted(seen), file)
# It is told of each call, and of no line in it.
sys.settrace(note)
atexit.register(write)
"""


def files_of(way):
    """The files in a way's first column; a bare name lies beside or below the one before."""
    return [line.split()[0] for line in WAYS[way][1].splitlines()]


@pytest.mark.parametrize("way", MOST_FILES)
def test_a_way_has_as_many_files_as_the_page_says(way):
    files = files_of(way)
    assert len(files) == WAYS[way][0] <= MOST_FILES[way]
    absent = [file for file in files if not any(ROOT.glob(f"**/{file}"))]
    assert not absent, f"the way of a {way} names {absent}, which are not there"


def test_each_file_on_the_way_of_a_claim_is_executed(tmp_path):
    seen = tmp_path / "seen"
    seen.mkdir()
    (tmp_path / "sitecustomize.py").write_text(SITE)
    words = ["--claim=flops.matmul-2mnk", "--quick", "--device=cpu", f"--report={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "prooflops.suite.evidence", "--out", tmp_path / "run.jsonl", *words],
        cwd=ROOT,
        env=child_environment(
            tmp_path, SEEN=str(seen), PROOFLOPS_HISTORY=str(tmp_path / "history")
        ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    executed = {file for each in seen.iterdir() for file in json.loads(each.read_text())}
    code = {str(ROOT / file) for file in files_of("claim") if file.endswith(".py")}
    assert not code - executed, f"not executed: {sorted(code - executed)}"
