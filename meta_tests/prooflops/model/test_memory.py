"""The memory of a step is predicted for what factories of vision models, checkpointing and conversions do."""

from pathlib import Path

import pytest
import torch

from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.model_house import Examined, each_model
from meta_tests.user_models import own
from meta_tests.user_models.worked import GRADIENT_BYTES, PARAMETERS, STATE_BYTES
from prooflops.model.step_memory import NOT_PREDICTED_COMPILED, memory_of, predicted_memory
from prooflops.model.user_model import load_user_model

CPU = torch.device("cpu")


def test_a_factory_that_converts_a_tied_model_is_predicted() -> None:
    user_model = load_user_model("meta_tests.user_models.gpt:in_bf16", ROOT, CPU)
    memory = memory_of(user_model)
    assert memory.row("gradients").predicted_bytes == 2 * PARAMETERS["gpt"]
    for what in ("held for the backward pass", "peak of a step"):
        row = memory.row(what)
        assert row.predicted_bytes == pytest.approx(row.measured_bytes, rel=0.01), f"{what}: {row} {memory.remarks}"


@pytest.mark.parametrize("factory", ["deep", "checkpointed", "with_class_token", "bag"])
def test_what_vision_models_and_checkpointed_ones_do_is_predicted(factory: str) -> None:
    memory = memory_of(load_user_model(f"meta_tests.user_models.own:{factory}", ROOT, CPU))
    row, gradients = memory.row("peak of a step"), memory.row("gradients")
    assert row.predicted_bytes == pytest.approx(row.measured_bytes, rel=0.01), f"{row} {memory.remarks}"
    assert gradients.predicted_bytes == gradients.measured_bytes, f"{gradients}"


def test_a_compiled_model_is_not_predicted() -> None:
    user_model = load_user_model("meta_tests.user_models.own:compiled", ROOT, CPU)
    assert predicted_memory(user_model) == (None, NOT_PREDICTED_COMPILED)
    assert not load_user_model("meta_tests.user_models.own:deep", ROOT, CPU).is_compiled


def test_a_branch_on_values_is_found_in_the_users_code() -> None:
    prediction, why = predicted_memory(load_user_model("meta_tests.user_models.own:branching", ROOT, CPU))
    lines = Path(own.__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith("# the branch"))
    assert prediction is None
    assert why.startswith("not predicted: RuntimeError: the block reads values")
    assert why.endswith(f"({own.__file__}:{number})")


@each_model
def test_gradients_and_optimizer_state_have_their_bytes(examined: dict[str, Examined], name: str) -> None:
    rows = {row["name"]: row for row in examined[name].facts["memory"]["rows"]}
    assert rows["gradients"]["measured_bytes"] == GRADIENT_BYTES[name]
    assert rows["optimizer state"]["measured_bytes"] == STATE_BYTES[name]
    state = rows["parameters, buffers, inputs"]["measured_bytes"] + GRADIENT_BYTES[name] + STATE_BYTES[name]
    assert rows["peak of a step"]["measured_bytes"] >= state


@each_model
def test_the_memory_of_a_step_is_predicted(examined: dict[str, Examined], name: str) -> None:
    rows = {row["name"]: row for row in examined[name].facts["memory"]["rows"]}
    for what in ("held for the backward pass", "peak of a step"):
        row = rows[what]
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=0.01), f"{what}: {row}"


def test_a_model_that_looks_at_values_is_not_predicted_and_the_page_says_so(examined: dict[str, Examined]) -> None:
    looking = examined["looking"]
    assert looking.run.code == 0, looking.run.output
    assert "not predicted: RuntimeError: the block reads values" in looking.page
