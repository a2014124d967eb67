"""The page about a user's model: on the terminal, as Markdown, and in the docs."""

import json
from pathlib import Path

from meta_tests.conftest import ROOT, SUITE, fork_pytest
from meta_tests.prooflops.model.model_house import LAST_VALIDATION, Examined, each_model, model_house
from meta_tests.user_models.worked import FORWARD, PARAMETERS, PARTS, TOKENS


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


def test_the_variants_of_the_docs_are_set_side_by_side_and_swept(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "your-model.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith("pytest --model nets.py:small"))
    root = model_house(tmp_path)
    (root / "nets.py").write_text(
        next(block for block in text.split("```python\n") if "def small(" in block).partition("```")[0]
    )
    arguments = command.removeprefix("pytest ").split()
    run = fork_pytest(root, *arguments, "--device=cpu", "--quick", "-k", "where_it_goes or largest", imported=SUITE)
    assert run.code == 0, run.output
    assert "4 passed" in run.output
    assert "your models" in run.output
    for name, other in (("small", "large"), ("large", "small")):
        facts = json.loads((root / "reports" / f"model-nets.py-{name}.json").read_text())
        assert facts["sweep"]["found"] > 100
        page = (root / "reports" / f"model-nets.py-{name}.html").read_text()
        assert "second / first" in page
        assert f'href="model-nets.py-{other}.html"' in page


def test_the_report_of_the_last_validation_stays_as_it_is(examined_house: Path, examined: dict[str, Examined]) -> None:
    assert (
        "page: gpt/model-zoo.gpt-factory.html and .md  facts: gpt/model-zoo.gpt-factory.json"
        in examined["gpt"].run.output
    )
    for file in LAST_VALIDATION:
        assert (examined_house / "gpt" / file).read_text() == "of the last validation"
        assert not (examined_house / "own" / file).exists()


def test_a_tensor_that_is_no_buffer_is_reported(examined: dict[str, Examined]) -> None:
    assert "the factory keeps 400 B" in examined["own"].page
