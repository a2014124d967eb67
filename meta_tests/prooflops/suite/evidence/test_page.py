"""The page of a collection says what was never reached; the index compares the machines."""

import json
from pathlib import Path

from prooflops.suite.evidence import page
from prooflops.suite.evidence.folder import Folder
from prooflops.suite.registry import Claim, Registry


def test_a_claim_of_which_a_test_was_never_reached_is_not_checked(tmp_path: Path) -> None:
    claim = Claim(id="demo.it", statement="It is.", sources=("s",), written="holds", kind="number")
    plan = {"tests": ["a", "b"], "claims": {"a": ["demo.it"], "b": ["demo.it"]}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    folder, registry = Folder(tmp_path), Registry({"demo.it": claim}, {})
    outcome = {"test": "a", "status": "passed", "figures": ["2x"], "cases": 20}
    folder.append("tests.jsonl", event="end", test="a", status="passed", outcomes=[outcome])
    (verdict,) = page.verdicts_of(folder, registry)
    assert (verdict.verdict, verdict.reason) == ("not checked", "1 of 2 tests ran: never reached")
    folder.end_without_a_report("b", "timed out", "too long")
    (verdict,) = page.verdicts_of(folder, registry)
    assert (verdict.verdict, verdict.reason, verdict.cases) == ("error", "too long", 20)


def test_the_index_has_a_row_for_each_machine(tmp_path: Path) -> None:
    facts = {"driver": None, "torch": "2.11", "python": "3.12", "pace": "quick", "tests": 9, "ended": 7, "red": 1}
    for name, best in {"b": {"bf16": 790e12}, "a": {}}.items():
        (tmp_path / name).mkdir()
        row = {**facts, "name": f"card {name}", "verdicts": {"holds": 3}, "best": best}
        (tmp_path / name / "summary.json").write_text(json.dumps(row))
    page.write_index(tmp_path)
    rows = [line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert [row.split(" | ")[1] for row in rows] == ["card a", "card b"]
    assert "| [b](b/README.md) | card b | - | 2.11 | 3.12 | quick | 7 of 9 | 1 | 3 |" in rows[1]
    assert "| 790 TFLOP/s |" in rows[1]
