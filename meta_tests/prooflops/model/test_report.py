"""The page about a user's model: on the terminal, as Markdown, and in the docs."""

from pathlib import Path

from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.model_house import LAST_VALIDATION, Examined, each_model
from meta_tests.user_models.worked import FORWARD, PARAMETERS, PARTS, TOKENS
from prooflops.model.flop_difference import StepFlops
from prooflops.model.report import rule_remark


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


def test_the_page_in_the_docs_is_the_real_one(examined: dict[str, Examined]) -> None:
    _, _, rest = (ROOT / "docs" / "your-model.md").read_text().partition("```\nN = ")
    excerpt = f"N = {rest.partition('```')[0]}".splitlines()
    missing = [line for line in excerpt if line not in examined["gpt"].run.output.splitlines()]
    assert len(excerpt) > 20
    assert not missing, f"not on the page of gpt.py: {missing}"


def test_a_rule_says_of_which_flops_it_is_so_far_off() -> None:
    flops = StepFlops(100, 10, "tokens", 2000, 4500, 0, 500, (), {}, 0, 0, 0, {})
    assert rule_remark(flops, "forward") == "2ND is exactly the model FLOPs (+0)"
    assert rule_remark(flops, "step") == "6ND is exactly the model FLOPs (+0), 7.7% below the executed FLOPs"


def test_the_report_of_the_last_validation_stays_as_it_is(examined_house: Path, examined: dict[str, Examined]) -> None:
    assert "page: gpt/model-zoo.gpt-factory.md  facts: gpt/model-zoo.gpt-factory.json" in examined["gpt"].run.output
    for file in LAST_VALIDATION:
        assert (examined_house / "gpt" / file).read_text() == "of the last validation"
        assert not (examined_house / "own" / file).exists()


def test_a_tensor_that_is_no_buffer_is_reported(examined: dict[str, Examined]) -> None:
    assert "the factory keeps 400 B" in examined["own"].page
