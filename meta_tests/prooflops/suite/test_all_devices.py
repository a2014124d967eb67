"""`--device all` on a machine whose cards are stand-ins: processes told apart by `--device`."""

import pytest

from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops.machine import device as machine
from prooflops.suite import all_devices
from prooflops_gate.history.records import record_files

TESTS = """
import time

def test_sleep(benchmark, pytestconfig):
    seconds = 0.3 if pytestconfig.option.device == "slow" else 0.02
    benchmark.pedantic(time.sleep, args=(seconds,), rounds=6)

def test_other(benchmark):
    benchmark.pedantic(time.sleep, args=(0.01,), rounds=6)

def test_sound(pytestconfig):
    assert pytestconfig.option.device != "slow"
"""

# pytest-benchmark's look at the CPU takes a second.
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--device")

def pytest_benchmark_generate_machine_info():
    return {}
"""


def validate(tmp_path, *cards):
    (tmp_path / "test_cards.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = []
    config = config_in(
        tmp_path, "-q", "-p", "benchmark", "-p", "prooflops_gate.plugin", "--lf", "--junitxml=x.xml"
    )
    folder = tmp_path / "reports" / "cards"
    command = all_devices.command_of(config, folder)
    with pytest.MonkeyPatch.context() as patch:
        # Others take a third of each of the eight processes.
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        found = all_devices.validate(cards, command, tmp_path, folder, said.append)
    all_devices.store(found, tmp_path / "history")
    code = all_devices.conclude(found, folder, said.append)
    return code, "\n".join(said), folder


def test_a_slow_card_is_named_and_a_failing_one_ends_in_1(tmp_path):
    code, said, folder = validate(tmp_path, "gpu:0", "gpu:1", "gpu:2", "slow")
    assert code == 1, said
    output = folder / "slow.txt"
    assert f"slow: exit 1, with a record; its output: {output}" in said
    assert "gpu:0: exit 0" in said
    assert "FAILED test_cards.py::test_sound" in output.read_text()
    records = record_files(tmp_path / "history")
    assert len({path.parent for path in records}) == 4, "the cards' records lie apart"
    page = (folder / "cards.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| slow | suspect")], page


def test_a_single_card_is_validated_alone_and_none_is_refused(tmp_path, monkeypatch):
    config = config_in(tmp_path, "-p", "prooflops_gate.plugin")
    monkeypatch.setattr(machine, "counts", lambda: {"cuda": 1})
    assert all_devices.run(config) is None
    assert config.option.device == "cuda:0"
    refused = (({}, "has no accelerator; valid here: cpu"), ({"cuda": 2}, "exclude each other"))
    config = config_in(tmp_path, "-p", "prooflops_gate.plugin", "--gate-noise-floor")
    for counts, why in refused:
        monkeypatch.setattr(machine, "counts", lambda counts=counts: counts)
        with pytest.raises(pytest.UsageError, match=why):
            all_devices.run(config)
