"""The option --model on three models as users write them: which tests run, the answers to claims, planted faults."""

import json
from pathlib import Path

from meta_tests.prooflops.model.model_house import Examined, each_model

OTHER_CHECKS, CLAIMS = 7, 20
OPTIMIZERS = {"resnet": "SGD with momentum", "gpt": "AdamW", "own": "Adam"}
OF_ANY = {"tensor.nbytes-formula", "grad.same-shape", "optim.zero-grad-none", "optim.state-keyed"}
OF_ADAM = {"optim.adam-2", "optim.state-same-dtype"}
RULES = {"flops.forward-2BN", "grad.backward-4BN", "grad.six-rule"}
SETTLED = {
    "resnet": OF_ANY | {"mem.grads-equal-params", "optim.momentum-1", "grad.quadruples"},
    "gpt": OF_ANY
    | OF_ADAM
    | RULES
    | {"mem.grads-equal-params", "mem.16-bytes", "mem.omits-activations", "grad.quadruples"},
    "own": OF_ANY | OF_ADAM | RULES - {"flops.forward-2BN"},  # a shared matrix is used three times
}


@each_model
def test_only_the_tests_of_the_model_run_and_all_of_them_pass(examined: dict[str, Examined], name: str) -> None:
    run = examined[name].run
    assert run.code == 0, run.output
    assert f"{OTHER_CHECKS + len(SETTLED[name])} passed" in run.output, run.output
    assert "deselected" not in run.output


@each_model
def test_each_claim_is_answered_for_the_model(examined: dict[str, Examined], name: str) -> None:
    answers = {each["claim"]: each for each in examined[name].facts["claims"]}
    assert len(answers) == CLAIMS
    assert {claim for claim, each in answers.items() if each["verdict"] in ("holds", "corrected")} == SETTLED[name]
    assert {each["verdict"] for each in answers.values()} == {
        *(["corrected"] if "grad.quadruples" in SETTLED[name] else []),
        *("holds", "does not apply", "not checked"),
    }
    assert answers["mem.adagrad-12"]["reason"] == f"the optimizer is {OPTIMIZERS[name]}"
    for claim in answers:
        assert claim in examined[name].run.output, f"{claim} is missing from the terminal"
        assert claim in examined[name].page, f"{claim} is missing from the page"


def test_answers_for_a_model_are_no_verdicts_on_the_machine(
    examined_house: Path, examined: dict[str, Examined]
) -> None:
    found = json.loads((examined_house / "looking" / "partial" / "verdicts.json").read_text())
    verdicts = {row["id"]: row["verdict"] for row in found["claims"]}
    answers = {each["claim"]: each["verdict"] for each in examined["looking"].facts["claims"]}
    assert verdicts.pop("optim.sgd-none") == "holds"
    assert set(verdicts.values()) <= {"on record"}, "claims that no test of the machine is marked with"
    assert answers["optim.sgd-none"] == "does not apply"
    assert "= verdicts =" not in examined["gpt"].run.output


def test_a_wrong_explanation_and_a_wrong_account_of_bytes_redden_the_run(examined: dict[str, Examined]) -> None:
    run = examined["planted"].run
    assert run.code == 1, run.output
    for text in (
        "AssertionError: the parts sum to",
        "NOT EXPLAINED: forward",
        "AssertionError: parameters and buffers are counted as",
        "AssertionError: gradients: 123008 B, not 30752",
        "AssertionError: optimizer state: 246128 B, not 61532",
        "claimed of any model",
        "A forward pass costs 2 FLOPs per token and parameter.",
    ):
        assert text in run.output, f"{text!r} is missing from\n{run.output}"
    failed = {each["claim"] for each in examined["planted"].facts["claims"] if each["verdict"] == "FAILS"}
    assert failed == RULES | {"tensor.nbytes-formula"}
