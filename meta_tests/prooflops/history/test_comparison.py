"""Two sides of records give the right rows, and nothing passes silently."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prooflops.history.comparison import ComparisonRule, NotComparable, compare, time_rows
from prooflops.history.records import Summary, Timed
from prooflops.history.rows import Row, interval
from prooflops.statistics.decision_rule import Decision
from prooflops.statistics.plan import MIN_EFFECT, Plan, pairs_needed

NAN = float("nan")
A, B = "bench/test_x.py::test_a", "bench/test_x.py::test_b"


def side(*processes: dict[str, Timed], device: str = "cpu-1", verdicts: dict[str, str] | None = None) -> list[Summary]:
    return [
        Summary(Path(f"{device}-{index}.json"), str(index), device, device, "2.13.0", "", each, verdicts or {})
        for index, each in enumerate(processes)
    ]


def timed(time_s: float = 1.0, method: int = 3, portable: dict[str, float] | None = None, **exact: Any) -> Timed:
    return Timed(time_s, exact, portable or {}, method)


def processes(factor: float, count: int, noise: float = 0.01, seed: int = 0) -> list[dict[str, Timed]]:
    draw = np.random.default_rng(seed)
    return [{A: timed(factor * float(np.exp(draw.normal(0, noise))))} for _ in range(count)]


def rows(before: list[Summary], after: list[Summary], **rest: Any) -> dict[tuple[str, str], Row]:
    return {(row.name, row.quantity): row for row in compare(before, after, **rest)}


@pytest.mark.parametrize(("factor", "verdict"), [(1.2, "SLOWER"), (1 / 1.2, "FASTER"), (1.0, "SAME")])
def test_enough_processes_decide(factor: float, verdict: str) -> None:
    row = rows(side(*processes(1.0, 12)), side(*processes(factor, 12, seed=1)))[A, "time"]
    assert row.verdict == verdict, f"{row}, but should be {verdict} [{factor=}]"
    assert row.effect is not None
    assert row.effect.low < factor < row.effect.high
    assert row.effect.level == Plan(1, looks=(12,), directions=2, shared_baseline=True).level(0)


def test_single_records_are_inconclusive_and_say_what_would_decide() -> None:
    row = rows(side({A: timed(1.0)}), side({A: timed(1.5)}))[A, "time"]
    assert row.verdict == "INCONCLUSIVE"
    assert "replicates a side would decide" in row.note
    assert row.effect is not None
    assert interval(row.effect) == "unknown"


def test_as_many_processes_as_it_asks_for_can_decide() -> None:
    row = rows(side({A: timed(1.0)}), side({A: timed(1.5)}))[A, "time"]
    asked = int(row.note.split("about ")[1].split()[0])
    again = rows(side(*processes(1.0, asked)), side(*processes(1.5, asked, seed=1)))[A, "time"]
    assert again.verdict == "SLOWER", f"{asked} processes were said to decide a change of 50 %, but: {again}"


def test_an_open_comparison_says_what_is_suspected_the_noise_and_how_many_processes_would_decide() -> None:
    before, after = side(*processes(1.0, 12, 0.1)), side(*processes(1.06, 12, 0.1, seed=2))
    effect = rows(before, after)[A, "time"].effect
    assert effect is not None
    plan = Plan(1, looks=(12,), directions=2, shared_baseline=True)
    needed = pairs_needed(effect, plan, MIN_EFFECT)
    assert needed > 12
    decision = Decision("INCONCLUSIVE", 12, effect, suspicion="SLOWER")
    both = {A: ([each.benchmarks[A] for each in before], [each.benchmarks[A] for each in after])}
    (row,) = time_rows(both, ComparisonRule(plan), {A: decision})
    said = f"noise {effect.noise:.1%}; about {needed} replicates a side would decide (--gate-replicates {needed})"
    assert (row.note, rows(before, after)[A, "time"].note) == (f"suspected SLOWER, not confirmed; {said}", said)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (24, 24, "SAME"),
        (24, 25, "CHANGED"),
        (24, None, "MISSING"),
        (None, 24, "NEW"),
        (1, True, "CHANGED"),
        (NAN, NAN, "SAME"),
    ],
)
def test_an_exact_quantity_is_compared_by_equality(before: object, after: object, verdict: str) -> None:
    old, new = ({} if value is None else {"flops": value} for value in (before, after))
    row = rows(side({A: timed(**old)}), side({A: timed(**new)}))[A, "flops"]
    assert (row.verdict, row.before, row.after) == (verdict, before, after)


def test_an_exact_quantity_that_differs_between_runs_of_one_side_is_said_to_be_none() -> None:
    row = rows(side({A: timed(peak_bytes=1)}, {A: timed(peak_bytes=2)}), side({A: timed(peak_bytes=2)}))[
        A, "peak_bytes"
    ]
    assert row.verdict == "SAME"
    assert "not an exact quantity" in row.note


def test_what_vanished_and_what_is_new_are_named() -> None:
    found = rows(side({A: timed()}), side({B: timed()}))
    assert found[A, "time"].verdict == "MISSING"
    assert "renamed" in found[A, "time"].note
    assert found[B, "time"].verdict == "NEW"


def test_a_claims_verdict_is_an_exact_quantity() -> None:
    old, new = side({}, verdicts={"x.a": "holds", "x.b": "holds"}), side({}, verdicts={"x.a": "FAILS", "x.b": "holds"})
    found = rows(old, new)
    assert (found["x.a", "verdict"].before, found["x.a", "verdict"].after) == ("holds", "FAILS")
    assert [row.verdict for row in found.values()] == ["CHANGED", "SAME"]


def test_a_run_without_claims_says_nothing_of_them() -> None:
    assert rows(side({}, verdicts={"x.a": "holds"}), side({})) == {}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("holds", "not checked", "INCONCLUSIVE"),
        ("not checked", "holds", "NEW"),
        ("not checked", "not checked", "SAME"),
        ("holds if", "corrected", "CHANGED"),
    ],
)
def test_a_claim_that_was_not_checked_has_not_changed(before: str, after: str, verdict: str) -> None:
    found = rows(side({}, verdicts={"x.a": before}), side({}, verdicts={"x.a": after}))
    row = found["x.a", "verdict"]
    assert (row.before, row.after, row.verdict) == (before, after, verdict), row
    assert ("the run's report says why" in row.note) == (verdict == "INCONCLUSIVE"), row


def test_one_process_that_checked_a_claim_settles_it_for_its_side() -> None:
    old = side({}, verdicts={"x.a": "holds"})
    new = [*side({}, verdicts={"x.a": "not checked"}), *side({}, verdicts={"x.a": "holds"}), *side({})]
    assert rows(old, new)["x.a", "verdict"].verdict == "SAME"


def test_another_method_of_measuring_is_not_compared() -> None:
    row = rows(side(*[{A: timed(1.0, method=3)}] * 12), side(*[{A: timed(2.0, method=4)}] * 12))[A, "time"]
    assert row.verdict == "INCONCLUSIVE"
    assert "method of measuring changed (3 -> 4)" in row.note


def test_a_marker_sets_the_smallest_effect_of_its_benchmark() -> None:
    before, after = side(*processes(1.0, 12)), side(*processes(1.2, 12, seed=1))
    for each in after:
        vars(each.benchmarks[A])["settings"] = {"min_effect": 0.3}
    assert rows(before, after)[A, "time"].verdict != "SLOWER"


def test_a_noise_floor_covers_a_change_as_large() -> None:
    before, after = side(*processes(1.0, 12)), side(*processes(1.08, 12, seed=1))
    assert rows(before, after, floors={A: 0.01})[A, "time"].verdict == "SLOWER"
    row = rows(before, after, floors={A: 0.15})[A, "time"]
    assert row.verdict == "INCONCLUSIVE"
    assert "--gate-versus decides it" in row.note


def test_what_all_benchmarks_did_together_is_the_machine() -> None:
    names = [f"{A}[{index}]" for index in range(6)]
    before = side(*({n: timed(t[A].time_s) for n in names} for t in processes(1.0, 12)))
    after = side(*({n: timed(t[A].time_s) for n in names} for t in processes(1.2, 12, seed=1)))
    assert {row.verdict for row in compare(before, after)} == {"INCONCLUSIVE"}


def test_contention_stands_beside_the_verdict() -> None:
    contended = Timed(1.0, {}, {}, 3, contended="other processes kept 1.00 cores busy")
    assert "contended: other processes" in rows(side({A: timed()}), side({A: contended}))[A, "time"].note


def test_another_fingerprint_is_refused() -> None:
    with pytest.raises(NotComparable, match=r"cpu-1.*cpu-2.*--gate-portable"):
        compare(side({A: timed()}), side({A: timed()}, device="cpu-2"))


def test_between_machines_ratios_alone_are_compared() -> None:
    fp32, bf16 = (f"bench/test_x.py::test_matmul[{dtype}-hot]" for dtype in ("fp32", "bf16"))
    old = [{fp32: timed(4.0, portable={"mfu": 0.5}, flops=8), bf16: timed(1.0)}] * 12
    new = [{fp32: timed(1.0, portable={"mfu": 0.25}, flops=8), bf16: timed(0.25)}] * 12
    found = rows(side(*old), side(*new, device="cpu-2"), portable=True)
    assert {key: row.verdict for key, row in found.items()} == {
        (fp32, "mfu"): "SLOWER",
        (bf16, "times as fast as fp32"): "SAME",
        (fp32, "flops"): "SAME",
    }
    assert found[bf16, "times as fast as fp32"].before == 4.0
    assert (found[fp32, "mfu"].before, found[fp32, "mfu"].after) == (0.5, 0.25)
    assert found[fp32, "mfu"].effect.ratio == pytest.approx(2)


@pytest.mark.parametrize("dtype", ["fp64", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_a_speed_up_over_fp32_is_that_of_a_name_with_one_dtype(dtype: str) -> None:
    name, twin, other = (f"bench/test_x.py::test_a[{each}]" for each in (f"{dtype}-int", "fp32-int", f"{dtype}-fp32"))
    both = side({name: timed(1.0), twin: timed(4.0), other: timed(2.0)})
    found = rows(both, side({name: timed(2.0), twin: timed(4.0), other: timed(2.0)}, device="cpu-2"), portable=True)
    assert [(key[0], row.before, row.after) for key, row in found.items()] == [(name, 4.0, 2.0)]


def test_the_newest_hundred_records_a_side_are_compared() -> None:
    before, after = side(*processes(1.0, 101)), side(*processes(1.0, 102, seed=1))
    vars(before[0].benchmarks[A])["time_s"] = vars(after[0].benchmarks[A])["time_s"] = 1e6
    effect = rows(before, after)[A, "time"].effect
    assert effect is not None
    assert (effect.pairs, len(effect._differences), effect._differences[-1] < 1) == (100, 10_000, True)


def test_an_empty_side_is_refused() -> None:
    with pytest.raises(ValueError, match="should hold records, but hold 0 and 1"):
        compare([], side({A: timed()}))
