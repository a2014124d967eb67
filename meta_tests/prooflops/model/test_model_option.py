"""Runs with --model on three users' models: every figure by hand, the answers, the pages."""

import json

import pytest
import torch

from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.conftest import each_model
from meta_tests.user_models import own
from meta_tests.user_models.worked import (
    BACKWARD,
    FORWARD,
    GRADIENT_BYTES,
    PARAMETERS,
    PARTS,
    STATE_BYTES,
    TOKENS,
)
from prooflops.model.examination import Examination
from prooflops.model.page import write_pages
from prooflops.model.user_model import load_user_model

OTHER_CHECKS = 7
CLAIMS = 20
OPTIMIZERS = {"resnet": "SGD with momentum", "gpt": "AdamW", "own": "Adam"}
OF_ANY = {"tensor.nbytes-formula", "grad.same-shape", "optim.zero-grad-none", "optim.state-keyed"}
OF_ADAM = {"optim.adam-2", "optim.state-same-dtype"}
OF_ALL_TRAINED = {"mem.grads-equal-params", "grad.quadruples"}
RULES = {"flops.forward-2BN", "grad.backward-4BN", "grad.six-rule"}
SETTLED = {
    "resnet": OF_ANY | OF_ALL_TRAINED | {"optim.momentum-1"},
    "gpt": OF_ANY | OF_ADAM | RULES | OF_ALL_TRAINED | {"mem.16-bytes", "mem.omits-activations"},
    # A shared matrix is used three times.
    "own": OF_ANY | OF_ADAM | RULES - {"flops.forward-2BN"},
}


@each_model
def test_parameters_gradients_and_optimizer_state_have_their_bytes(examined, name):
    facts = examined[name].facts
    parameters = [each for each in facts["inventory"]["groups"] if each["role"] != "buffer"]
    assert sum(each["elements"] for each in parameters) == PARAMETERS[name]
    assert sum(each["bytes"] for each in parameters) == 4 * PARAMETERS[name]
    assert {each["role"] for each in parameters} == (
        {"trained", "frozen"} if name == "own" else {"trained"}
    )
    rows = {row["name"]: row for row in facts["memory"]["rows"]}
    assert rows["gradients"]["measured_bytes"] == GRADIENT_BYTES[name]
    assert rows["optimizer state"]["measured_bytes"] == STATE_BYTES[name]
    for what in ("held for the backward pass", "peak of a step"):
        row = rows[what]
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=0.01), (
            f"{what}: {row}"
        )


@each_model
def test_the_flops_and_their_reasons_are_those_of_the_formulas(examined, name):
    flops = examined[name].facts["flops"]
    assert (flops["tokens"], flops["unit"]) == TOKENS[name]
    assert flops["forward"] == FORWARD[name]
    assert flops["backward"] == BACKWARD[name]
    assert flops["6ND"] == 6 * PARAMETERS[name] * TOKENS[name][0]
    assert flops["unknown"] == {}
    assert {part["name"]: (part["forward"], part["backward"]) for part in flops["parts"]} == PARTS[
        name
    ]


@each_model
def test_the_step_has_a_time_and_rates_that_follow_from_it(examined, name):
    facts = examined[name].facts
    step = facts["step"]
    moved_bytes = facts["flops"]["moved_bytes"]
    executed = FORWARD[name] + BACKWARD[name]
    ceiling = step["rates"]["ceiling_flop_per_s"]["fp32"]
    times = step["least_times_s"]
    assert step["per_s"] == pytest.approx(TOKENS[name][0] / step["seconds"])
    assert step["share_of_ceiling"] == pytest.approx(executed / step["seconds"] / ceiling)
    assert step["intensity"] == pytest.approx(executed / moved_bytes)
    assert step["ridge"] == pytest.approx(ceiling / step["rates"]["bytes_per_s"])
    assert times["compute"] == pytest.approx(executed / ceiling)
    assert times["memory"] == pytest.approx(moved_bytes / step["rates"]["bytes_per_s"])
    longest = max(times, key=times.get)
    assert step["bound"] == (longest if times[longest] >= step["seconds"] / 2 else "overhead")


@each_model
def test_the_modules_and_operators_sum_to_the_step(examined, name):
    facts = examined[name].facts
    rows = [row for row in facts["breakdown"]["modules"] if not row["depth"]]
    assert sum(row["forward_flops"] for row in rows) == FORWARD[name]
    assert sum(row["backward_flops"] for row in rows) == BACKWARD[name]
    assert (
        sum(row["flops"] for row in facts["breakdown"]["operators"])
        == FORWARD[name] + BACKWARD[name]
    )
    assert next(row["parameters"] for row in rows if row["name"] == "") == PARAMETERS[name]
    held = next(
        row["measured_bytes"] for row in facts["memory"]["rows"] if row["name"].startswith("held")
    )
    assert sum(row["kept_bytes"] for row in rows) == pytest.approx(held, rel=0.02), (
        "but for boxed numbers and the loss"
    )
    assert min(facts["breakdown"]["phases_s"].values()) > 0


def test_a_checkpointed_model_has_more_hfu_than_mfu(examined):
    facts = examined["checkpointed"].facts
    page = examined["checkpointed"].page
    forward = 2 * 2 * 8 * own.WIDTH**2
    # The first layer's input needs no gradient.
    needed = forward + 2 * forward - forward // 2
    assert facts["flops"]["model"] == needed
    assert facts["flops"]["executed"] == needed + forward
    ceiling_flops = facts["step"]["seconds"] * facts["step"]["rates"]["ceiling_flop_per_s"]["fp32"]
    assert facts["step"]["mfu_of_ceiling"] == pytest.approx(needed / ceiling_flops)
    assert facts["step"]["share_of_ceiling"] == pytest.approx((needed + forward) / ceiling_flops)
    assert "executed FLOPs, 28.6% recomputed" in page
    assert (
        next(each["verdict"] for each in facts["claims"] if each["claim"] == "mfu.hfu") == "holds"
    )


@each_model
def test_only_the_tests_of_the_model_run_and_each_claim_is_answered(examined, name):
    run = examined[name].run
    page = examined[name].page
    assert run.code == 0, run.output
    assert f"{OTHER_CHECKS + len(SETTLED[name])} passed" in run.output, run.output
    answers = {each["claim"]: each for each in examined[name].facts["claims"]}
    assert len(answers) == CLAIMS
    assert {
        claim for claim, each in answers.items() if each["verdict"] in ("holds", "corrected")
    } == SETTLED[name]
    assert {each["verdict"] for each in answers.values()} == {
        *(["corrected"] if "grad.quadruples" in SETTLED[name] else []),
        *("holds", "does not apply", "not checked"),
    }
    assert answers["mem.adagrad-12"]["reason"] == f"the optimizer is {OPTIMIZERS[name]}"
    assert not [claim for claim in answers if claim not in run.output or claim not in page]


def test_answers_for_a_model_are_no_verdicts_on_the_machine(examined_house, examined):
    found = json.loads((examined_house / "looking" / "partial" / "verdicts.json").read_text())
    verdicts = {row["id"]: row["verdict"] for row in found["claims"]}
    answers = {each["claim"]: each["verdict"] for each in examined["looking"].facts["claims"]}
    assert verdicts.pop("optim.sgd-none") == "holds"
    assert set(verdicts.values()) <= {"on record"}, (
        "claims that no test of the machine is marked with"
    )
    assert answers["optim.sgd-none"] == "does not apply"
    assert "= verdicts =" not in examined["gpt"].run.output
    assert "not predicted: RuntimeError: the block reads values" in examined["looking"].page


def test_a_wrong_explanation_and_a_wrong_account_of_bytes_fail_the_run(
    examined,
):
    run = examined["planted"].run
    assert run.code == 1, run.output
    for text in (
        "AssertionError: the parts sum to",
        "NOT EXPLAINED: forward",
        "AssertionError: counted are 30752 B, but 28 copies take 123008 B",
        "AssertionError: gradients: 123008 B, not 30752",
        "AssertionError: optimizer state: 246128 B, not 61532",
        "claimed of any model",
        "A forward pass costs 2 FLOPs per token and parameter.",
    ):
        assert text in run.output, f"{text!r} is missing from\n{run.output}"
    failed = {
        each["claim"] for each in examined["planted"].facts["claims"] if each["verdict"] == "FAILS"
    }
    assert failed == RULES | {"tensor.nbytes-formula"}


def test_an_interrupted_run_keeps_its_figures_and_says_it_is_a_part(examined_house, examined):
    run = examined["stopped"].run
    page = examined["stopped"].page
    (file,) = (examined_house / "stopped").glob("*.html")
    assert run.code == pytest.ExitCode.INTERRUPTED
    assert all(
        "part of a run: interrupted, after 1 of " in text
        for text in (run.output, page, file.read_text())
    )
    assert "## N = " in page


def test_the_page_in_the_docs_is_the_real_one(examined):
    _, _, rest = (ROOT / "docs" / "your-model.md").read_text().partition("```\nN = ")
    excerpt = f"N = {rest.partition('```')[0]}".splitlines()
    missing = [line for line in excerpt if line not in examined["gpt"].run.output.splitlines()]
    assert len(excerpt) > 20
    assert not missing, f"not on the page of gpt.py: {missing}"


def test_the_variants_of_the_docs_have_their_largest_batch(examined_house, runs):
    run = runs["variants"]
    assert run.code == 0, run.output
    assert "4 passed" in run.output
    folder = examined_house / "variants"
    for name, other in (("small", "large"), ("large", "small")):
        facts = json.loads((folder / f"model-nets.py-{name}.json").read_text())
        assert facts["largest"]["batch"]["found"] > 100
        page = (folder / f"model-nets.py-{name}.html").read_text()
        assert f"model-nets.py-{other}.html" in page


def test_a_model_of_a_few_bytes_passes(runs):
    assert runs["few"].code == 0, runs["few"].output
    assert "9 passed" in runs["few"].output, runs["few"].output


def test_the_html_fits_fetches_nothing_and_its_modules_open_by_keyboard(
    browser, examined_house, examined
):
    assert examined
    file = examined_house / "gpt" / "model-zoo.gpt-factory.html"
    with browser.open(file) as opened:
        page = opened.page
        rows = page.locator("#every-module tbody tr")
        assert rows.count() == 23, "2 blocks of 8 and 6 more, and what is outside"
        assert not page.get_by_text("c_fc").last.is_visible()
        page.locator("#every-module summary").press("Enter")
        assert page.get_by_text("c_fc").last.is_visible()
    with browser.open(file) as opened:
        opened.check(
            file,
            "document.querySelectorAll('tbody tr:nth-child(n+3)').forEach((each) => each.remove())",
        )


def test_hostile_names_are_text(tmp_path):
    examination = Examination(
        load_user_model("meta_tests.user_models.own:hostile", ROOT, torch.device("cpu"))
    )
    assert examination.breakdown.modules
    write_pages([examination], tmp_path, ["device: <b>cpu</b>"], {})
    (file,) = tmp_path.glob("*.html")
    page = file.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;U+202E&gt;b" in page
    assert not any(text in page for text in ("<script", "<img", "<b>", "\u202e"))
