"""The record of one run: what it says of machine and run, where it is kept, and what happens where it cannot be."""

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.prooflops.foreign import Foreign
from prooflops import __version__, run_state
from prooflops.history import record
from prooflops.machine import cpu, nvml


def test_the_environment_says_where_the_history_is_and_the_record_what_ran_on_what(plain_repo: Foreign) -> None:
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write("def pytest_gate_update_fingerprint(config, fingerprint):\n")
        conftest.write("    fingerprint['rack'] = 4 + config.option.verbose\n")
        for kind in ("machine", "commit"):
            conftest.write(f"def pytest_benchmark_update_{kind}_info(config, {kind}_info):\n")
            conftest.write(f"    {kind}_info['rack'] = 4 + config.option.verbose\n")
    with open(plain_repo.root / "test_it.py", "a", encoding="utf-8") as tests:
        tests.write("import pytest\ntest_sum = pytest.mark.gate(min_effect=0.2)(test_sum)\n")
        tests.write("def test_other(benchmark):\n    benchmark.pedantic(sum, args=([1],))\n")
    threads = dict.fromkeys(record.SETTING_VARIABLES, "1")
    run = plain_repo.run("--gate-record", "main", PROOFLOPS_HISTORY="elsewhere", **threads)
    assert run.code == 0
    (path,) = plain_repo.records("elsewhere")
    content = json.loads(path.read_text())
    ours = content["prooflops"]
    assert (ours["schema"], ours["version"], ours["verdicts"], ours["partial"]) == (1, __version__, [], "")
    assert ours["arguments"][-2:] == ["--gate-record", "main"]
    ours["fingerprint"].pop("accelerators")
    assert ours["fingerprint"] == {
        "name": cpu.name(), "cores": os.cpu_count(), "usable_cores": len(cpu.allowed_cores()),
        "python": f"CPython {platform.python_version()}", "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: metadata.version(name) for name in ("numpy", "scipy", "pytest-benchmark")},
        "environment": {
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMEXPR_NUM_THREADS": "1",
            "PYTHONHASHSEED": "1",
        },
        "rack": 4,
    }  # fmt: skip
    marked, other = content["benchmarks"]
    assert (marked["extra_info"]["gate"], "gate" in other["extra_info"]) == ({"min_effect": 0.2}, False)
    assert "contended" in other["extra_info"]["contention"]
    assert "data" not in marked["stats"], "nothing compares the rounds"
    assert (content["machine_info"]["rack"], content["commit_info"]["rack"]) == (4, 4)
    assert (content["machine_info"]["node"], content["commit_info"]["id"]) == (platform.node(), "unversioned")


def test_the_cards_are_in_the_fingerprint_with_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "gpu_names", lambda: ["A card", "A card"])
    for driver, said in (("550.1", ["550.1", "A card", "A card"]), (None, [])):
        monkeypatch.setattr(nvml, "driver_version", lambda driver=driver: driver)
        assert record.plain_fingerprint.__wrapped__()["accelerators"] == said


def test_a_package_counts_where_it_is_installed_and_torch_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch = {name: metadata.version(name) for name in ("numpy", "scipy", "pytest-benchmark")}
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert record.plain_fingerprint.__wrapped__()["packages"] == without_torch
    installed = {"torch": "2.6.0", **without_torch}
    monkeypatch.setattr(metadata, "version", installed.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert record.plain_fingerprint.__wrapped__()["packages"] == installed
    monkeypatch.undo()
    monkeypatch.setattr(record, "PACKAGES", ("no-such-package",))
    assert record.plain_fingerprint.__wrapped__()["packages"] == {}


@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("suite", [False, True])
def test_rounds_are_kept_for_the_suite_and_where_pytest_benchmark_is_asked_to(asked: bool | None, suite: bool) -> None:
    options = {} if asked is None else {"benchmark_save_data": asked}
    plugins = {"prooflops.run"} if suite else set()
    config: Any = SimpleNamespace(
        getoption=options.get, pluginmanager=SimpleNamespace(hasplugin=lambda name: name in plugins)
    )
    assert record.keeps_rounds(config) == bool(asked or suite)


def test_without_pytest_benchmark_there_are_no_benchmarks() -> None:
    config: Any = SimpleNamespace()
    assert record.benchmark_json(config) == {"benchmarks": [], "machine_info": {}, "commit_info": {}}


def test_a_replicate_writes_its_record_where_it_was_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = SimpleNamespace(stash={})
    monkeypatch.setenv(run_state.REPLICATE, str(tmp_path / "its own"))
    assert record.save(config, {"a": 1}, tmp_path / "history") == tmp_path / "its own"
    assert (json.loads((tmp_path / "its own").read_text()), len(list(tmp_path.iterdir()))) == ({"a": 1}, 1)
    assert config.stash == {run_state.RECORD_PATH: tmp_path / "its own"}


def test_a_full_disk_is_reported_and_the_history_stays(plain_repo: Foreign) -> None:
    assert plain_repo.run("--gate-record", "main").code == 0
    (before,) = plain_repo.records()
    text = before.read_text()
    with open(plain_repo.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write("import os\ndef full(_): raise OSError(28, 'No space left on device')\nos.fsync = full\n")
    run = plain_repo.run("--gate-baseline", "main")
    assert run.code == 1
    assert "could not be stored" in run.output
    assert "No space left on device" in run.output
    assert "INTERNALERROR" not in run.output
    assert plain_repo.records() == [before]
    assert before.read_text() == text
