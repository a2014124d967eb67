"""Every bound on a ratio of times has a row, the row has the bound of the code, and three cards keep a margin."""

from __future__ import annotations

import importlib

import pytest

from meta_tests.ratio_bounds import BENCH_BOUNDS, BOUNDS, CARDS, MARGIN, PAGE, Bound, comparisons, literal, page

ALL = {f"{name} {place}": bound for name, bounds in BOUNDS.items() for place, bound in enumerate(bounds, 1)}
ALL |= BENCH_BOUNDS


def test_every_comparison_of_times_has_a_row_for_each_of_its_bounds() -> None:
    found = {name: len(asserted) for name, _, asserted in comparisons()}
    rows = {name: len(bounds) for name, bounds in BOUNDS.items()}
    lacking = {name for name, asserted in found.items() if rows.get(name, 0) < max(asserted, 1)}
    assert not lacking, f"meta_tests/ratio_bounds.py lacks a row for {sorted(lacking)}"
    assert not rows.keys() - found.keys(), f"rows of no test: {sorted(rows.keys() - found.keys())}"


def test_the_rows_have_the_bounds_of_the_code() -> None:
    for name, _, asserted in comparisons():
        if len(asserted) != len(BOUNDS[name]):
            continue
        for call, bound in zip(asserted, BOUNDS[name], strict=True):
            for keyword, stated in (("at_least", bound.least), ("at_most", bound.most)):
                in_code = literal(call, keyword)
                assert in_code is None or in_code == pytest.approx(stated), (
                    f"{name}: {keyword} is {in_code} in the code, but {stated} in meta_tests/ratio_bounds.py"
                )
    for name, bound in BENCH_BOUNDS.items():
        file, _, constant = name.partition(".py::")
        assert getattr(importlib.import_module(f"bench.{file}"), constant) == bound.least, name


@pytest.mark.parametrize("name", ALL)
def test_three_cards_keep_a_margin(name: str) -> None:
    bound: Bound = ALL[name]
    ratios = {label: bound.ratios(label) for label in CARDS}
    assert bound.margin >= MARGIN, (
        f"{name}: the ratio must be {ratios}, which leaves a margin of {bound.margin:.2f} to {bound.least:.3g} "
        f"and {bound.most:.3g}, but should leave {MARGIN}"
    )


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/ratio-bounds.md: run python -m meta_tests.ratio_bounds"
