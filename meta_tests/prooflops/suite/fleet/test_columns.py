"""Columns are titled by what differs; rates, prices and times stand side by side."""

from dataclasses import replace

import pytest

from meta_tests.prooflops.suite.fleet.simulated import SPREADS, runs
from prooflops.suite.fleet.columns import columns, differing_claims, rates, times, validated_prices
from prooflops.suite.fleet.nodes import NodeRun


def run(torch: str, rate: float, verdict: str, time_s: float = 1.0, iqr_s: float = 0.01) -> NodeRun:
    bench = {
        "name": "test_matmul",
        "fullname": "bench/t.py::test_matmul",
        "stats": {"median": time_s, "iqr": iqr_s},
        "extra_info": {"dtype": "bf16", "flop_per_s": rate, "mfu": 0.5},
    }
    ours = {"fingerprint": {"name": "NVIDIA H100", "torch": torch}, "verdicts": [{"id": "a.b", "verdict": verdict}]}
    return NodeRun.of({"benchmarks": [bench], "prooflops": ours}, "")


TWO = [run("2.12", 1e12, "holds"), run("2.13", 2e12, "FAILS", time_s=0.5)]


def test_two_versions_are_two_columns_with_their_claims_rates_and_times() -> None:
    shown = columns(TWO)
    assert [column.title for column in shown] == ["torch 2.12", "torch 2.13"]
    assert differing_claims(shown) == [["a.b", "holds", "FAILS"]]
    prices = validated_prices(["h100=3.6"], ["NVIDIA H100"])
    assert rates(shown, prices) == [
        ["bf16, best rate", "1.00 TFLOP/s", "2.00 TFLOP/s"],
        ["bf16, of the vendor's peak", "50.0%", "50.0%"],
        ["bf16, USD per 10^18 FLOPs", "1e+03", "500"],
    ]
    assert times(shown) == [["matmul", "1.00 s", "0.50x"]]


def test_a_difference_within_the_spread_is_marked() -> None:
    noisy = [run("2.12", 1e12, "holds"), run("2.13", 1e12, "holds", time_s=1.1, iqr_s=0.2)]
    assert times(columns(noisy)) == [["matmul", "1.00 s", "~ 1.10x"]]
    assert differing_claims(columns(noisy)) == []


def test_a_rate_whose_spread_is_too_wide_is_no_machines_best() -> None:
    wide = run("2.13", 9e12, "holds", iqr_s=0.5)
    assert rates(columns([run("2.12", 1e12, "holds"), wide]), {})[0] == ["bf16, best rate", "1.00 TFLOP/s", "-"]


def test_many_machines_are_put_together_by_kind_and_software() -> None:
    made = runs(10, 0, 0.0, 0, SPREADS[0], again=False)
    made = [replace(each, software={"torch": "2.12" if i % 2 else "2.13"}) for i, each in enumerate(made)]
    made[0] = replace(made[0], verdicts={"a.b": "FAILS"})
    made[2] = replace(made[2], verdicts={"a.b": "holds"})
    shown = columns(made)
    assert [column.title for column in shown] == ["torch 2.13", "torch 2.12"]
    assert [len(column.runs) for column in shown] == [5, 5]
    assert differing_claims(shown) == [["a.b", "FAILS ×1, holds ×1", "-"]]


@pytest.mark.parametrize("given", ["H100", "H100=", "H100=-1", "=2", "B200=2", "NVIDIA=2"])
def test_a_price_of_no_device_or_of_several_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="devices here: NVIDIA H100, NVIDIA A100"):
        validated_prices([given], ["NVIDIA H100", "NVIDIA A100"])
