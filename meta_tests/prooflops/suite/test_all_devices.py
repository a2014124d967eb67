"""`--device all` on a machine whose cards are stand-ins: processes told apart by environment."""

import pytest

from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops.suite import all_devices
from prooflops.suite.all_devices import ALONE, AT_ONCE, Card

TESTS = """
import os
import time

def test_sleep(benchmark):
    benchmark.pedantic(time.sleep, args=(float(os.environ["SLEEP_S"]),), rounds=6)

def test_other(benchmark):
    benchmark.pedantic(time.sleep, args=(0.01,), rounds=6)

def test_sound():
    assert os.environ["CARD"] != "slow"
"""

# pytest-benchmark's look at the CPU takes a second.
CONFTEST = "def pytest_benchmark_generate_machine_info():\n    return {}\n"


def card(name, sleep_s=0.02):
    return Card(name, (), {"CARD": name, "SLEEP_S": str(sleep_s)})


def validate(tmp_path, *cards):
    (tmp_path / "test_cards.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = []
    config = config_in(
        tmp_path, "-q", "-p", "benchmark", "-p", "prooflops_gate.plugin", "--lf", "--junitxml=x.xml"
    )
    command = all_devices.command_of(config, tmp_path / "cards")
    with pytest.MonkeyPatch.context() as patch:
        # Others take a third of each of the eight processes.
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        found = all_devices.validate(cards, command, tmp_path, tmp_path / "cards", said.append)
    code = all_devices.conclude(found, tmp_path / "cards", said.append)
    return code, "\n".join(said)


def test_a_slow_card_is_named_and_a_failing_one_ends_in_1(tmp_path):
    code, said = validate(tmp_path, *(card(f"gpu:{n}") for n in range(3)), card("slow", 0.3))
    assert code == 1, said
    assert "slow alone: exit 1, with a record" in said
    assert "gpu:0 alone: exit 1" not in said
    assert "FAILED test_cards.py::test_sound" in said
    for phase in (ALONE, AT_ONCE):
        named = [line for line in said.splitlines() if line.startswith(f"{phase}: suspect: slow: ")]
        assert len(named) == 1, said
    assert (tmp_path / "cards" / "cards.md").read_text().count("| sleep |") == 3
