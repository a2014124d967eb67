"""`--report-compare`: a page, a table and an exit code from many records."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.conftest import ROOT
from meta_tests.page_tables import part_of
from meta_tests.prooflops.suite.fleet.simulated import COMMAND, FLEETS, PAGE, SPREADS, row, write_records
from meta_tests.prooflops.suite.fleet.test_nodes import RECORD
from meta_tests.prooflops.suite.report.evidence_record import evidence_record
from prooflops.suite.fleet import command
from prooflops.suite.registry import load_registry

HOSTILE = '<script>alert("x")</script>\u202e\x1b[2J'


def config(tmp_path: Path, *folders: Path, **more: Any) -> Any:
    option = {"report": str(tmp_path / "out"), "report_compare": [*map(str, folders)], "report_price": [], **more}
    return SimpleNamespace(option=SimpleNamespace(**option))


def test_a_bad_machine_is_a_suspect_and_by_a_second_run_bad(tmp_path: Path) -> None:
    said: list[str] = []
    write_records(tmp_path / "first", RECORD, 12, 1, 0.2)
    assert command.run(config(tmp_path, tmp_path / "first"), said.append) == 0
    assert any(line.startswith("suspect: node-0") and "at the same time as node-" in line for line in said), said
    again = {**RECORD, "datetime": "2026-01-02T00:00:00+00:00"}
    write_records(tmp_path / "second", again, 12, 1, 0.2, seed=1)
    said.clear()
    assert command.run(config(tmp_path, tmp_path / "first", tmp_path / "second"), said.append) == 1
    assert any(line.startswith("bad: node-0") for line in said), said
    for name in ("compare.md", "compare.html"):
        assert "node-0" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    fingerprint = {**RECORD["prooflops"]["fingerprint"], "name": HOSTILE}
    record = {**RECORD, "prooflops": {**RECORD["prooflops"], "fingerprint": fingerprint}}
    write_records(tmp_path / "first", record, 2, 0, 0.0)
    said: list[str] = []
    command.run(config(tmp_path, tmp_path / "first"), said.append)
    assert "\x1b" not in "".join(said)
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page


def test_on_a_terminal_of_80_columns_nothing_is_wider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said: list[str] = []
    write_records(tmp_path / "first", RECORD, 8, 1, 0.2)
    command.run(config(tmp_path, tmp_path / "first"), said.append)
    assert said[0].startswith("8 runs of 8 machines")
    assert max(map(len, said[:-1])) <= 80, max(said, key=len)  # the last is the path of the page


def test_a_wrong_source_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="no such folder or file"):
        command.run(config(tmp_path, tmp_path / "nowhere"))


@pytest.mark.prove
def test_a_thousand_records_of_whole_runs_are_compared_in_seconds(tmp_path: Path) -> None:
    record = evidence_record(load_registry(ROOT / "test_claims" / "registry"))
    write_records(tmp_path / "first", record, 1024, 10, 0.1)  # 500 KB each
    began = time.process_time()
    command.run(config(tmp_path, tmp_path / "first"), lambda line: None)
    assert time.process_time() - began < 10


@pytest.mark.prove
def test_the_document_has_the_table_of_simulated_fleets() -> None:
    held = part_of((ROOT / PAGE).read_text(encoding="utf-8"), "fleets", COMMAND)
    nodes, fleets = next(iter(FLEETS.items()))
    assert row(nodes, SPREADS[0], *fleets) in held, f"run {COMMAND}"
