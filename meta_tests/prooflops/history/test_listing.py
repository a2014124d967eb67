"""The history on the terminal."""

from pathlib import Path

import pytest

from prooflops.history import records
from prooflops.history.listing import print_history


def test_records_unreadable_files_and_baselines_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fingerprint = {"name": "Some GPU", "torch": "2.13.0"}
    path = records.append(tmp_path, {"benchmarks": [], "prooflops": {"fingerprint": fingerprint}}, fingerprint)
    records.store_baseline("main", [path])
    (path.parent / "0.json").write_text("cut o")
    assert print_history(tmp_path, [], verbose=False) == 0
    head, unreadable, listed, baseline = capsys.readouterr().out.splitlines()
    assert head == f"2 records in {tmp_path}"
    assert "unreadable, skipped" in unreadable
    assert path.name in listed
    assert "claims" not in listed, "no record has any"
    assert "Some GPU, torch 2.13.0" in listed
    assert baseline.startswith("  baseline main: ")


def test_claims_contention_commits_and_trends_are_listed_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(9):
        bench = {"fullname": "a", "stats": {"min": 1.0}, "extra_info": {"contention": {"contended": number == 0}}}
        ours = {"fingerprint": {"name": "A CPU"}, "verdicts": [{"id": "x.a", "verdict": "holds"}] * (number == 1)}
        record = {"benchmarks": [bench], "prooflops": ours, "commit_info": {"id": "1a2b3c4d5e6f"}}
        path = records.append(tmp_path, record, {"name": "A CPU"})
    (path.parent / "0.json").write_text("cut o")
    print_history(tmp_path, [], verbose=True)
    _, _, first, second, *others, gap, head, columns, row = capsys.readouterr().out.splitlines()
    assert first.endswith("    1 benchmarks    0 claims  A CPU  1a2b3c4d5e  contended")
    assert second.endswith("    1 benchmarks    1 claims  A CPU  1a2b3c4d5e")
    assert (len(others), gap, head) == (7, "", f"trend on {path.parent.name}")
    assert columns.split() == ["benchmark", "records", "first", "last", "trend", "changes", "of", "level"]
    assert row.split() == ["a", "9", "1.00", "s", "1.00", "s", "▁" * 9, "none", "found"]
