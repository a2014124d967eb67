"""The plugin in a repository that knows nothing of this suite: it costs next to nothing, and records when asked to."""

from meta_tests.conftest import ROOT, run_pytest
from meta_tests.prooflops.foreign import Foreign


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
