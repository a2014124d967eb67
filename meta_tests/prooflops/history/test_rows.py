"""The table of a comparison."""

from meta_tests.prooflops.history.test_comparison import A, side, timed
from prooflops.history import rows
from prooflops.history.comparison import compare


def test_the_table_leaves_out_what_is_equal_and_shows_the_rest() -> None:
    found = compare(side({A: timed(0.002, flops=24, bytes=8)}), side({A: timed(0.003, flops=25, bytes=8)}))
    table = rows.table(found)
    assert [row[1] for row in table] == ["quantity", "time", "flops"]
    assert table[1][2:5] == ["2.00 ms", "3.00 ms", "1.500"]
    assert table[2][2:4] == ["24", "25"]
    assert [row[1] for row in rows.table(found, every=True)] == ["quantity", "time", "flops", "bytes"]
    assert rows.counts(found) == "1 CHANGED, 1 INCONCLUSIVE, 1 SAME"
