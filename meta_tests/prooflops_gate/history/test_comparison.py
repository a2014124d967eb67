"""Two sides of records give the right rows, and nothing passes silently."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prooflops_gate.history import rows as tables
from prooflops_gate.history.comparison import NotComparable, compare, memory_rows
from prooflops_gate.history.records import Summary, Timed
from prooflops_gate.history.rows import Row, counts, interval

NAN = float("nan")
A, B = "bench/test_x.py::test_a", "bench/test_x.py::test_b"


def side(
    *processes: dict[str, Timed], device: str = "cpu-1", verdicts: dict[str, str] | None = None
) -> list[Summary]:
    return [
        Summary(
            Path(f"{device}-{index}.json"),
            str(index),
            device,
            device,
            "2.13.0",
            "",
            each,
            verdicts or {},
        )
        for index, each in enumerate(processes)
    ]


def timed(
    time_s: float = 1.0, method: int = 3, portable: dict[str, float] | None = None, **exact: Any
) -> Timed:
    return Timed(time_s, exact, portable or {}, method)


def processes(
    factor: float, count: int, noise: float = 0.01, seed: int = 0
) -> list[dict[str, Timed]]:
    draw = np.random.default_rng(seed)
    return [{A: timed(factor * float(np.exp(draw.normal(0, noise))))} for _ in range(count)]


def compared(
    before: list[Summary], after: list[Summary], **rest: Any
) -> dict[tuple[str, str], Row]:
    return {(row.name, row.quantity): row for row in compare(before, after, **rest)}


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.2, "SLOWER"), (1 / 1.2, "FASTER"), (1.0, "SAME")]
)
def test_enough_processes_decide(factor: float, verdict: str) -> None:
    row = compared(side(*processes(1.0, 12)), side(*processes(factor, 12, seed=1)))[A, "time"]
    assert row.verdict == verdict, f"{row}, but should be {verdict} [{factor=}]"
    assert row.effect is not None
    assert row.effect.low < factor < row.effect.high


def test_single_records_are_inconclusive_and_as_many_as_they_ask_for_can_decide() -> None:
    row = compared(side({A: timed(1.0)}), side({A: timed(1.5)}))[A, "time"]
    assert row.verdict == "INCONCLUSIVE"
    assert row.effect is not None
    assert interval(row.effect) == "one pair"
    asked = int(row.note.split("about ")[1].split()[0])
    again = compared(side(*processes(1.0, asked)), side(*processes(1.5, asked, seed=1)))[A, "time"]
    assert again.verdict == "SLOWER", (
        f"{asked} processes were said to decide a change of 50 %, but: {again}"
    )


def test_an_open_comparison_says_the_noise_and_how_many_processes_would_decide() -> None:
    row = compared(side(*processes(1.0, 12, 0.1)), side(*processes(1.06, 12, 0.1, seed=2)))[
        A, "time"
    ]
    assert row.verdict == "INCONCLUSIVE"
    assert row.note.startswith("noise "), row.note
    assert int(row.note.split("about ")[1].split()[0]) > 12


def test_another_method_of_measuring_is_not_compared() -> None:
    row = compared(
        side(*[{A: timed(1.0, method=3)}] * 12), side(*[{A: timed(2.0, method=4)}] * 12)
    )[A, "time"]
    assert (row.verdict, row.note) == ("INCONCLUSIVE", "the method of measuring changed (3 -> 4)")


def test_a_marker_sets_the_smallest_effect_of_its_benchmark() -> None:
    before, after = side(*processes(1.0, 12)), side(*processes(1.2, 12, seed=1))
    for each in after:
        vars(each.benchmarks[A])["settings"] = {"min_effect": 0.3}
    assert compared(before, after)[A, "time"].verdict != "SLOWER"


def test_a_noise_floor_covers_a_change_as_large() -> None:
    before, after = side(*processes(1.0, 12)), side(*processes(1.08, 12, seed=1))
    assert compared(before, after, floors={A: 0.01})[A, "time"].verdict == "SLOWER"
    row = compared(before, after, floors={A: 0.15})[A, "time"]
    assert row.verdict == "INCONCLUSIVE"
    assert "--gate-versus decides it" in row.note


def test_a_shift_that_all_benchmarks_share_is_the_machines() -> None:
    names = [f"{A}[{index}]" for index in range(6)]
    before = side(*({n: timed(t[A].time_s) for n in names} for t in processes(1.0, 12)))
    after = side(*({n: timed(t[A].time_s) for n in names} for t in processes(1.2, 12, seed=1)))
    assert {row.verdict for row in compare(before, after)} == {"INCONCLUSIVE"}


def test_contention_stands_beside_the_verdict() -> None:
    contended = Timed(1.0, {}, {}, 3, contended="other processes kept 1.00 cores busy")
    assert (
        "contended: other processes"
        in compared(side({A: timed()}), side({A: contended}))[A, "time"].note
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(24, 24, "SAME"), (24, 25, "CHANGED"), (24, None, "MISSING"), (None, 24, "NEW"), (1, True, "CHANGED"),
     (NAN, NAN, "SAME")],
)  # fmt: skip
def test_an_exact_quantity_is_compared_by_equality(
    before: object, after: object, verdict: str
) -> None:
    old, new = ({} if value is None else {"flops": value} for value in (before, after))
    row = compared(side({A: timed(**old)}), side({A: timed(**new)}))[A, "flops"]
    assert (row.verdict, row.before, row.after) == (verdict, before, after)


def test_a_quantity_that_differs_within_a_side_is_not_exact() -> None:
    old = side({A: timed(peak_bytes=1)}, {A: timed(peak_bytes=2)})
    row = compared(old, side({A: timed(peak_bytes=2)}))[A, "peak_bytes"]
    assert row.verdict == "SAME"
    assert "not an exact quantity" in row.note


def test_missing_and_new_benchmarks_are_named() -> None:
    found = compared(side({A: timed()}), side({B: timed()}))
    assert (found[A, "time"].verdict, found[B, "time"].verdict) == ("MISSING", "NEW")
    assert "renamed" in found[A, "time"].note


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [("holds", "FAILS", "CHANGED"), ("holds", "not checked", "INCONCLUSIVE"), ("not checked", "holds", "NEW"),
     ("not checked", "not checked", "SAME"), ("holds if", "corrected", "CHANGED")],
)  # fmt: skip
def test_a_claims_verdict_is_an_exact_quantity_unless_it_was_not_checked(
    before: str, after: str, verdict: str
) -> None:
    row = compared(side({}, verdicts={"x.a": before}), side({}, verdicts={"x.a": after}))[
        "x.a", "verdict"
    ]
    assert (row.before, row.after, row.verdict) == (before, after, verdict), row


def test_one_process_that_checked_a_claim_settles_it_for_its_side() -> None:
    old = side({}, verdicts={"x.a": "holds"})
    new = [
        *side({}, verdicts={"x.a": "not checked"}),
        *side({}, verdicts={"x.a": "holds"}),
        *side({}),
    ]
    assert compared(old, new)["x.a", "verdict"].verdict == "SAME"
    assert compared(old, side({})) == {}, "a run without claims says nothing about them"


def test_another_fingerprint_is_refused() -> None:
    with pytest.raises(NotComparable, match=r"cpu-1.*cpu-2.*--gate-portable"):
        compare(side({A: timed()}), side({A: timed()}, device="cpu-2"))
    with pytest.raises(ValueError, match="should hold records, but hold 0 and 1"):
        compare([], side({A: timed()}))


def test_between_machines_only_ratios_are_compared() -> None:
    fp32, bf16 = (f"bench/test_x.py::test_matmul[{dtype}-hot]" for dtype in ("fp32", "bf16"))
    old = [{fp32: timed(4.0, portable={"mfu": 0.5}, flops=8), bf16: timed(1.0)}] * 12
    new = [{fp32: timed(1.0, portable={"mfu": 0.25}, flops=8), bf16: timed(0.25)}] * 12
    found = compared(side(*old), side(*new, device="cpu-2"), portable=True)
    assert {key: row.verdict for key, row in found.items()} == {
        (fp32, "mfu"): "SLOWER",
        (bf16, "times as fast as fp32"): "SAME",
        (fp32, "flops"): "SAME",
    }
    assert found[bf16, "times as fast as fp32"].before == 4.0
    assert found[fp32, "mfu"].effect.ratio == pytest.approx(2)


def group(key: str, values: list[float]) -> list[Timed]:
    return [Timed(1.0, {}, {}, resources={key: value}) for value in values]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([12_600] * 5, [25_200] * 5, "MORE MEMORY"),
        ([25_200] * 5, [12_600] * 5, "LESS MEMORY"),
        ([12_600] * 5, [12_600] * 5, None),
        ([12_600] * 4, [25_200] * 8, None),  # too few processes to know that it is always so
        ([1000] * 8, [5095] * 8, None),  # 5 times as much, and less than 4 KiB more
        ([1_000_000] * 8, [1_049_999] * 8, None),  # 49 KB more, and less than 5 %
        ([*[10_000] * 4, 24_000], [24_000, *[90_000] * 4], None),  # both sides have had 24,000
    ],
)
def test_memory_is_reported_where_every_process_of_a_side_held_more(
    before: list[float], after: list[float], verdict: str | None
) -> None:
    found = memory_rows({"a": (group("memory", before), group("memory", after))}, 0.05)
    assert [row.verdict for row in found] == ([verdict] if verdict else [])


def test_the_table_leaves_out_equal_figures_and_counts_the_worst_verdict_first() -> None:
    found = compare(
        side({A: timed(0.002, flops=24, bytes=8)}), side({A: timed(0.003, flops=25, bytes=8)})
    )
    table = tables.table(found)
    assert [row[1] for row in table] == ["quantity", "time", "flops"]
    assert (table[1][2:5], table[2][2:4]) == (["2.00 ms", "3.00 ms", "1.500"], ["24", "25"])
    assert counts(found) == "1 CHANGED, 1 INCONCLUSIVE, 1 SAME"


def test_a_missing_benchmark_whose_test_skipped_itself_is_inconclusive() -> None:
    missing, other = (tables.one_sided(name, "time", 1, None) for name in "mo")
    found = tables.with_skips([missing, other], {"m": "later"})
    assert [(row.verdict, row.note) for row in found[:1]] == [
        ("INCONCLUSIVE", "skipped this time: later")
    ]
    assert found[1] == other
