"""Runs with `--model`: its one test, the pages that it leaves, what is refused before."""

import json
import re
import shutil

import pytest
import torch

from meta_tests.conftest import ROOT, House, new_house, run_pytest_for_each
from prooflops.suite.peaks import Peaks

DOCS = (ROOT / "docs" / "how-to" / "largest.md").read_text()
# What takes most of a run's time, and a shorter form of it.
SLOW = {
    "streams.py": ('"quick": 2**27', '"quick": 2**20'),
    "rounds.py": ("Pace(0.02, 0.05, 0.08,", "Pace(0.005, 0.01, 0.01,"),
}
# A model of a few bytes, whose training step has no large product.
FEW = """
import torch

def scale():
    return torch.nn.Linear(1, 1), torch.ones(1, 1)

def table():
    return torch.nn.Embedding(2, 2), torch.zeros(1, dtype=torch.long)

class Reading(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.sum().item()

def reading(batch=2):
    return Reading(1, 1), torch.ones(batch, 1)
"""
REFUSED = {
    "--model few.py:scal": "did you mean 'scale'",
    "--model few.py:scale --model few.py:FEW": "few.py:FEW: the factory must be one of scale",
    "--model few.py:scale --model-largest batch": "none: give it one, such as batch=8",
    "--model nets.py:small --model-largest size": "must be an argument of nets.py:small",
    "--model few.py:scale --claim demo.holds": "--model and --claim exclude each other",
    "--fits": "name it by --model",
}


@pytest.fixture(scope="module")
def model_house(tmp_path_factory):
    """The suite without claims, and with no benchmark but that of a user's model."""
    root = new_house(tmp_path_factory.mktemp("house")).root
    House(root).claim("demo.holds")
    for file in (ROOT / "bench").glob("*.py"):
        if not file.name.startswith("test_") or file.name == "test_user_model.py":
            shutil.copy(file, root / "bench")
    for file, (slow, brief) in SLOW.items():
        text = (root / "bench" / file).read_text()
        assert slow in text, f"{file} lacks {slow}, which takes most of a run's time"
        (root / "bench" / file).write_text(text.replace(slow, brief))
    (root / "stops.py").write_text("def pytest_runtest_logfinish():\n    raise KeyboardInterrupt\n")
    (root / "few.py").write_text(FEW)
    variants = re.search(r"```python\n(import torch.*?)```", DOCS, re.DOTALL)
    (root / "nets.py").write_text(variants[1])
    return root


@pytest.fixture(scope="module")
def runs(model_house):
    of_docs = re.search(r"pytest (--model=nets.py:small.*)$", DOCS, re.MULTILINE)
    few = "--model few.py:scale --model few.py:table"
    lines = {
        "variants": f"{of_docs[1]} --report=variants",
        "few": f"{few} --report=few",
        "unanswered": "--model few.py:reading --model-largest batch --report=unanswered",
        "stopped": f"{few} --report=stopped -p stops",
        "without": "--collect-only bench",
        **{line: line for line in REFUSED},
    }
    quick = "-p no:cacheprovider --device cpu --quick"
    lines = {name: f"{quick} {line}" for name, line in lines.items()}
    done = run_pytest_for_each(model_house, lines.values())
    return {name: done[line] for name, line in lines.items()}


def test_the_variants_of_the_docs_have_a_time_and_their_largest_batch(model_house, runs):
    run = runs["variants"]
    assert run.code == 0, run.output
    assert "2 passed" in run.output
    peaks = Peaks(torch.device("cpu")).derived
    for name in ("small", "large"):
        file = model_house / "variants" / f"model-nets.py-{name}.json"
        facts = json.loads(file.read_text())
        assert facts["step"]["seconds"] > 0
        known = facts["step"]["peak_flop_per_s"]["fp32"] is not None
        assert known == ("fp32" in peaks), "a CPU's peak follows from its units and clock"
        for row in facts["fits"]["rows"]:
            assert row["largest"]["batch"] > 100, row
        assert f"nets.py:{name} = Sequential with AdamW, on cpu" in run.output


def test_models_of_a_few_bytes_or_without_a_product_pass(runs):
    assert runs["few"].code == 0, runs["few"].output
    assert "2 passed" in runs["few"].output


def test_a_question_without_an_answer_fails_the_run_in_its_last_lines(runs):
    run = runs["unanswered"]
    assert run.code == 1, run.output
    assert "1 passed" in run.output
    last = run.output.rstrip().splitlines()[-1]
    reason = "not predicted: RuntimeError: the block reads values"
    assert last.startswith(f"NOT KNOWN for few.py:reading: {reason}"), run.output


def test_an_interrupted_run_keeps_its_figures_and_says_it_is_a_part(model_house, runs):
    run = runs["stopped"]
    assert run.code == pytest.ExitCode.INTERRUPTED
    (page,) = (model_house / "stopped").glob("*.md")
    for text in (run.output, page.read_text()):
        assert "partial run: interrupted, after 1 of " in text
    assert "- N: " in page.read_text()


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_option_ends_the_run_before_any_test(runs, line):
    run = runs[line]
    assert run.code == 4, run.output
    assert REFUSED[line] in run.output, run.output
    assert "Traceback" not in run.output


def test_without_the_option_its_test_is_silent(runs):
    assert runs["without"].code == 5, runs["without"].output
    assert "user_model" not in runs["without"].output
