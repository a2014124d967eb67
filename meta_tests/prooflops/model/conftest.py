"""One run over each of the users' models, shared because it takes most of the tests' time."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import ROOT, ChildRun, new_house, run_pytest_for_each

SPECS = {
    "resnet": "zoo.resnet:factory",
    "gpt": "zoo.gpt:factory",
    "own": "zoo.own:Factories.factory",
}
QUICK = "-p no:cacheprovider --device cpu --quick"
# What takes most of a run's time, and a shorter form of it.
SLOW = {
    "streams.py": ('"quick": 2**27', '"quick": 2**20'),
    "rounds.py": ("Pace(0.02, 0.05, 0.08,", "Pace(0.005, 0.01, 0.01,"),
}
PLANTED = """
from prooflops.model import examination, flop_difference, step_memory
flop_difference.ProductsOfParameters._track_derived = lambda self, tensors, outputs: False
shares = flop_difference.ProductsOfParameters._shares
def seven_eighths(self, factors, flops):
    return shares(self, factors, flops - flops // 8)
flop_difference.ProductsOfParameters._shares = seven_eighths
wrong = lambda tensors: sum(tensor.numel() for tensor in tensors)
examination.bytes_of = step_memory.bytes_of = step_memory.storage_bytes_of = wrong
"""
OF_THE_MACHINE = (
    'import pytest\n@pytest.mark.claim("optim.sgd-none")\ndef test_of_the_machine():\n    pass\n'
)
each_model = pytest.mark.parametrize("name", SPECS)


@dataclass(frozen=True)
class Examined:
    """A run over one model, and the files that it left."""

    run: ChildRun
    facts: dict[str, Any]
    page: str


def model_house(folder, *, registry=True):
    """The suite with no tests but those of a user's model, with or without the registry.

    The models are in `zoo`.
    """
    root = new_house(folder).root
    for file in ("conftest.py", "strategies.py", "test_user_model.py"):
        shutil.copy(ROOT / "test_claims" / file, root / "test_claims")
    shutil.copytree(ROOT / "test_claims" / "oracles", root / "test_claims" / "oracles")
    for file in (ROOT / "bench").glob("*.py"):
        if not file.name.startswith("test_") or file.name == "test_user_model.py":
            shutil.copy(file, root / "bench")
    for file, (slow, brief) in SLOW.items():
        text = (root / "bench" / file).read_text()
        assert slow in text, f"{file} lacks {slow}, which takes most of a run's time"
        (root / "bench" / file).write_text(text.replace(slow, brief))
    if registry:
        shutil.copytree(
            ROOT / "test_claims" / "registry", root / "test_claims" / "registry", dirs_exist_ok=True
        )
    shutil.copytree(
        ROOT / "meta_tests" / "user_models",
        root / "zoo",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return root


DOCS = (ROOT / "docs" / "your-model.md").read_text()
# Variants of a model, as a file of the user's.
VARIANTS = re.search(r"```python\n(import torch.*?)```", DOCS, re.DOTALL)
FEW = """
import torch

def scale():
    return torch.nn.Linear(1, 1), torch.ones(1, 1)

def bias():
    return torch.nn.LayerNorm(2), torch.ones(2)

def table():
    return torch.nn.Embedding(2, 2), torch.zeros(1, dtype=torch.long)
"""


@pytest.fixture(scope="package")
def examined_house(tmp_path_factory):
    root = model_house(tmp_path_factory.mktemp("house"))
    (root / "planted.py").write_text(PLANTED)
    (root / "stops.py").write_text("def pytest_runtest_logfinish():\n    raise KeyboardInterrupt\n")
    (root / "test_claims" / "test_demo.py").write_text(OF_THE_MACHINE)
    (root / "few.py").write_text(FEW)
    assert VARIANTS
    (root / "nets.py").write_text(VARIANTS[1])
    return root


@pytest.fixture(scope="package")
def runs(examined_house):
    """A run over each model, and others over some of them, in one process."""
    lines = {name: f"{QUICK} --model {spec} --report={name}" for name, spec in SPECS.items()}
    others = f"{QUICK} -k 'not where_it_goes' --model"
    lines["looking"] = f"{others} zoo.own:looking --report=looking test_claims/test_demo.py"
    lines["checkpointed"] = f"{others} zoo.own:checkpointed --report=checkpointed"
    lines["planted"] = f"{others} zoo.gpt:factory --report=planted -p planted"
    lines["stopped"] = f"{others} zoo.own:looking --report=stopped -p stops"
    of_docs = re.search(r"^pytest (--model nets.py:small.*)$", DOCS, re.MULTILINE)
    assert of_docs
    lines["variants"] = f"{QUICK} {of_docs[1]} --report=variants -k 'where_it_goes or largest'"
    few = " ".join(f"--model few.py:{name}" for name in ("scale", "bias", "table"))
    lines["few"] = f"{QUICK} {few} --report=few -k 'percent or where_it_goes'"
    done = run_pytest_for_each(examined_house, lines.values())
    return {name: done[line] for name, line in lines.items()}


@pytest.fixture(scope="package")
def examined(examined_house, runs):
    """What each run over one model left."""

    def left(name, suffix):
        (file,) = (examined_house / name).glob(f"model-*.{suffix}")
        return file.read_text()

    return {
        name: Examined(run, json.loads(left(name, "json")), left(name, "md"))
        for name, run in runs.items()
        if name not in ("variants", "few")
    }
