"""The options, the checkouts and the cache keys of the workflow that docs/ci.md tells its readers to copy."""

import re
from pathlib import Path

import pytest
import yaml

from meta_tests.conftest import ROOT
from prooflops.gate.options import FLAGS, HISTORY, VALUES

WORKFLOW, PAGE = ROOT / "docs" / "workflows" / "gate.yml", ROOT / "docs" / "ci.md"


@pytest.mark.parametrize("file", [WORKFLOW, PAGE], ids=lambda file: file.name)
def test_each_option_that_a_document_names_exists(file: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--gate[a-z-]*", file.read_text(encoding="utf-8")))
    assert named, f"{file.name} names no option"
    assert named <= {*FLAGS, *VALUES}


def test_the_workflow_has_the_whole_history_of_commits_and_restores_the_records_that_it_saved() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert "pytest --gate --gate-versus origin/$GITHUB_BASE_REF" in text
    jobs = yaml.safe_load(text)["jobs"]
    for name in ("side-by-side", "against-history"):
        assert jobs[name]["steps"][0]["with"] == {"fetch-depth": 0}, f"{name} has no other commit to run beside"
    steps = [step for job in jobs.values() for step in job["steps"]]
    saved, restored = (
        [step["with"] for step in steps if step.get("uses", "").startswith(f"actions/cache/{kind}@")]
        for kind in ("save", "restore")
    )
    assert (len(saved), len(restored)) == (1, 2)
    for each in restored:
        assert each["path"] == saved[0]["path"] == HISTORY
        assert saved[0]["key"].startswith(each["restore-keys"]), f"{each} never finds {saved[0]['key']}"
