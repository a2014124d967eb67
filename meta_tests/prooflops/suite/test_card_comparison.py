"""Cards compared by the records of their runs: outliers, and what could not be compared."""

from pathlib import Path

import pytest

from prooflops.suite.all_devices import conclude
from prooflops.suite.card_comparison import ALONE, AT_ONCE, Card, CardRun, outliers, tables


def run_of(name: str, phase: str, **medians_s: float) -> CardRun:
    rows = [{"fullname": key, "stats": {"median": value}} for key, value in medians_s.items()]
    record = {"benchmarks": rows, "prooflops": {"verdicts": [], "fingerprint": {}}}
    return CardRun(Card(name, ()), phase, 0, 1.0, record, "")


def test_what_sharing_costs_each_card_is_its_own_time_at_once_over_alone() -> None:
    runs = [run_of(name, ALONE, copy=1.0) for name in "abcd"]
    runs += [run_of(name, AT_ONCE, copy=2.0 if name == "c" else 1.1) for name in "abcd"]
    assert tables(runs)["at once: time against the same card alone"][1] == ["copy", "1.10x", "1.10x", "2.00x", "1.10x"]
    assert outliers(runs) == [
        "outlier: c at once in 1 of 1 benchmarks, most in copy: 81.8% slower than the median card"
    ]


def without_a_record(name: str, phase: str) -> CardRun:
    return CardRun(Card(name, ()), phase, 3, 1.0, None, "Killed")


def concluded(tmp_path: Path, runs: list[CardRun]) -> list[str]:
    """What is said below the tables."""
    said: list[str] = []
    conclude(runs, tmp_path, said.append)
    page = (tmp_path / "cards.md").read_text()
    lines = [line for line in said if line.startswith(("outlier", "no outlier", "not compared"))]
    assert all(f"- {line}" in page for line in lines), f"{lines} should be on the page as well:\n{page}"
    return lines


def test_a_card_without_a_record_leaves_the_others_compared(tmp_path: Path) -> None:
    runs = []
    for phase in (ALONE, AT_ONCE):
        runs += [run_of(name, phase, copy=2.0 if name == "c" else 1.0, add=1.0) for name in "abcd"]
        runs.append(without_a_record("e", phase))
    assert concluded(tmp_path, runs) == [
        "outlier: c alone in 1 of 2 benchmarks, most in copy: 100.0% slower than the median card",
        "outlier: c at once in 1 of 2 benchmarks, most in copy: 100.0% slower than the median card",
        "not compared alone: e: no record",
        "not compared at once: e: no record",
    ]
    rows = tables(runs)
    copy, _, mean = rows["alone: time against the median card"][1:]
    assert copy[2:] == ["+0.0%", "+0.0%", "+100.0% !", "+0.0%", "-"]
    assert mean[2:] == ["+0.0%", "+0.0%", "+41.4% !", "+0.0%", "-"]
    assert rows["at once: time against the same card alone"][1][1:] == ["1.00x"] * 4 + ["-"]


def test_a_benchmark_that_one_card_lacks_is_compared_among_the_others(tmp_path: Path) -> None:
    """The first card lacks it: a benchmark that only later ones have is one all the same."""
    times = {"a": {}, "d": {"copy": 3.0}, **{name: {"copy": 1.0} for name in "bce"}}
    runs = [run_of(name, phase, add=1.0, **more) for phase in (ALONE, AT_ONCE) for name, more in times.items()]
    assert concluded(tmp_path, runs) == [
        "outlier: d alone in 1 of 2 benchmarks, most in copy: 200.0% slower than the median card",
        "outlier: d at once in 1 of 2 benchmarks, most in copy: 200.0% slower than the median card",
        "not compared alone: a in copy: no time there",
        "not compared at once: a in copy: no time there",
    ]


def test_a_benchmark_on_too_few_cards_names_no_outlier_and_says_so(tmp_path: Path) -> None:
    times = {"a": {"copy": 1.0}, "b": {"copy": 9.0, "lone": 1.0, "odd": 1.0}, "c": {}, "d": {}}
    runs = [run_of(name, phase, add=1.0, **more) for phase in (ALONE, AT_ONCE) for name, more in times.items()]
    lines = concluded(tmp_path, runs)
    assert lines[0].startswith("no outlier alone or at once: no card is 3%"), f"add was compared: {lines}"
    for phase in (ALONE, AT_ONCE):
        assert f"not compared {phase}: lone, odd: a time on b only" in lines, lines
        pair = "copy: a time on a and b only, and fewer than 4 are too few"
        assert f"no outlier is named {phase}: {pair}" in lines, lines
        assert f"not compared {phase}: c in copy: no time there" in lines, lines
    shown = [row[0] for row in tables(runs)["alone: time against the median card"][1:]]
    assert shown == ["add", "copy"], f"what two cards have is shown, what one has is not: {shown}"


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_where_nothing_was_compared_no_card_is_called_sound(tmp_path: Path, names: str) -> None:
    runs = [run_of(name, ALONE, copy=1.0) for name in names] + [run_of("a", AT_ONCE, copy=1.0)]
    runs += [without_a_record(name, AT_ONCE) for name in names[1:]]
    lines = concluded(tmp_path, runs)
    assert "not compared at once: no benchmark has a time on two cards" in lines, lines
    assert "not compared at once: b: no record" in lines, lines
    assert "not compared at once: copy: a time on a only" in lines, lines
    quiet = [line for line in lines if line.startswith("no outlier")]
    assert len(quiet) == 1, f"one line for what was compared alone: {lines}"
    assert "at once" not in quiet[0], quiet
