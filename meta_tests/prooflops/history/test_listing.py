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
