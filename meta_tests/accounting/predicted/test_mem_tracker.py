"""The page's table of torch's MemTracker says where it is exact, and that we are everywhere."""

from __future__ import annotations

import pytest
import torch

from meta_tests.accounting.predicted.mem_tracker import BLOCK, CASES, PAGE, Case, compared

NEGLIGIBLE_BYTES = 100  # boxed numbers, which differ from one release of torch to the next


def rows_of_the_page() -> dict[str, list[str]]:
    block = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert block, f"{PAGE.name} should hold the table"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in block[0].splitlines() if "|" in line]
    return {name: cells for name, *cells in rows[2:]}


def test_the_page_has_a_row_for_each_case() -> None:
    assert [*rows_of_the_page()] == [case.name for case in CASES], "run the module mem_tracker with --write"


@pytest.mark.prove(sample=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mem_tracker_is_exact_where_the_page_says_so(case: Case) -> None:
    block = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    if block and f"Torch {torch.__version__.partition('+')[0]}," not in block[0]:
        pytest.skip(f"the page is of another torch than {torch.__version__}")
    comparison = compared(case)
    assert comparison.ours.live == comparison.measured.live, f"{comparison}"
    assert comparison.ours.peak == pytest.approx(comparison.measured.peak, rel=0.01), f"{comparison}"
    *_, live, peak = rows_of_the_page()[case.name]
    for what, said in (("live", live), ("peak", peak)):
        off = getattr(comparison.mem_tracker, what) - getattr(comparison.measured, what)
        should = "exact" if abs(off) < NEGLIGIBLE_BYTES else "more" if off > 0 else "less"
        says = "exact" if said == "exact" else "more" if said.startswith("+") else "less"
        assert says == should, f"the page says {said} of {what}, but it is {off:+} bytes: {comparison}"
