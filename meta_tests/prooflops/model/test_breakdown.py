"""Where a step goes: FLOPs, kept tensors and calls by module and operator, worked out by hand."""

import pytest
import torch

from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.model_house import Examined, each_model
from meta_tests.user_models import gpt, own
from meta_tests.user_models.worked import BACKWARD, FORWARD, PARAMETERS
from prooflops.model.breakdown import OUTSIDE, Breakdown, breakdown_of, inference_of
from prooflops.model.user_model import load_user_model

CPU = torch.device("cpu")
ROWS = gpt.BATCH * gpt.LENGTH


def breakdown(factory: str) -> Breakdown:
    return breakdown_of(load_user_model(f"meta_tests.user_models.{factory}", ROOT, CPU))


@pytest.fixture(scope="module")
def of_gpt() -> Breakdown:
    return breakdown("gpt:factory")


def test_each_module_has_its_shapes_parameters_and_flops(of_gpt: Breakdown) -> None:
    rows = {row.name: row for row in of_gpt.modules}
    fc = rows["h.1.c_fc"]
    forward = 2 * ROWS * gpt.WIDTH * 4 * gpt.WIDTH
    assert (fc.kind, fc.depth, fc.calls, fc.output) == ("Linear", 3, 1, str((gpt.BATCH, gpt.LENGTH, 4 * gpt.WIDTH)))
    assert (fc.parameters, fc.forward_flops, fc.backward_flops) == (
        4 * gpt.WIDTH * (gpt.WIDTH + 1),
        forward,
        2 * forward,
    )
    attention = 2 * 2 * gpt.BATCH * gpt.LENGTH**2 * gpt.WIDTH  # belongs to the block, which multiplies by itself
    inside = sum(rows[f"h.0.{name}"].forward_flops for name in ("c_attn", "c_proj", "c_fc", "c_out"))
    assert rows["h.0"].forward_flops == inside + attention
    assert rows["h"].forward_flops == 2 * rows["h.0"].forward_flops
    assert rows["lm_head"].parameters == gpt.VOCABULARY * gpt.WIDTH, "a tied weight is one of each that has it"


def test_each_tensor_is_kept_by_the_module_that_needs_it(of_gpt: Breakdown) -> None:
    rows = {row.name: row for row in of_gpt.modules}
    block = 4 * ROWS * gpt.WIDTH
    assert rows["h.0.c_out"].kept_bytes == 4 * block, "the GELU's result"
    assert rows["h.0.ln_2"].kept_bytes == block + 2 * 4 * ROWS, "its input, means and deviations"
    assert rows["h.0.c_fc"].kept_bytes == block, "the norm's result"
    assert rows[OUTSIDE].kept_bytes == 0, "labels were there before"


@each_model
def test_the_parts_are_the_whole(examined: dict[str, Examined], name: str) -> None:
    facts = examined[name].facts
    rows = [row for row in facts["breakdown"]["modules"] if not row["depth"]]
    assert sum(row["forward_flops"] for row in rows) == FORWARD[name]
    assert sum(row["backward_flops"] for row in rows) == BACKWARD[name]
    operators = facts["breakdown"]["operators"]
    assert sum(row["flops"] for row in operators) == FORWARD[name] + BACKWARD[name]
    assert next(row["parameters"] for row in rows if row["name"] == "") == PARAMETERS[name]
    held = next(row["measured_bytes"] for row in facts["memory"]["rows"] if row["name"].startswith("held"))
    assert sum(row["kept_bytes"] for row in rows) == pytest.approx(held, rel=0.02), "but for boxed numbers and the loss"
    assert min(facts["breakdown"]["phases_s"].values()) > 0
    assert facts["inference"]["flops"] == FORWARD[name]
    assert 0 < facts["inference"]["activation_bytes"] < held


def test_what_is_recomputed_belongs_to_the_module_that_runs_again() -> None:
    rows = {row.name: row for row in breakdown("own:checkpointed").modules}
    product = 2 * 8 * own.WIDTH**2
    assert (rows["blocks.1.0"].forward_flops, rows["blocks.1.0"].backward_flops) == (product, 3 * product)
    assert rows["blocks.1.0"].calls == 1
    assert rows[""].backward_flops == 5 * product, "the first layer's input needs no gradient"


@pytest.mark.prove
def test_a_compiled_model_is_taken_apart_as_it_is_written() -> None:
    found = breakdown("own:compiled")
    assert found.is_compiled
    assert {row.kind for row in found.modules} == {"", "OptimizedModule", "Sequential", "Linear", "Tanh"}
    assert [row.forward_flops for row in found.modules if row.kind == "Linear"] == [2 * 8 * 16 * own.WIDTH]


def test_a_model_that_cannot_run_for_inference_has_a_reason() -> None:
    why_not = inference_of(load_user_model("meta_tests.user_models.own:training_only", ROOT, CPU)).why_not
    assert why_not.startswith("RuntimeError: this net only trains")
    assert own.__file__ in why_not
