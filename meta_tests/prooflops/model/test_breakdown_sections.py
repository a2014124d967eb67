"""The tables of what fits, and of counts for people."""

from prooflops.model.breakdown_sections import count_text, sweep_section
from prooflops.model.sweep import Sweep, Trial


def test_a_size_that_does_not_fit_says_why() -> None:
    trials = (Trial(8, 900, 1000, 0.5, 8), Trial(16, None, 2_000_000), Trial(17, None, None, why_not="IndexError"))
    section = sweep_section(Sweep("batch", 2**20, "--model-memory", "examples", trials, 8, 16, 8))
    assert section.rows[1:] == [
        ["8", "900 B", "1.00 kB", "500 ms", "16.0", ""],
        ["16", "-", "2.00 MB", "-", "-", "does not fit"],
        ["17", "-", "-", "-", "-", "IndexError"],
    ]
    assert "largest found to fit: batch=8 (16 does not)" in section.remarks


def test_a_small_count_is_a_whole_number() -> None:
    assert [count_text(each) for each in (0, 0.906, 320, 1_250_000, 38.4)] == ["0", "0.906", "320", "1.25 M", "38.4"]
