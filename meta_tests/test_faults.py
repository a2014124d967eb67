"""Every planted fault turns the claims it names red; without a fault the same claims are not red."""

import importlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from meta_tests.conftest import ROOT
from meta_tests.faults import FAULTS
from proofline.verdicts import load_registry

TOPICS = sorted(path.stem for path in (ROOT / "meta_tests" / "faults").glob("[a-z]*.py"))
for topic in TOPICS:
    importlib.import_module(f"meta_tests.faults.{topic}")


@cache
def results_of(topic: str) -> dict[str, dict[str, Any]]:
    """What became of each fault of a topic; the faults of a topic share one child process."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [sys.executable, "-m", "meta_tests.faults", topic, "--json", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert file.exists(), done.stdout + done.stderr
        return {result["fault"]: result for result in json.loads(file.read_text())}


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: f"{planted.topic}-{planted.name}")
def test_a_planted_fault_turns_the_claims_it_names_red(planted: Any) -> None:
    result = results_of(planted.topic)[planted.name]
    assert not result["unnoticed"], f"{planted.name} went unnoticed by {result['unnoticed']}:\n{result['output']}"
    assert result["exit"] == 1, result["output"]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_at_least_two_faults(topic: str) -> None:
    assert len([planted for planted in FAULTS if planted.topic == topic]) >= 2


def test_every_topic_of_the_registry_has_faults_and_every_fault_names_claims_that_exist() -> None:
    registry = load_registry(ROOT / "test_claims" / "registry")
    assert set(registry.topics) == set(TOPICS)
    unknown = {claim for planted in FAULTS for claim in planted.turns_red} - registry.claims.keys()
    assert not unknown, f"faults name claims that the registry lacks: {sorted(unknown)}"
