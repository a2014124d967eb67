"""The history of a repo that knows nothing of this suite: kept, named, compared, and never in its way."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import ROOT, ChildRun
from meta_tests.prooflops.history.stress_history_writers import kill_writers
from prooflops.gate.settings import marker_settings
from prooflops.history import records as history

EXACT = ("flops",)


class Foreign:
    """A repo with a benchmark, a conftest of its own, and the plugin."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "conftest.py").write_text(
            "def pytest_addoption(parser):\n"
            "    parser.addoption('--device', default='tpu')\n"
            "    parser.addoption('--model', default='m')\n"
        )
        self.test(3)

    def test(self, flops: int, name: str = "test_sum") -> None:
        (self.root / "test_it.py").write_text(
            f"def {name}(benchmark, request):\n"
            "    assert request.config.getoption('--device') == 'tpu'\n"
            f"    benchmark.extra_info['flops'] = {flops}\n"
            "    benchmark.extra_info['bytes'] = (1, 2)\n"  # a list in JSON: unchanged all the same
            "    benchmark.pedantic(sum, args=([1, 2],), rounds=5, iterations=10)\n"
        )

    def run(self, *arguments: str, **environment: str) -> ChildRun:
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PROOFLOPS_"))}
        command = [sys.executable, "-m", "pytest", "-p", "prooflops.plugin", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**plain, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return ChildRun(done.returncode, done.stdout + done.stderr)

    def records(self, folder: str = ".prooflops/history") -> list[Path]:
        return [path for path, _ in history.records(self.root / folder)]


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


def test_a_plain_run_leaves_nothing_behind(foreign: Foreign) -> None:
    run = foreign.run()
    assert run.code == 0, run.output
    assert not (foreign.root / ".prooflops").exists()


LOADED = ["prooflops", *(f"prooflops.{name}" for name in ("gate", "gate.settings", "hookspecs", "plugin", "run_state"))]


def test_a_plain_run_pays_for_a_few_small_modules(foreign: Foreign) -> None:
    with open(foreign.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(
            "def pytest_unconfigure():\n"
            "    import sys\n"
            "    ours = [name for name in sys.modules if name.split('.')[0] == 'prooflops']\n"
            "    heavy = sorted({'numpy', 'scipy', 'torch', 'pynvml', 'matplotlib'} & set(sys.modules))\n"
            "    print('loaded', sorted(ours), heavy)\n"
        )
    run = foreign.run()
    assert f"loaded {LOADED} []" in run.output, run.output


def test_a_recorded_run_is_listed_named_and_compared(foreign: Foreign) -> None:
    run = foreign.run("--gate-record", "main")
    assert run.code == 0, run.output
    foreign.test(4)
    run = foreign.run("--gate-baseline", "main", "--benchmark-autosave")
    assert "1 CHANGED" in run.output, run.output
    assert "INCONCLUSIVE" in run.output, run.output
    assert len(foreign.records()) == 2
    assert len(list(foreign.root.glob(".benchmarks/*/*.json"))) == 1, "pytest-benchmark's own storage should go on"
    foreign.test(4, name="test_renamed")
    run = foreign.run("--gate-baseline", "latest")
    assert "1 MISSING" in run.output, run.output
    assert "1 NEW" in run.output, run.output
    listed = foreign.run("--gate-history", "-v").output
    assert "3 records" in listed, listed
    assert "baseline main" in listed, listed
    assert "test_renamed" in listed, listed


def test_a_run_that_did_not_succeed_is_no_baseline(foreign: Foreign) -> None:
    (foreign.root / "test_last.py").write_text("def test_last():\n    assert False\n")
    for options, code, told in (([], 1, "tests failed"), (["-k", "nothing"], 5, "no test ran")):
        run = foreign.run("--gate-record", "main", *options)
        assert (run.code, f"not stored as main: {told}" in run.output) == (code, True), run.output
    assert not history.baselines(foreign.root / ".prooflops" / "history")


def test_a_benchmark_that_is_skipped_is_not_missing(foreign: Foreign) -> None:
    assert foreign.run("--gate-record", "main").code == 0
    (foreign.root / "conftest.py").write_text("import pytest\ndef pytest_runtest_setup(): pytest.skip('not today')\n")
    run = foreign.run("--gate-baseline", "main")
    assert "MISSING" not in run.output, run.output
    assert "INCONCLUSIVE: skipped this time: not today" in run.output, run.output


def test_the_environment_says_where_the_history_is(foreign: Foreign, tmp_path: Path) -> None:
    run = foreign.run("--gate-record", "main", PROOFLOPS_HISTORY="elsewhere")
    assert run.code == 0, run.output
    assert len(foreign.records("elsewhere")) == 1


def test_another_machines_baseline_is_refused_with_the_difference_named(foreign: Foreign) -> None:
    assert foreign.run("--gate-record", "main").code == 0
    run = foreign.run("--gate-baseline", "main", OMP_NUM_THREADS="7")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "OMP_NUM_THREADS: None -> 7" in run.output, run.output


def test_a_full_disk_is_said_in_words_and_the_history_stays(foreign: Foreign) -> None:
    assert foreign.run("--gate-record", "main").code == 0
    (before,) = foreign.records()
    text = before.read_text()
    (foreign.root / "sitecustomize.py").write_text(
        "import os\n"
        "def full(descriptor): raise OSError(28, 'No space left on device')\n"
        "os.fsync = full\n"
    )  # fmt: skip
    run = foreign.run("--gate-baseline", "main", PYTHONPATH=f"{foreign.root}{os.pathsep}{ROOT}")
    assert run.code == 1, run.output
    assert "could not be stored" in run.output, run.output
    assert "No space left on device" in run.output, run.output
    assert "INTERNALERROR" not in run.output, run.output
    assert foreign.records() == [before]
    assert before.read_text() == text


def test_a_file_too_large_for_the_disk_leaves_nothing_of_itself(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys; from pathlib import Path; from prooflops.history import records as history\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "history.append(Path(sys.argv[1]), {'padding': 'x' * 200_000}, {'name': 'a'})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert "File too large" in done.stderr, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_killed_writers_had_stored_is_all_there(tmp_path: Path) -> None:
    found = kill_writers(tmp_path, 20)
    assert found["kills"] == 20
    assert found["said"] >= 20


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--gate"], "--gate-baseline"),
        (["--gate-versus", "a", "--gate-baseline", "b"], "exclude each other"),
        (["--gate-baseline", "b", "--gate-min-effect", "3"], "such as 5% or 0.05"),
        (["--gate-baseline", "b", "--gate-min-effect=-1%"], "such as 5% or 0.05"),
        (["--gate-replicates", "0"], "whole number of 1 or more"),
        (["--gate-budget", "nan"], "positive number"),
        (["--gate-record", "a/b"], "letters, digits"),
        (["--gate-baseline", "nowhere"], "no baseline of that name"),
        (["--gate-strict"], "--gate"),
        (["--gate-record", "a", "--gate-baseline", "b", "--gate-replicates", "2"], "compares with nothing"),
        (["--gate-baseline", __file__], "write --gate-baseline="),
        (["--gate-record", "a", "--benchmark-skip"], "--benchmark-skip leaves nothing"),
    ],
)
def test_an_impossible_option_is_refused_before_anything_runs(foreign: Foreign, options: list[str], told: str) -> None:
    run = foreign.run(*options)
    assert run.code == pytest.ExitCode.USAGE_ERROR, run.output
    assert told in run.output, run.output
    assert "passed" not in run.output


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("0.1", "takes min_effect, direction, ignore by name, got 0.1"),
        ("effect=0.1", "got effect=0.1"),
        ("min_effect=3", "min_effect should be a share between"),
        ("direction='up'", "direction should be one of slower, faster, both, got 'up'"),
        ("ignore='no'", "ignore should be True or False, got 'no'"),
    ],
)
def test_a_marker_that_says_nothing_valid_is_refused_by_the_name_of_its_test(given: str, told: str) -> None:
    marker = eval(f"pytest.mark.gate({given})", {"pytest": pytest}).mark
    with pytest.raises(ValueError) as refused:
        marker_settings(marker)
    assert told in str(refused.value)


def large_history(folder: Path, count: int, benchmarks: int, rounds: int) -> None:
    """So many records of one machine, written the short way: what is timed is the reading."""
    data = [1.0 + 0.001 * index for index in range(rounds)]
    rows: list[dict[str, Any]] = [
        {"fullname": f"test_it.py::test_{index}", "stats": {"min": 1.0, "data": data}, "extra_info": {"flops": index}}
        for index in range(benchmarks)
    ]
    record = {"benchmarks": rows, "prooflops": {"fingerprint": {"name": "a"}}}
    first = history.append(folder, record, {"name": "a"})
    for index in range(count - 1):
        shutil.copy2(first, first.with_name(f"20260101T000000.{index:06d}Z-00000000.json"))


def test_a_long_history_is_read_by_its_index(tmp_path: Path) -> None:
    large_history(tmp_path, 200, 20, 20)
    first = history.summaries(tmp_path, EXACT)
    start = time.perf_counter()
    again = history.summaries(tmp_path, EXACT)
    took_s = time.perf_counter() - start
    assert again == first
    assert len(again) == 200
    assert took_s < 2, f"a fifth of 1,000 records of 20 benchmarks took {took_s:.2f} s to list, but should take < 2 s"


def test_a_record_that_changed_is_read_again_whatever_the_index_says(tmp_path: Path) -> None:
    large_history(tmp_path, 3, 1, 1)
    history.summaries(tmp_path, EXACT)
    path = next(iter(history.records(tmp_path)))[0]
    text = path.read_text()
    path.write_text(text.replace('"min": 1.0', '"min": 7.0'))  # of the same size: the time of writing tells
    assert path.stat().st_size == len(text.encode())
    index = path.parent / "index.jsonl"
    index.write_text("nonsense\n" + index.read_text() + '{"stamp": ')
    (changed, *_) = history.summaries(tmp_path, EXACT)
    assert isinstance(changed, history.Summary)
    assert changed.benchmarks["test_it.py::test_0"].time_s == 7.0
