"""The option --model: three models as users write them, every figure of their pages worked out by hand."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import ROOT, ChildRun, run_pytest_for_each
from meta_tests.prooflops.model.model_house import model_house
from meta_tests.user_models import own
from meta_tests.user_models.worked import (
    BACKWARD,
    FORWARD,
    GRADIENT_BYTES,
    PARAMETERS,
    PARTS,
    RESNET_NORMS,
    STATE_BYTES,
    TOKENS,
)

SPECS = {"resnet": "zoo.resnet:factory", "gpt": "zoo.gpt:factory", "own": "zoo.own:Factories.factory"}
NOTHING_PLANTED = "-p no:cacheprovider --device cpu --quick"
PLANTED = f"{NOTHING_PLANTED} -p planted --model zoo.gpt:factory --report=planted"
LAST_VALIDATION = ("verdicts.json", "report.md")


@dataclass(frozen=True)
class Examined:
    """What a run over one model said, and the facts that it left."""

    run: ChildRun
    facts: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = model_house(tmp_path_factory.mktemp("house"))
    (root / "planted.py").write_text(
        "from prooflops.model import examination, flop_difference, memory\n"
        "flop_difference._Tracer._track_derived = lambda self, tensors, outputs: False\n"
        "shares = flop_difference._Tracer._shares\n"
        "flop_difference._Tracer._shares = lambda self, factors, flops: shares(self, factors, flops - flops // 8)\n"
        "wrong = lambda tensors: sum(tensor.numel() for tensor in tensors)\n"
        "examination.bytes_of = memory.bytes_of = memory.storage_bytes_of = wrong\n"
    )
    (root / "test_claims" / "test_demo.py").write_text(
        'import pytest\n@pytest.mark.claim("optim.sgd-none")\ndef test_of_the_machine():\n    pass\n'
    )
    (root / "gpt").mkdir()
    for file in LAST_VALIDATION:
        (root / "gpt" / file).write_text("of the last validation")
    return root


@pytest.fixture(scope="module")
def examined(house: Path) -> dict[str, Examined]:
    """One run over each model, then one with faults planted, in one process."""
    lines = {name: f"{NOTHING_PLANTED} --model {spec} --report={name}" for name, spec in SPECS.items()}
    lines["looking"] = f"{NOTHING_PLANTED} --model zoo.own:looking --report=looking test_claims/test_demo.py"
    lines["checkpointed"] = f"{NOTHING_PLANTED} --model zoo.own:checkpointed --report=checkpointed"
    lines["planted"] = PLANTED
    done = run_pytest_for_each(house, lines.values())

    def left(name: str, suffix: str) -> str:
        (file,) = (house / name).glob(f"model-*.{suffix}")
        return file.read_text()

    return {
        name: Examined(done[line], json.loads(left(name, "json")), left(name, "md")) for name, line in lines.items()
    }


OTHER_CHECKS, CLAIMS = 6, 20
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

each_model = pytest.mark.parametrize("name", SPECS)


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


def test_answers_for_a_model_are_no_verdicts_on_the_machine(house: Path, examined: dict[str, Examined]) -> None:
    verdicts = {row["id"]: row["verdict"] for row in json.loads((house / "looking" / "verdicts.json").read_text())}
    answers = {each["claim"]: each["verdict"] for each in examined["looking"].facts["claims"]}
    assert verdicts.pop("optim.sgd-none") == "holds"
    assert set(verdicts.values()) <= {"on record"}, "claims that no test of the machine is marked with"
    assert answers["optim.sgd-none"] == "does not apply"
    assert "= verdicts =" not in examined["gpt"].run.output


def test_the_report_of_the_last_validation_stays_as_it_is(house: Path, examined: dict[str, Examined]) -> None:
    assert "page: gpt/model-zoo.gpt-factory.md  facts: gpt/model-zoo.gpt-factory.json" in examined["gpt"].run.output
    for file in LAST_VALIDATION:
        assert (house / "gpt" / file).read_text() == "of the last validation"
        assert not (house / "own" / file).exists()


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
def test_each_reason_has_its_flops(examined: dict[str, Examined], name: str) -> None:
    parts = examined[name].facts["flops"]["parts"]
    assert {part["name"]: (part["forward"], part["backward"]) for part in parts} == PARTS[name]


@each_model
def test_gradients_and_optimizer_state_have_their_bytes(examined: dict[str, Examined], name: str) -> None:
    rows = {row["name"]: row for row in examined[name].facts["memory"]["rows"]}
    assert rows["gradients"]["measured_bytes"] == GRADIENT_BYTES[name]
    assert rows["optimizer state"]["measured_bytes"] == STATE_BYTES[name]
    state = rows["parameters, buffers, inputs"]["measured_bytes"] + GRADIENT_BYTES[name] + STATE_BYTES[name]
    assert rows["peak of a step"]["measured_bytes"] >= state


def test_a_tensor_that_is_no_buffer_is_reported(examined: dict[str, Examined]) -> None:
    assert "the factory keeps 400 B" in examined["own"].page


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


@each_model
def test_terminal_and_markdown_say_the_same(examined: dict[str, Examined], name: str) -> None:
    output, page = examined[name].run.output, examined[name].page
    for text in (
        f"N = {PARAMETERS[name]:,} parameters",
        f"D = {TOKENS[name][0]:,} {TOKENS[name][1]}",
        f"{FORWARD[name]:,}",
        *PARTS[name],
        "every operator of the step has a formula",
        "optimizer state",
        "HFU of own ceiling",
    ):
        assert text in output, f"{text!r} is missing from the terminal"
        assert text in page, f"{text!r} is missing from the page"


def test_what_was_chosen_for_the_user_is_said(examined: dict[str, Examined]) -> None:
    notes = examined["gpt"].facts["about"]["notes"]
    assert "put in train mode" in notes
    assert "gave no optimizer: AdamW" in notes
    assert "the output's own .loss" in notes
    assert "optimizer" not in examined["resnet"].facts["about"]["notes"]


def test_a_model_that_looks_at_values_is_not_predicted_and_the_page_says_so(examined: dict[str, Examined]) -> None:
    looking = examined["looking"]
    assert looking.run.code == 0, looking.run.output
    assert "not predicted: RuntimeError: the block asks for values" in looking.page


@each_model
def test_the_memory_of_a_step_is_predicted(examined: dict[str, Examined], name: str) -> None:
    rows = {row["name"]: row for row in examined[name].facts["memory"]["rows"]}
    for what in ("held for the backward pass", "peak of a step"):
        row = rows[what]
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=0.01), f"{what}: {row}"


def test_the_page_in_the_docs_is_the_real_one(examined: dict[str, Examined]) -> None:
    _, _, rest = (ROOT / "docs" / "your-model.md").read_text().partition("```\nN = ")
    excerpt = f"N = {rest.partition('```')[0]}".splitlines()
    missing = [line for line in excerpt if line not in examined["gpt"].run.output.splitlines()]
    assert len(excerpt) > 20
    assert not missing, f"not on the page of gpt.py: {missing}"


def test_a_wrong_explanation_and_a_wrong_account_of_bytes_redden_the_run(examined: dict[str, Examined]) -> None:
    run = examined["planted"].run
    assert run.code == 1, run.output
    for text in (
        "AssertionError: the parts sum to",
        "NOT EXPLAINED: forward",
        "AssertionError: parameters and buffers are counted as",
        "AssertionError: gradients: the allocator was asked for",
        "AssertionError: optimizer state: the allocator was asked for",
        "claimed of any model",
        "A forward pass costs 2 FLOPs per token and parameter.",
    ):
        assert text in run.output, f"{text!r} is missing from\n{run.output}"
    failed = {each["claim"] for each in examined["planted"].facts["claims"] if each["verdict"] == "FAILS"}
    assert failed == RULES | {"tensor.nbytes-formula"}
