"""The plugin in a repository that knows nothing of this suite.

It costs next to nothing, and records when asked to.
"""

import json
import os
from importlib import metadata

import pytest

from meta_tests.conftest import ROOT, run_pytest
from prooflops_gate import __version__

MODULES = ("hookspecs", "needs", "options", "plugin", "run_state", "unpatched")
LOADED = ["prooflops_gate", *(f"prooflops_gate.{name}" for name in MODULES)]


def test_a_plain_run_loads_a_few_small_modules_and_leaves_nothing(
    plain_repo,
):
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(
            "def pytest_unconfigure():\n"
            "    import sys\n"
            "    ours = [name for name in sys.modules if name.split('.')[0] == 'prooflops_gate']\n"
            "    heavy = sorted({'numpy', 'scipy', 'torch', 'pynvml'} & set(sys.modules))\n"
            "    print('loaded', sorted(ours), heavy)\n"
        )
    # A process that has imported nothing.
    run = run_pytest(plain_repo.root, "-p", "prooflops_gate.plugin", path=ROOT)
    assert f"loaded {LOADED} []" in run.output
    assert not (plain_repo.root / ".prooflops").exists()


RACK = """
def pytest_gate_update_fingerprint(config, fingerprint):
    fingerprint['rack'] = 4

def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info['rack'] = 4
"""


def test_a_record_says_which_code_ran_on_which_machine(plain_repo):
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(RACK)
    with open(plain_repo.root / "test_it.py", "a", encoding="utf-8") as tests:
        tests.write("import pytest\ntest_sum = pytest.mark.gate(min_effect=0.2)(test_sum)\n")
        tests.write("def test_other(benchmark):\n    benchmark.pedantic(sum, args=([1],))\n")
    run = plain_repo.run(
        "--gate-record", "main", PROOFLOPS_HISTORY="elsewhere", OMP_NUM_THREADS="1"
    )
    assert run.code == 0
    (path,) = plain_repo.records("elsewhere")
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


def test_a_full_disk_is_reported_and_the_history_stays(plain_repo):
    assert plain_repo.run("--gate-record", "main").code == 0
    (before,) = plain_repo.records()
    text = before.read_text()
    files = sorted((plain_repo.root / ".prooflops").rglob("*"))
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(
            "import os\n"
            "def full(_): raise OSError(28, 'No space left on device')\n"
            "os.fsync = full\n"
        )
    run = plain_repo.run("--gate-record", "main")
    assert run.code == 1
    assert "No space left on device" in run.output
    assert "INTERNALERROR" not in run.output
    assert before.read_text() == text
    assert sorted((plain_repo.root / ".prooflops").rglob("*")) == files, "no litter is left"


MARKED = """
import pytest
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
    plain_repo, ending, options, code, why
):
    (plain_repo.root / "test_it.py").write_text(MARKED.replace("ENDING", ending))
    run = plain_repo.run("--gate-record", "main", *options)
    assert run.code == code
    assert "not stored as main: " in run.output
    (path,) = plain_repo.records()
    record = json.loads(path.read_text())
    assert record["prooflops"]["partial"] == why
    assert record["benchmarks"][0]["extra_info"]["gate"] == {"min_effect": 0.1, "ignore": True}


def test_wrong_markers_are_refused_before_anything_runs(plain_repo):
    (plain_repo.root / "test_it.py").write_text(MARKED.replace("min_effect=0.1", "min_effect=7"))
    run = plain_repo.run("--gate-record", "main")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_sum: " in run.output
    assert not plain_repo.records()
