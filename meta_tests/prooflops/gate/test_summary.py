"""What the gate prints: sentences, notes, JUnit's properties, the page of a CI."""

from dataclasses import replace
from pathlib import Path

import pytest

from prooflops.gate.decisions import NOISE
from prooflops.gate.summary import properties, sentence, short_lines, write_step_summary
from prooflops.history.rows import Row
from prooflops.statistics.effects import paired

SLOWER = Row("t.py::test_a", "time", 1.0, 1.1, "SLOWER", paired([1.0] * 9, [1.1] * 9, level=0.01))
CHANGED = Row("t.py::test_a", "flops", 1, 2, "CHANGED")
MEMORY = Row("t.py::test_d", "memory", 12_600, 25_200, "MORE MEMORY")
MISSING = Row("t.py::test_b", "time", 1.0, None, "MISSING", note="removed")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (SLOWER, "takes 1.100 times as long [1.100 to 1.100]: 1.10 s, before 1.00 s"),
        (CHANGED, "flops is 2, but was 1, and is an exact quantity; if this is intended"),
        (MISSING, "time was 1.0 before, and is gone (removed); if this is intended"),
        (MEMORY, "memory of a call is 24.6 KiB (+100.0%) at most, before 12.3 KiB; if this is intended"),
        (Row("t.py::test_c", "time", 1.0, 1.0, "INCONCLUSIVE", note="noise 9%"), "test_c: time: noise 9%"),
    ],
    ids=lambda value: value.verdict if isinstance(value, Row) else "",
)
def test_a_failure_says_what_was_found_and_what_was_expected(row: Row, text: str) -> None:
    assert sentence(row).startswith(f"{row.verdict}: {row.name}")
    assert text in sentence(row)


def test_the_properties_of_a_test_have_the_verdict_and_its_figures() -> None:
    found = dict(properties(SLOWER))
    assert found["gate.time"] == "SLOWER"
    assert found["gate.time.ratio"] == pytest.approx(1.1)
    assert found["gate.time.noise"] == SLOWER.effect.noise
    assert dict(properties(MISSING)) == {"gate.time": "MISSING", "gate.time.before": 1.0, "gate.time.note": "removed"}


def test_the_page_of_a_ci_names_what_stops_the_gate_and_has_no_row_for_what_is_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    same = Row("t.py::test_s", "time", 1.0, 1.0, "SAME", paired([1.0] * 8, [1.02] * 8, level=0.001))
    write_step_summary("a beside b", [SLOWER, CHANGED, same], ["12 pairs"], [CHANGED])
    page = (tmp_path / "page.md").read_text()
    assert "**1 stop the gate**" in page
    assert "1 SLOWER, 1 CHANGED, 1 SAME, the widest within 2.0%." in page
    assert "| t.py::test_a | flops | 1 | 2 |" in page
    assert "test_s" not in page


def test_what_is_same_is_summed_up_and_all_else_has_a_line_that_fits() -> None:
    same = Row("t.py::test_s", "time", 1.0, 1.0, "SAME", paired([1.0] * 8, [1.02] * 8, level=0.001))
    effect = paired([1.0] * 8, [1.0, 1.1] * 4, level=0.001)
    note = f"slower by 10.0% at most (99% sure); {NOISE}; about 40 replicates a side would decide"
    long = "tests/" + "deep/" * 30 + "test_it.py::test_" + "x" * 60 + "[last]"
    lines = short_lines(
        [SLOWER, replace(SLOWER, name=long), Row("o", "time", 1.0, 1.1, "INCONCLUSIVE", effect, note), same], 80
    )
    assert max(map(len, lines[:3])) <= 80, lines
    assert " ".join(lines[0].split()) == "SLOWER 1.100 (1.100 to 1.100) 1.00 s -> 1.10 s t.py::test_a", lines
    assert lines[1].endswith("[last]"), lines
    assert "1.049 (1.000 to 1.100, 99%)" in lines[2], lines
    assert lines[3] == "2 SLOWER, 1 INCONCLUSIVE, 1 SAME, the widest within 2.0%", lines
    assert lines[4].startswith(f"1: {NOISE}, longer rounds"), lines
    assert len(lines) == 5, lines
