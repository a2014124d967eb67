"""Which changes of memory and instructions are reported."""

import pytest

from prooflops.history.records import Timed, summary_of
from prooflops.history.resources import resource_rows
from prooflops.history.rows import counts, figures

MEMORY = "memory"


def group(key: str, *values: float) -> list[Timed]:
    return [Timed(1.0, {}, {}, resources={key: value}) for value in values]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([12_600] * 5, [25_200] * 5, "MORE MEMORY"),
        ([25_200] * 5, [12_600] * 5, "LESS MEMORY"),
        ([12_600] * 5, [12_600] * 5, None),
        ([12_600] * 4, [25_200] * 8, None),  # too few processes to know that it is always so
        ([1000] * 8, [5095] * 8, None),  # 5 times as much, and less than 4 KiB more
        ([1000] * 8, [5096] * 8, "MORE MEMORY"),
        ([1_000_000] * 8, [1_049_999] * 8, None),  # 49 KB more, and less than 5 %
        ([1_000_000] * 8, [1_050_000] * 8, "MORE MEMORY"),
        ([100_000, 1_000_000] * 4, [1_049_999] * 8, None),  # of what any process held before
        ([*[10_000] * 4, 24_000], [24_000, *[90_000] * 4], None),  # both sides have had 24,000
        ([10_000, 20_000, 11_000] * 2, [30_000, 24_097, 90_000] * 2, "MORE MEMORY"),
        ([0] * 5, [8192] * 5, "MORE MEMORY"),
    ],
)
def test_memory_is_reported_where_every_process_of_a_side_held_more_by_the_smallest_effect(
    before: list[float], after: list[float], verdict: str | None
) -> None:
    rows = resource_rows({"a": (group(MEMORY, *before), group(MEMORY, *after))}, 0.05, 0.03)
    assert [row.verdict for row in rows] == ([verdict] if verdict else [])


def test_instructions_are_held_against_the_smallest_effect_of_times() -> None:
    sides = group("instructions", *[1e6] * 4), group("instructions", *[1.03e6] * 4)
    (row,) = resource_rows({"a": sides}, 0.05, 0.03)
    assert (row.verdict, figures(row)) == ("MORE INSTRUCTIONS", ["1.00 M", "1.03 M (+3.0%)"])
    assert not resource_rows({"a": sides}, 0.01, 0.04)


@pytest.mark.parametrize(
    ("key", "fewest", "least", "verdicts"),
    [
        ("memory", 5, 4096, ("MORE MEMORY", "LESS MEMORY")), ("CUDA memory", 5, 4096, ("MORE MEMORY", "LESS MEMORY")),
        ("instructions", 3, 10_000, ("MORE INSTRUCTIONS", "FEWER INSTRUCTIONS")),
    ],
)  # fmt: skip
def test_so_many_processes_and_so_much_more_are_the_least(
    key: str, fewest: int, least: int, verdicts: tuple[str, str]
) -> None:
    low, high, less = (group(key, *[value] * fewest) for value in (1000, 1000 + least, 999 + least))
    assert [row.verdict for row in resource_rows({"a": (low, high)}, 0.05, 0.03)] == [verdicts[0]]
    assert [row.verdict for row in resource_rows({"a": (high, low)}, 0.05, 0.03)] == [verdicts[1]]
    assert not resource_rows({"a": (low, less)}, 0.05, 0.03)
    for sides in ((low[1:], high), (low, high[1:])):
        assert not resource_rows({"a": sides}, 0.05, 0.03), f"{fewest - 1} processes of a side"


def test_what_only_one_side_measured_is_not_compared() -> None:
    assert not resource_rows({"a": (group("CUDA memory", *[1] * 8), group(MEMORY, *[9e9] * 8))}, 0.05, 0.03)


def test_the_figures_are_read_back_from_a_record_and_shown_in_powers_of_1024() -> None:
    def side(held: int) -> list[Timed]:
        bench = {"fullname": "a", "stats": {"min": 1.0}, "extra_info": {"gate_resources": {MEMORY: held}}}
        return [summary_of({"benchmarks": [bench], "prooflops": {}}, None, ()).benchmarks["a"]] * 5  # type: ignore[arg-type]

    (row,) = rows = resource_rows({"a": (side(12_600), side(25_200))}, 0.05, 0.03)
    assert figures(row) == ["12.3 KiB", "24.6 KiB (+100.0%)"]
    assert counts(rows) == "1 MORE MEMORY"
    (row,) = resource_rows({"a": (side(0), side(25_200))}, 0.05, 0.03)
    assert figures(row) == ["0 B", "24.6 KiB"]
