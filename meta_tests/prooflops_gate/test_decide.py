"""What made-up replicates decide."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops_gate.annotate import passing_open
from prooflops_gate.decide import (
    EXCLUDING,
    OPEN,
    ReplicateRule,
    SieveRule,
    fails,
    look_at,
    replicate_plan,
)
from prooflops_gate.history.records import Timed
from prooflops_gate.history.rows import Row
from prooflops_gate.options import settings
from prooflops_gate.statistics.decision_rule import LOOKS
from prooflops_gate.statistics.effects import paired
from prooflops_gate.wording import sentence


def timed(time_s: float) -> Timed:
    return Timed(time_s, {}, {})


@pytest.mark.parametrize(
    ("verdict", "direction", "allowed", "stops"),
    [
        ("SLOWER", "slower", 0.1, True), ("SLOWER", "faster", 0.1, False), ("FASTER", "both", 0.1, True),
        ("FASTER", "slower", 0.1, False), ("MISSING", "slower", 0.1, True), ("CHANGED", "slower", 0.1, True),
        ("INCONCLUSIVE", "slower", 0.1, True), ("INCONCLUSIVE", "slower", math.inf, False),
        ("NEW", "both", math.inf, False), ("MORE MEMORY", "slower", 0.1, True), ("LESS MEMORY", "slower", 0.1, False),
        ("MORE INSTRUCTIONS", "slower", 0.1, False),
    ],
)  # fmt: skip
def test_what_stops_the_gate(verdict: str, direction: str, allowed: float, stops: bool) -> None:
    row = Row("a", "time", 1.0, 2.0, verdict)
    assert fails(row, direction, allowed) is stops
    assert not (verdict == "MORE MEMORY" and fails(row, direction, allowed, guards_memory=False))
    skipped = Row("a", "time", 1.0, None, "INCONCLUSIVE", note="skipped this time: later")
    assert not fails(skipped, direction, allowed)
    assert not fails(
        Row("a.claim", "verdict", "holds", "not checked", "INCONCLUSIVE"), direction, allowed
    )


@pytest.mark.parametrize(
    ("ratios", "direction", "allowed", "stops"),
    [
        ([1.0, 1.08], "slower", 0.1, False), ([1.0, 1.08], "slower", 0.05, True), ([1.0, 1.08], "slower", 0.0, True),
        ([1.0, 1.2], "slower", 0.1, True), ([1.0, 0.8], "slower", 0.1, False), ([1.0, 0.8], "faster", 0.1, True),
        ([1.0, 0.8], "both", 0.1, True), ([0.95, 1.05], "both", 0.1, False),
    ],
)  # fmt: skip
def test_an_open_benchmark_passes_where_a_change_larger_than_allowed_is_excluded(
    ratios: list[float], direction: str, allowed: float, stops: bool
) -> None:
    effect = paired([1.0] * 8, ratios * 4, level=0.01)
    assert fails(Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", effect), direction, allowed) is stops
    three = paired([1.0] * 3, [1.0, 1.01, 1.0], level=0.01)  # no bound that is sure enough
    assert fails(Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", three), direction, allowed)


@pytest.mark.parametrize(
    ("stored", "ratio", "verdict"),
    [
        (16, 1.0, "SAME"),
        (16, 1.05, "INCONCLUSIVE"),
        (16, 0.9, "INCONCLUSIVE"),
        (2, 1.0, "INCONCLUSIVE"),
    ],
)
def test_the_sieve_calls_the_same_same_and_leaves_all_else_to_pairs(
    stored: int, ratio: float, verdict: str
) -> None:
    rule = SieveRule(replicate_plan(1, paired=False), paired=False)
    both: Any = {"a": ([timed(1 + i % 3 / 1000) for i in range(stored)], [])}
    while look_at(both, rule)[1]:
        both["a"][1].append(timed(ratio))
    ((row,), _) = look_at(both, rule)
    assert row.verdict == verdict, row
    assert len(both["a"][1]) == (LOOKS[0] if stored > 2 else 1), (
        "it takes one look, and none that cannot say SAME"
    )


@pytest.mark.parametrize(
    ("undecided", "ratios", "warning", "line"),
    [
        (
            "pass",
            [1.2, 1.0],
            "2 undecided, of which 1 could hide a slowdown of 10%; gate_undecided = fail makes",
            "",
        ),
        ("pass", [1.05, 1.0], "", "2 INCONCLUSIVE passed: more than 10% is excluded"),
        ("fail", [1.2, 1.0], "", "1 INCONCLUSIVE passed: more than 10% is excluded"),
        ("fail", [1.2, 1.2], "", ""),
    ],
)
def test_what_is_open_and_passes_is_warned_of_where_it_could_hide_a_slowdown(
    tmp_path: Path, undecided: str, ratios: list[float], warning: str, line: str
) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ngate_undecided = {undecided}\n")
    given = settings(config_in(tmp_path, "-p", "prooflops_gate.plugin"))
    rows = [
        Row(
            str(number),
            "time",
            1.0,
            1.0,
            "INCONCLUSIVE",
            paired([1.0] * 8, [1.0, ratio] * 4, level=0.01),
        )
        for number, ratio in enumerate(ratios)
    ]
    rows.append(Row("decided", "time", 1.0, 1.0, "SAME"))
    found = passing_open(rows, given, lambda row, allowed: fails(row, "slower", allowed))
    for text, start in zip(found, (warning, line), strict=True):
        assert text.startswith(start)
        assert bool(text) is bool(start), text


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("ratio", [1.0, 1.489, 100.0])
def test_one_pair_yields_no_verdict(most: int | None, ratio: float) -> None:
    rule = ReplicateRule(replicate_plan(1, most=most), most=most)
    (row,), _ = look_at({"a": ([timed(1.0)], [timed(ratio)])}, rule)
    assert row.verdict == "INCONCLUSIVE"
    assert "one pair excludes nothing" in row.note
    assert "(one pair)" in sentence(row)


@pytest.mark.parametrize(
    ("slowdown", "least", "most"), [(1.0, 0.95, 1.0), (1.1, 0.0, (1 + len(EXCLUDING)) * 0.0125)]
)
def test_more_pairs_of_an_undecided_benchmark_exclude_a_tenth_where_there_is_none_and_rarely_where_there_is(
    slowdown: float, least: float, most: float
) -> None:
    rng, rule, runs = np.random.default_rng(7), ReplicateRule(replicate_plan(20)), 60
    excluded = 0
    for _ in range(runs):
        before, after = (
            [timed(speed * time) for time in rng.lognormal(0, 0.2, 324)]
            for speed in (1.0, slowdown)
        )
        wanted = {"a": rule.plan.looks[0]}
        while wanted:
            pairs = wanted["a"]
            (row,), wanted = look_at({"a": (before[:pairs], after[:pairs])}, rule)
        assert row.verdict in ("INCONCLUSIVE", "SLOWER" if slowdown > 1 else ""), "at 28 % of noise"
        excluded += row.verdict == "INCONCLUSIVE" and not fails(row, "slower", OPEN)
    assert least <= excluded / runs <= most


def test_more_pairs_are_taken_only_where_those_that_fit_could_exclude_a_tenth() -> None:
    spread = [timed(1.5 ** math.sin(number)) for number in range(32)]
    both, rule = {"a": ([timed(1.0)] * 32, spread)}, ReplicateRule(replicate_plan(20))
    assert look_at(both, rule)[1] == {"a": EXCLUDING[0]}
    assert look_at(both, rule, fitting=100)[1] == {"a": EXCLUDING[0]}
    (row,), wanted = look_at(both, rule, fitting=10)
    assert not wanted
    assert (row.verdict, fails(row, "slower", OPEN)) == ("INCONCLUSIVE", True)
    assert not look_at(both, ReplicateRule(replicate_plan(20, most=50), most=50))[1], (
        "--gate-replicates bounds them"
    )
