"""The gate on a small foreign repository, in real processes."""

import json
from pathlib import Path

import pytest

from meta_tests.conftest import House
from meta_tests.prooflops.gate.foreign_repo import run
from prooflops.gate.run import changed_claims


@pytest.mark.parametrize(
    ("option", "why"),
    [("--gate-versus=no-such", "no folder, no interpreter"), ("--gate-baseline=no-such", "no baseline of that name")],
)
def test_what_is_not_there_to_compare_with_is_refused_before_anything_runs(
    foreign: Path, option: str, why: str
) -> None:
    (foreign / "test_foreign.py").write_text("def test_it(benchmark):\n    open('it-ran', 'w')\n")
    done = run(foreign, "test_foreign.py", "--gate", option)
    assert done.code == 4
    assert why in done.output
    assert not (foreign / "it-ran").exists(), done.output


def test_a_fresh_process_that_hangs_is_ended_and_reported(foreign: Path) -> None:
    (foreign / "work.py").write_text("import time\nSTEPS = 1\ndef busy(steps=0):\n    time.sleep(60)\n")
    done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor", "--gate-budget", "0.03")
    assert done.code == 1
    assert "was ended after 2 s (--gate-budget)" in done.output


def test_a_crash_of_a_fresh_process_is_that_of_the_test(foreign: Path) -> None:
    (foreign / "work.py").write_text("import os\nSTEPS = 1\ndef busy(steps=0):\n    os.abort()\n")
    done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor")
    assert done.code == 1
    assert "SIGABRT" in done.output


# What opens a device, were the parent of a gate run to call it.
PARENT = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from accounting import measured
    from prooflops.machine import device
    def opened(*_):
        raise AssertionError("the parent opened the device")
    device.headline = device.fingerprint = device.unmet = measured.clock = opened
"""


def test_the_parent_asks_the_device_nothing_and_leaves_report_and_records_alone(house: House) -> None:
    with open(house.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(PARENT)
    house.claim("demo.one")
    house.test("@pytest.mark.claim('demo.one')\n@pytest.mark.needs('c++')\ndef test_one():\n    assert True\n")
    house.test("def test_time(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=3)\n", "bench/test_b.py")
    done = house.run("--gate-replicates", "2", "--quick")
    assert done.code == 0, done.output
    assert not (house.root / "reports").exists(), done.output
    records = [json.loads(file.read_text()) for file in house.root.glob(".prooflops/history/*/*.json")]
    counts = [(len(record["benchmarks"]), len(record["prooflops"]["verdicts"])) for record in records]
    assert counts == [(1, 1), (1, 1)], f"{counts}, but should be those of the two fresh processes: {done.output}"


def test_the_other_sides_claims_are_compared_where_both_were_checked() -> None:
    before = {"a": "holds", "b": "holds", "c": "not checked", "d": "holds"}
    rows = changed_claims(before, {"a": "holds", "b": "FAILS", "c": "holds", "d": "not checked"})
    assert [(row.name, row.verdict, row.before, row.after) for row in rows] == [("b", "CHANGED", "holds", "FAILS")]
