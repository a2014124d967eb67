"""What the gate prints: sentences, notes, JUnit's properties, the page of a CI."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate.decisions import BUDGET, NOISE, PAIRS
from prooflops.gate.summary import (
    cut,
    notes,
    one_line,
    passing_open,
    properties,
    sentence,
    short_lines,
    write_step_summary,
    write_terminal,
)
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
        (CHANGED, "flops is 2, but was 1, and is an exact quantity; if this is intended, store "),
        (MISSING, "time was 1.0 before, and is gone (removed); if this is intended"),
        (MEMORY, "memory of a call is 24.6 KiB (+100.0%) at most, before 12.3 KiB; if this is intended"),
        (Row("t.py::test_c", "time", 1.0, 1.0, "INCONCLUSIVE", note="noise 9%"), "test_c: time: noise 9%"),
    ],
    ids=lambda value: value.verdict if isinstance(value, Row) else "",
)
def test_a_failure_says_what_was_found_and_what_was_expected(row: Row, text: str) -> None:
    assert sentence(row).startswith(f"{row.verdict}: {row.name}")
    assert text in sentence(row)
    assert sentence(CHANGED).endswith("; if this is intended, store a new baseline: --gate-record NAME")


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
    assert lines[4].startswith(
        f"1: {NOISE}, longer rounds, more --gate-replicates or a larger --gate-min-effect decide it; "
    ), lines
    assert len(lines) == 5, lines


def test_a_reason_that_several_rows_have_is_said_once_with_what_helps() -> None:
    rows = [
        Row(f"t{i}", "time", 1.0, 1.0, "INCONCLUSIVE", note=reason) for i, reason in enumerate([PAIRS, BUDGET, PAIRS])
    ]
    beside = Row("c", "time", 1.0, 1.0, "SAME", note="1 of 16 replicates contended: a build")
    _, why = one_line([*rows, beside, beside])
    assert why == (
        f"2: {PAIRS}, more of them decide it; 1: {BUDGET}, a larger one or fewer benchmarks decide it; "
        "2 of 5 ran beside other work (a build); -v says it for each"
    )
    assert one_line([beside])[1] == "1 of 1 ran beside other work (a build)"
    assert one_line([]) == ["nothing compared"]
    many = [Row(name, "time", 1.0, 1.0, "SAME", note="noisy; its own" if name == "a" else "noisy") for name in "abcde"]
    assert notes(many) == ["noisy: a, b, c and 2 more", "a: its own"]
    assert notes(many[:3]) == ["noisy: a, b, c", "a: its own"]


def test_an_open_benchmark_passes_where_more_than_what_is_allowed_is_excluded() -> None:
    rows = [Row(name, "time", 1.0, 1.0, "INCONCLUSIVE") for name in "abc"]
    skipped, claim = Row("d", "time", 1.0, None, "INCONCLUSIVE"), Row("e", "verdict", "", "", "INCONCLUSIVE")
    (line,) = passing_open([*rows, skipped, claim, SLOWER], rows[:1], 0.1)
    assert line.startswith("2 INCONCLUSIVE pass: more than 10% is excluded")
    for failing, allowed in ((rows, 0.1), ([], 0.0), ([], float("inf"))):
        assert passing_open(rows, failing, allowed) == []


def printed(columns: int, verbosity: int, *given: Any) -> list[str]:
    """What the gate prints on a terminal so wide."""
    lines: list[str] = []
    terminal: Any = SimpleNamespace(
        section=lines.append, verbosity=verbosity, write_line=lambda line, **_: lines.append(line)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        write_terminal(terminal, "a beside b", *given)
    return lines


def test_the_terminal_has_what_is_not_same_and_with_v_all_rows_above_their_notes() -> None:
    same = Row("t.py::test_s", "time", 1.0, 1.0, "SAME", note="contended")
    long = replace(SLOWER, name="t.py::" + "x" * 200)
    for columns, width in ((20, 80), (90, 90), (300, 100)):
        title, line, *rest = printed(columns, 0, [long, same], ["12 pairs"])
        assert (title, len(line), rest) == ("gate: a beside b", width, ["1 SLOWER, 1 SAME", "12 pairs"])
    prefix, _, name = short_lines([long], 10)[0].partition("…")
    assert (prefix[:6], len(name)) == ("SLOWER", 17)
    _, head, *table, first, note, last = printed(80, 1, [SLOWER, same], ["12 pairs"])
    assert head.split()[0] == "benchmark"
    assert [line.split()[0] for line in table] == ["t.py::test_a", "t.py::test_s"], table
    assert (first, note, last) == ("1 SLOWER, 1 SAME", "t.py::test_s: contended", "12 pairs")
    assert printed(80, 1, [SLOWER], ["12 pairs"], [["benchmark"], ["a"]]) == [
        "gate: a beside b",
        "benchmark",
        "a",
        "12 pairs",
    ]
    is_open = Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", note=PAIRS)
    assert printed(80, 1, [is_open], [])[3:] == ["1 INCONCLUSIVE", f"a: {PAIRS}"]
    assert cut("12345", 5) == "12345"
    assert printed(80, 1, [], ["12 pairs"]) == ["gate: a beside b", "12 pairs"]


def test_a_row_without_an_effect_has_its_reason_below_it_and_says_which_quantity_it_is_of() -> None:
    shown = short_lines([MISSING, CHANGED, MEMORY], 80)
    assert [line.strip() for line in shown] == [
        "MISSING      1.00 s -> -                     t.py::test_b", "removed",
        "CHANGED      flops: 1 -> 2                   t.py::test_a",
        "MORE MEMORY  12.3 KiB -> 24.6 KiB (+100.0%)  t.py::test_d", "1 MORE MEMORY, 1 CHANGED, 1 MISSING",
    ]  # fmt: skip


def test_a_page_that_cannot_be_written_ends_no_run_and_a_table_stands_on_it_in_place_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    write_step_summary("a beside b", [SLOWER], [], [])
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    write_step_summary("a beside b", [SLOWER], [], [])
    assert "gate: the summary could not be written: " in capsys.readouterr().out
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    write_step_summary("noise — é", [SLOWER], ["stored"], [], [["benchmark"], ["a"]])
    write_step_summary("", [replace(SLOWER, verdict="SAME")], [], [])
    _, first, second = page.read_text(encoding="utf-8").split("### Gate: ")
    assert first == "noise — é\n\n| benchmark |\n| --- |\n| a |\n\nstored  \n\n"
    assert second == "\n\n1 SAME, the widest within 10.0%.\n\n\n"
