"""What is found out about three models as users write them: every figure worked out by hand."""

import pytest

from meta_tests.prooflops.model.model_house import Examined, each_model
from meta_tests.user_models import own
from meta_tests.user_models.worked import BACKWARD, FORWARD, PARAMETERS, RESNET_NORMS, TOKENS


@each_model
def test_parameters_are_counted(examined: dict[str, Examined], name: str) -> None:
    groups = examined[name].facts["inventory"]["groups"]
    parameters = [each for each in groups if each["role"] != "buffer"]
    assert sum(each["elements"] for each in parameters) == PARAMETERS[name]
    assert sum(each["bytes"] for each in parameters) == 4 * PARAMETERS[name]
    assert {each["role"] for each in parameters} == ({"trained", "frozen"} if name == "own" else {"trained"})


def test_buffers_are_listed_by_dtype_and_a_tied_weight_is_named(examined: dict[str, Examined]) -> None:
    buffers = [each for each in examined["resnet"].facts["inventory"]["groups"] if each["role"] == "buffer"]
    assert {each["dtype"]: each["elements"] for each in buffers} == {"float32": RESNET_NORMS, "int64": 7}
    assert examined["gpt"].facts["inventory"]["tied"] == ["lm_head.weight"]


@each_model
def test_the_flops_of_the_page_are_those_of_the_formulas(examined: dict[str, Examined], name: str) -> None:
    flops = examined[name].facts["flops"]
    assert (flops["tokens"], flops["unit"]) == TOKENS[name]
    assert flops["forward"] == FORWARD[name]
    assert flops["backward"] == BACKWARD[name]
    assert flops["6ND"] == 6 * PARAMETERS[name] * TOKENS[name][0]
    assert flops["unknown"] == {}


@each_model
def test_the_step_has_a_time_and_rates_that_follow_from_it(examined: dict[str, Examined], name: str) -> None:
    facts = examined[name].facts
    step, flops = facts["step"], facts["flops"]
    assert step["seconds"] > 0
    assert step["per_s"] == pytest.approx(TOKENS[name][0] / step["seconds"])
    executed = FORWARD[name] + BACKWARD[name]
    ceiling = step["rates"]["ceiling_flop_per_s"]["fp32"]
    assert step["share_of_ceiling"] == pytest.approx(executed / step["seconds"] / ceiling)
    assert step["intensity"] == pytest.approx(executed / flops["moved_bytes"])
    assert step["ridge"] == pytest.approx(ceiling / step["rates"]["bytes_per_s"])
    times = step["least_times_s"]
    assert times["compute"] == pytest.approx(executed / ceiling)
    assert times["memory"] == pytest.approx(flops["moved_bytes"] / step["rates"]["bytes_per_s"])
    longest = max(times, key=times.get)
    assert step["bound"] == (longest if times[longest] >= step["seconds"] / 2 else "overhead")


def test_a_checkpointed_model_has_more_hfu_than_mfu(examined: dict[str, Examined]) -> None:
    facts, page = examined["checkpointed"].facts, examined["checkpointed"].page
    forward = 2 * 2 * 8 * own.WIDTH**2
    needed = forward + 2 * forward - forward // 2  # the first layer's input needs no gradient
    assert (facts["flops"]["model"], facts["flops"]["executed"]) == (needed, needed + forward)
    step = facts["step"]
    ceiling = step["rates"]["ceiling_flop_per_s"]["fp32"]
    assert step["mfu_of_ceiling"] == pytest.approx(needed / step["seconds"] / ceiling)
    assert step["share_of_ceiling"] == pytest.approx((needed + forward) / step["seconds"] / ceiling)
    assert "executed FLOPs, 28.6% recomputed" in page
    assert next(each["verdict"] for each in facts["claims"] if each["claim"] == "mfu.hfu") == "holds"


def test_what_was_chosen_for_the_user_is_said(examined: dict[str, Examined]) -> None:
    notes = examined["gpt"].facts["about"]["notes"]
    assert "put in train mode" in notes
    assert "gave no optimizer: AdamW" in notes
    assert "the output's own .loss" in notes
    assert "optimizer" not in examined["resnet"].facts["about"]["notes"]
