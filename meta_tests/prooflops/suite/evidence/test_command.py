"""A collection of evidence that is killed loses the running tests alone, and the next call completes it."""

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise

import pytest

from meta_tests.conftest import child_environment, new_house
from prooflops.suite.evidence.folder import Folder

TESTS = """
import os, signal, time

@pytest.mark.claim("demo.holds")
@pytest.mark.parametrize("n", range(12))
def test_short(n):
    time.sleep(0.1)

@pytest.mark.claim("demo.hangs")
def test_hangs():
    time.sleep(100)

@pytest.mark.claim("demo.dies")
def test_dies():
    os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.claim("demo.fails")
def test_fails():
    assert 1 == 2, "one is not two"

@pytest.mark.claim("demo.crashes")
def test_crashes():
    {}["bf16"]
"""
BENCHMARK = "def test_sum(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=5)"
OPTIONS = ("--into", "results/here", "--device", "cpu", "--test-limit", "4", "--limit", "150")


@dataclass
class Story:
    """What some kills and a last call left, and what was there after each."""

    folder: Folder
    kills: int
    code: int = 0
    output: str = ""
    ended: list[set[str]] = field(default_factory=list)


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.prove)], ids="{} kills".format)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = new_house(tmp_path_factory.mktemp("house"))
    for claim in ("holds", "hangs", "dies", "fails", "crashes"):
        house.claim(f"demo.{claim}")
    house.test(TESTS)
    house.test(BENCHMARK, "bench/test_demo.py")
    found = Story(Folder(house.root / "results" / "here"), kills=request.param)
    today = random.Random(datetime.now(timezone.utc).date().isoformat())
    line = [sys.executable, "-m", "prooflops.suite.evidence", *OPTIONS]
    for _ in range(found.kills):
        before, more = len(found.folder.ended()), today.randint(1, 3)
        process = subprocess.Popen(line, cwd=house.root, env=child_environment(), stdout=subprocess.DEVNULL)
        until = time.monotonic() + 100
        while len(found.folder.ended()) < before + more and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(today.uniform(0, 0.1))
        process.kill()
        process.wait()
        found.ended.append(set(found.folder.ended()))
    done = subprocess.run(line, cwd=house.root, env=child_environment(), capture_output=True, text=True, timeout=200)
    found.code, found.output = done.returncode, done.stdout + done.stderr
    return found


def test_a_kill_loses_nothing_but_the_running_test(story: Story) -> None:
    starts = [row["test"] for row in story.folder.rows("tests.jsonl") if row["event"] == "start"]
    ends = [row["test"] for row in story.folder.rows("tests.jsonl") if row["event"] == "end"]
    assert len(ends) == len(set(ends)), "a test that had ended ran again"
    assert len(starts) <= len(ends) + story.kills, "more was lost than the test that ran at each kill"
    assert all(ended for ended in story.ended)
    assert all(before <= after for before, after in pairwise([*story.ended, set(ends)]))


def test_the_next_call_completes_it(story: Story) -> None:
    assert story.code == 1, story.output
    assert story.folder.remaining() == []
    status = {test.rpartition("::")[2]: row["status"] for test, row in story.folder.ended().items()}
    assert status == {
        **{f"test_short[{n}]": "passed" for n in range(12)},
        "test_hangs": "timed out",
        "test_dies": "crashed",
        "test_fails": "failed",
        "test_crashes": "error",
        "test_sum": "passed",
    }


def test_what_was_lost_with_its_process_has_its_stacks(story: Story) -> None:
    rows = {test.rpartition("::")[2]: row for test, row in story.folder.ended().items()}
    assert "in test_hangs" in rows["test_hangs"]["log"]
    assert rows["test_hangs"]["reason"] == "it took longer than its limit of 4 s"
    assert rows["test_dies"]["reason"] == "its process ended with signal SIGSEGV"
    assert "in test_dies" in rows["test_dies"]["log"]
    assert "AssertionError: one is not two" in rows["test_fails"]["log"]
    assert str(story.folder.path.parents[1]) not in rows["test_fails"]["log"], "a path of this machine"
