"""The commands and options that the workflow and the page about CI name exist."""

import re
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT, run_pytest
from prooflops.gate.options import HISTORY

WORKFLOW, PAGE = ROOT / "docs" / "workflows" / "gate.yml", ROOT / "docs" / "ci.md"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All long options of pytest with the plugin."""
    run = run_pytest(tmp_path_factory.mktemp("empty"), "-p", "prooflops.plugin", "--help", path=ROOT)
    assert run.code == 0, run.output
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", run.output))


@pytest.mark.parametrize("file", [WORKFLOW, PAGE], ids=lambda file: file.name)
def test_each_option_that_a_document_names_exists(file: Path, options: set[str]) -> None:
    named = set(re.findall(r"(?<![\w-])--gate[a-z-]*", file.read_text(encoding="utf-8")))
    assert named, f"{file.name} names no option"
    assert named <= options, f"{file.name} names {sorted(named - options)}, which pytest does not know"


def test_the_workflow_is_yaml_that_runs_the_gate_side_by_side_with_the_whole_history_there() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert "\t" not in text, "YAML is indented by spaces"
    assert "pytest --gate --gate-versus origin/$GITHUB_BASE_REF" in text, text
    import yaml

    jobs = yaml.safe_load(text)["jobs"]
    for name in ("side-by-side", "against-history"):
        checkout = jobs[name]["steps"][0]["with"]
        assert checkout == {"fetch-depth": 0}, f"{name} has no other commit to run beside: {checkout}"
    assert all(job["steps"] for job in jobs.values()), jobs


def test_the_workflow_restores_the_history_that_it_saved() -> None:
    import yaml

    steps = [
        step for job in yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values() for step in job["steps"]
    ]
    saved, restored = (
        [step["with"] for step in steps if step.get("uses", "").startswith(f"actions/cache/{what}@")]
        for what in ("save", "restore")
    )
    assert len(saved) == 1, saved
    assert len(restored) == 2, restored
    for each in restored:
        assert each["path"] == saved[0]["path"] == HISTORY, each
        assert saved[0]["key"].startswith(each["restore-keys"]), f"{each} never finds {saved[0]['key']}"
