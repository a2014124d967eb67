"""A run is recorded with its machine and its markers, or says why it is not."""

import json
import os
from importlib import metadata

import pytest

from meta_tests.prooflops_gate.foreign_repo import add_hooks, run
from prooflops_gate import __version__
from prooflops_gate.history import records

RACK = """
def pytest_gate_update_fingerprint(config, fingerprint):
    fingerprint['rack'] = 4

def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info['rack'] = 4
"""


SUMS = """
import pytest

@pytest.mark.gate(min_effect=0.2)
def test_sum(benchmark):
    benchmark.pedantic(sum, args=([1, 2],), rounds=5)

def test_other(benchmark):
    benchmark.pedantic(sum, args=([1],))
"""


def records_in(folder):
    return records.record_files(folder / ".prooflops" / "history")


def test_a_record_says_which_code_ran_on_which_machine(foreign):
    add_hooks(foreign, RACK)
    (foreign / "test_it.py").write_text(SUMS)
    variables = {"PROOFLOPS_HISTORY": "elsewhere", "OMP_NUM_THREADS": "1"}
    done = run(foreign, "test_it.py", "--gate-record", "main", **variables)
    assert done.code == 0
    (path,) = records.record_files(foreign / "elsewhere")
    content = json.loads(path.read_text())
    ours, (marked, other) = content["prooflops"], content["benchmarks"]
    assert (ours["schema"], ours["version"], ours["partial"]) == (1, __version__, "")
    found = ours["fingerprint"]
    assert (found["cores"], found["rack"]) == (os.cpu_count(), 4)
    assert found["environment"]["OMP_NUM_THREADS"] == "1"
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "pytest-benchmark")}
    assert found["packages"] == versions, "torch counts where the tests import it"
    assert marked["extra_info"]["gate"] == {"min_effect": 0.2}
    assert "contended" in other["extra_info"]["contention"]
    assert "data" not in marked["stats"], "nothing compares the rounds"
    assert content["machine_info"]["rack"] == 4


def test_a_full_disk_is_reported_and_the_history_stays(foreign):
    add_hooks(foreign, "def pytest_gate_fingerprint(): return {'name': 'A card'}\n")
    assert run(foreign, "--gate-record", "main").code == 0
    (before,) = records_in(foreign)
    assert before.parent.name.startswith("A-card-")
    text = before.read_text()
    files = sorted((foreign / ".prooflops").rglob("*"))
    add_hooks(
        foreign,
        "import os\ndef full(_): raise OSError(28, 'No space left on device')\nos.fsync = full\n",
    )
    done = run(foreign, "--gate-record", "main")
    assert done.code == 1
    assert "history: [Errno 28] No space left on device" in done.output
    assert "INTERNALERROR" not in done.output
    assert before.read_text() == text
    assert sorted((foreign / ".prooflops").rglob("*")) == files, "no litter is left"


MARKED = """
import pytest, sys
sys.modules["torch"] = sys
pytestmark = pytest.mark.gate(min_effect=0.2, ignore=True)

@pytest.mark.gate(min_effect=0.1)
def test_sum(benchmark):
    benchmark.pedantic(sum, args=([1],))

def test_end(gate_replicate):
    assert gate_replicate is None
    raise ENDING
"""


@pytest.mark.parametrize(
    ("ending", "options", "code", "why"),
    [("KeyboardInterrupt", [], 2, "interrupted"), ("AssertionError", [], 1, ""),
     ("AssertionError", ["-x"], 1, "stopping after 1 failures")],
)  # fmt: skip
def test_a_record_keeps_the_nearest_markers_and_why_its_run_ended_early(
    foreign, ending, options, code, why
):
    (foreign / "test_it.py").write_text(MARKED.replace("ENDING", ending))
    done = run(foreign, "test_it.py", "--gate-record", "main", *options)
    assert done.code == code
    assert "not stored as main: " in done.output
    (path,) = records_in(foreign)
    record = json.loads(path.read_text())
    assert record["prooflops"]["partial"] == why
    assert "torch" in record["prooflops"]["fingerprint"]["packages"]
    assert record["benchmarks"][0]["extra_info"]["gate"] == {"min_effect": 0.1, "ignore": True}
