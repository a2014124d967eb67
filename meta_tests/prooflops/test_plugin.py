"""The plugin in a repository that knows nothing of this suite: it costs next to nothing, and records when asked to."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.conftest import ROOT, run_pytest
from meta_tests.prooflops.foreign import Foreign
from prooflops import plugin
from prooflops.gate import run as gate_run


def test_a_plain_run_leaves_nothing_behind(plain_repo: Foreign) -> None:
    run = plain_repo.run()
    assert run.code == 0
    assert not (plain_repo.root / ".prooflops").exists()


LOADED = ["prooflops", *(f"prooflops.{name}" for name in ("gate", "gate.settings", "hookspecs", "plugin", "run_state"))]


def test_a_plain_run_pays_for_a_few_small_modules(plain_repo: Foreign) -> None:
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(
            "def pytest_unconfigure():\n"
            "    import sys\n"
            "    ours = [name for name in sys.modules if name.split('.')[0] == 'prooflops']\n"
            "    heavy = sorted({'numpy', 'scipy', 'torch', 'pynvml', 'matplotlib'} & set(sys.modules))\n"
            "    print('loaded', sorted(ours), heavy)\n"
        )
    run = run_pytest(plain_repo.root, "-p", "prooflops.plugin", path=ROOT)  # a process that has imported nothing
    assert f"loaded {LOADED} []" in run.output


WATCHED = """
import torch
from prooflops import run_state
from prooflops.machine import contention
from prooflops.machine.conditions import conditions

started = []
start = contention.Watch.start
contention.Watch.start = lambda watch: (started.append(watch), start(watch))

def test_timed(benchmark, request):
    with conditions(torch.device("cpu"), request.config.stash[run_state.WATCH]) as record:
        benchmark.pedantic(sum, args=([1, 2],), rounds=5)
    assert record["contention"]["cores"] >= 1

def test_watches():
    assert len(started) == 1, f"{len(started)} watches of contention were started for one benchmark"
"""


def test_contention_is_watched_once_for_a_benchmark(plain_repo: Foreign) -> None:
    (plain_repo.root / "test_it.py").write_text(WATCHED)
    run = plain_repo.run("test_it.py", "--gate-record", "main")
    assert run.code == 0
    (record,) = plain_repo.records()
    assert '"contended"' in record.read_text()


@pytest.mark.parametrize(("orchestrated", "worker"), [(True, False), (True, True), (False, False)])
def test_the_gate_takes_over_a_run_that_has_several_processes_but_not_a_worker_of_it(
    orchestrated: bool, worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[Any, Any]] = []
    chosen = SimpleNamespace(orchestrated=orchestrated)
    config: Any = SimpleNamespace(addinivalue_line=lambda *line: None, **({"workerinput": {}} if worker else {}))
    monkeypatch.setattr(plugin, "settings", lambda config: chosen)
    monkeypatch.setattr(gate_run, "configure", lambda *arguments: taken.append(arguments))
    plugin.pytest_configure(config)
    assert taken == ([(config, chosen)] if orchestrated and not worker else [])


PACED = """
import pytest
from types import SimpleNamespace

replicate = SimpleNamespace(paces={})

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.register(replicate, "prooflops.gate.replicate")
"""
MARKED = """
import pytest
pytestmark = pytest.mark.gate(min_effect=0.2, direction="both")

@pytest.mark.gate(min_effect=0.1)
def test_sum(benchmark):
    benchmark.pedantic(sum, args=([1],))

def test_pace(gate_replicate, request):
    replicate = request.config.pluginmanager.get_plugin("prooflops.gate.replicate")
    assert gate_replicate is None
    replicate.paces["a"] = {}
    from prooflops.plugin import gate_replicate as fixture
    assert fixture.__wrapped__(request.config) is replicate

def test_end():
    raise ENDING
"""


@pytest.mark.parametrize(
    ("ending", "options", "code", "why"),
    [("KeyboardInterrupt", [], 2, "interrupted"), ("AssertionError", [], 1, ""),
     ("AssertionError", ["-x"], 1, "stopping after 1 failures")],
)  # fmt: skip
def test_a_record_keeps_the_nearest_markers_and_why_its_run_ended_early(
    plain_repo: Foreign, ending: str, options: list[str], code: int, why: str
) -> None:
    (plain_repo.root / "conftest.py").write_text(PACED)
    (plain_repo.root / "test_it.py").write_text(MARKED.replace("ENDING", ending))
    run = plain_repo.run("--gate-record", "main", *options)
    assert (run.code, run.output.count("1 failed")) == (code, int(code == 1)), run.output
    assert "not stored as main: " in run.output
    (path,) = plain_repo.records()
    record = json.loads(path.read_text())
    assert record["prooflops"]["partial"] == why
    assert record["benchmarks"][0]["extra_info"]["gate"] == {"min_effect": 0.1, "direction": "both"}
    listed = plain_repo.run("--gate-history")
    assert "1 records" in listed.output, listed.output
    assert "passed" not in listed.output


def test_a_marker_with_what_no_marker_has_is_refused_with_its_test(plain_repo: Foreign) -> None:
    (plain_repo.root / "test_it.py").write_text(MARKED.replace("min_effect=0.1", "min_effect=7"))
    run = plain_repo.run("--gate-record", "main")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_sum: " in run.output, run.output
    (plain_repo.root / "test_it.py").write_text(MARKED)
    run = plain_repo.run("--gate-baseline", "missing")
    assert (run.code, "passed" in run.output) == (pytest.ExitCode.USAGE_ERROR, False), "it was refused after the tests"
    assert not plain_repo.records()
