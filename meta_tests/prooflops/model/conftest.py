"""One run over each of the users' models, which the tests of this folder share: it takes most of their time."""

import json
from pathlib import Path

import pytest

from meta_tests.conftest import run_pytest_for_each
from meta_tests.prooflops.model.model_house import LAST_VALIDATION, SPECS, Examined, model_house

NOTHING_PLANTED = "-p no:cacheprovider --device cpu --quick"
PLANTED = f"{NOTHING_PLANTED} -k 'not where_it_goes' -p planted --model zoo.gpt:factory --report=planted"


@pytest.fixture(scope="package")
def examined_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = model_house(tmp_path_factory.mktemp("house"))
    (root / "planted.py").write_text(
        "from prooflops.model import examination, flop_difference, step_memory\n"
        "flop_difference._Tracer._track_derived = lambda self, tensors, outputs: False\n"
        "shares = flop_difference._Tracer._shares\n"
        "flop_difference._Tracer._shares = lambda self, factors, flops: shares(self, factors, flops - flops // 8)\n"
        "wrong = lambda tensors: sum(tensor.numel() for tensor in tensors)\n"
        "examination.bytes_of = step_memory.bytes_of = step_memory.storage_bytes_of = wrong\n"
    )
    (root / "test_claims" / "test_demo.py").write_text(
        'import pytest\n@pytest.mark.claim("optim.sgd-none")\ndef test_of_the_machine():\n    pass\n'
    )
    (root / "gpt").mkdir()
    for file in LAST_VALIDATION:
        (root / "gpt" / file).write_text("of the last validation")
    return root


@pytest.fixture(scope="package")
def examined(examined_house: Path) -> dict[str, Examined]:
    """One run over each model, then one with faults planted, in one process."""
    lines = {name: f"{NOTHING_PLANTED} --model {spec} --report={name}" for name, spec in SPECS.items()}
    others = f"{NOTHING_PLANTED} -k 'not where_it_goes'"
    lines["looking"] = f"{others} --model zoo.own:looking --report=looking test_claims/test_demo.py"
    lines["checkpointed"] = f"{others} --model zoo.own:checkpointed --report=checkpointed"
    lines["planted"] = PLANTED
    done = run_pytest_for_each(examined_house, lines.values())

    def left(name: str, suffix: str) -> str:
        (file,) = (examined_house / name).glob(f"model-*.{suffix}")
        return file.read_text()

    return {
        name: Examined(done[line], json.loads(left(name, "json")), left(name, "md")) for name, line in lines.items()
    }
