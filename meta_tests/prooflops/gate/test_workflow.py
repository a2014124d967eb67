"""The checkouts and the cache keys of the workflow that docs/ci.md tells its readers to copy."""

import yaml

from meta_tests.conftest import ROOT
from prooflops.gate.options import HISTORY

WORKFLOW = ROOT / "docs" / "workflows" / "gate.yml"


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
