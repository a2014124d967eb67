"""The table of a comparison."""

import math

import pytest

from meta_tests.prooflops.history.test_comparison import A, side, timed
from prooflops.history import rows
from prooflops.history.comparison import compare
from prooflops.history.rows import Row
from prooflops.statistics.effects import paired


def test_the_table_leaves_out_what_is_equal_and_shows_the_rest() -> None:
    found = compare(side({A: timed(0.002, flops=24, bytes=8)}), side({A: timed(0.003, flops=25, bytes=8)}))
    table = rows.table(found)
    assert [row[1] for row in table] == ["quantity", "time", "flops"]
    assert table[1][2:5] == ["2.00 ms", "3.00 ms", "1.500"]
    assert table[2][2:4] == ["24", "25"]
    assert [row[1] for row in rows.table(found, every=True)] == ["quantity", "time", "flops", "bytes"]
    assert rows.counts(found) == "1 CHANGED, 1 INCONCLUSIVE, 1 SAME"


def test_a_row_has_its_figures_ratio_interval_and_verdict_in_words() -> None:
    effect = paired([1.0] * 8, [1.5, 1.6] * 4, level=0.01)
    row = Row("a", "time", 0.001, 0.0015, "SLOWER", effect, "surely")
    head, cells = rows.table([row])
    assert head == ["benchmark", "quantity", "before", "after", "ratio", "interval", "verdict"]
    assert cells == ["a", "time", "1.00 ms", "1.50 ms", f"{effect.ratio:.3f}", "1.500 to 1.600", "SLOWER: surely"]
    few = paired([1.0], [1.0], level=0.01)
    assert rows.table([Row("a", "time", 0.001, None, "MISSING", few)])[1][3:] == ["-", "1.000", "unknown", "MISSING"]
    assert not Row("a", "mfu", 0.5, 0.4, "SAME", few).exact, "it has an interval"
    assert not Row("a", "time", 0.5, None, "MISSING").exact


def test_what_so_few_pairs_decide_at_a_strict_level_has_bounds_at_a_lesser_one() -> None:
    plain = paired([1.0] * 8, [1.10, 1.11, 1.12, 1.13, 1.14, 1.15, 1.16, 1.17], level=0.001)
    assert (plain.low, plain.high) == (0, math.inf), "8 pairs reach 1/256"
    low, high, _ = plain.bounds(rows.SHOWN_LEVEL)
    assert 1.10 <= low < high <= 1.17
    assert rows.interval(plain) == f"{low:.3f} to {high:.3f}, 99%"


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        ("memory", 12_600, "12.3 KiB"), ("CUDA memory", 12_600, "12.3 KiB"), ("instructions", 1.5e6, "1.50 M"),
        ("mfu", 0.5, "50.0%"), ("hfu", 0.5, "50.0%"), ("share_of_ceiling", 0.5, "50.0%"), ("speed", 0.5, "0.5"),
        ("flops", 12_600, "12,600"), ("flops", True, "True"), ("flops", None, "-"), ("verdict", "holds", "holds"),
    ],
)  # fmt: skip
def test_a_figure_is_printed_in_its_unit(quantity: str, value: object, text: str) -> None:
    assert rows.figures(Row("a", quantity, None, value, "NEW"))[1] == text


def test_growth_is_printed_in_percent() -> None:
    assert rows.figures(Row("a", "memory", 1024, 1536, "MORE MEMORY")) == ["1.0 KiB", "1.5 KiB (+50.0%)"]


def test_what_one_side_has_is_new_or_missing_or_skipped_this_time() -> None:
    new, missing, other = (rows.one_sided(name, "time", *sides) for name, sides in
                           {"n": (None, 2), "m": (1, None), "o": (1, None)}.items())  # fmt: skip
    assert (new.verdict, new.before, new.after) == ("NEW", None, 2)
    assert (missing.verdict, missing.before, missing.after) == ("MISSING", 1, None)
    found = rows.with_skips([new, missing, other], {"m": "later", "n": "later"})
    assert found == [new, found[1], other]
    assert (found[1].verdict, found[1].note) == ("INCONCLUSIVE", "skipped this time: later")


def test_verdicts_are_counted_the_worst_first() -> None:
    worst = (
        "SLOWER, MORE MEMORY, CHANGED, MISSING, INCONCLUSIVE, MORE INSTRUCTIONS, FEWER INSTRUCTIONS, FASTER, "
        "LESS MEMORY, NEW, SAME"
    )
    found = [Row("a", "time", 1, 1, verdict) for verdict in worst.split(", ")]
    assert rows.counts(found[::-1]) == ", ".join(f"1 {verdict}" for verdict in worst.split(", "))
