"""Anything but a model is refused with exit code 4 before a test runs; valid forms are listed."""

import pytest
import torch

from meta_tests.conftest import ROOT, House, run_pytest_for_each
from meta_tests.prooflops.model.conftest import model_house
from meta_tests.user_models import broken
from prooflops.model.user_model import load_user_model

CPU = torch.device("cpu")

REFUSED = {
    "zoo/gpt.py": (
        "must be module:factory, such as my_package.my_module:factory, or path/to/file.py:factory",
        "write --model=zoo/gpt.py:NAME with one of its functions",
        "ModelOutput, Block, LMHeadModel, factory",
    ),
    "zoo.gpt:factory --quikc": (
        "unrecognized arguments: --quikc",
        "did you mean: --quick for --quikc?",
    ),
    "zoo/gpd.py:factory": ("no such file", "zoo/gpd.py; ", "gpt.py", "or path/to/file.py:factory"),
    "zoo/failing.py:factory": (
        "failing.py raised RuntimeError: this module cannot be imported",
        "failing.py:1",
    ),
    "zoo.gpd:factory": ("no module named zoo.gpd", "broken", "gpt"),
    "zoo.gpt:factor": (
        "must be one of ModelOutput, Block, LMHeadModel, factory",
        "did you mean 'factory'",
    ),
    "zoo.lacking:factory": (
        "importing zoo.lacking raised ModuleNotFoundError",
        "a_package_that_nobody_has",
    ),
    "zoo.gpt:factory --model zoo.broken:alone": (
        "--model zoo.broken:alone: the factory returned a Linear alone",
    ),
    "zoo.gpt:factory --model-largest batch": (
        "--model-largest batch: must be an argument of zoo.gpt:factory",
    ),
    "zoo.own:bag --model-largest batch": ("none: give it one, such as def factory(batch=8)",),
    "zoo.own:sized --model-largest batch --model-memory much": (
        "--model-memory must be a number such as 15T",
        "'much'",
    ),
    "zoo.gpt:factory --claim demo.holds": ("--model and --claim exclude each other",),
    **{f"zoo.broken:{name}": (refusal,) for name, refusal in broken.REFUSALS.items()},
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """The outcome of each; in one process, which must not import a test module."""
    root = model_house(tmp_path_factory.mktemp("house"), registry=False)
    House(root).claim("demo.holds")
    for file in ("test_claims/test_user_model.py", "bench/test_user_model.py"):
        (root / file).write_text(
            'raise SystemExit("a test module was imported before the refusal")'
        )
    (root / "zoo" / "failing.py").write_text(
        'raise RuntimeError("this module cannot be imported")\n'
    )
    (root / "zoo" / "lacking.py").write_text("import a_package_that_nobody_has\n")
    done = run_pytest_for_each(root, [f"--device cpu --model {spec}" for spec in REFUSED])
    assert not (root / "reports").exists()
    return {line.partition("--model ")[2]: run for line, run in done.items()}


@pytest.mark.parametrize("spec", REFUSED)
def test_anything_but_a_model_is_refused_before_anything_runs(refusals, spec):
    run = refusals[spec]
    assert run.code == 4, run.output
    assert all(text in run.output for text in REFUSED[spec]), run.output
    assert "Traceback" not in run.output


def test_without_the_option_its_tests_are_silent_and_a_claim_unknown(
    tmp_path,
):
    lines = {
        "without": "--device=cpu --collect-only -q",
        "with": "--device=cpu --collect-only --model=zoo.gpt:factory",
    }
    done = run_pytest_for_each(model_house(tmp_path, registry=False), lines.values())
    without, unknown = (done[line] for line in lines.values())
    assert without.code == 5, without.output
    assert "no tests collected" in without.output
    assert "user_model" not in without.output
    assert unknown.code == 4, unknown.output
    assert "markers name claims that are not in the registry" in unknown.output
    assert "'tensor.nbytes-formula' in test_claims/test_user_model.py" in unknown.output


def test_no_check_sees_what_another_one_did():
    user_model = load_user_model("meta_tests.user_models.gpt:factory", ROOT, CPU)
    first = user_model.fresh()
    before = {name: tensor.clone() for name, tensor in first.module.state_dict().items()}
    first.step()
    again = user_model.fresh().module.state_dict()
    assert not torch.equal(first.module.state_dict()["h.0.c_fc.weight"], before["h.0.c_fc.weight"])
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())
