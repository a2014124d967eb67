"""The floors of a card: degraded simulated cards fail and name the cause; healthy ones pass."""

from __future__ import annotations

import json
import random
import re
from functools import partial
from types import MappingProxyType

import pytest
import torch

from bench import delivery
from bench.delivery import BelowFloor, Delivery
from bench.products import Float32Products, product
from bench.rates import share_of_units
from bench.streams import Arrays
from bench.transfers import transfer
from meta_tests.card.api import simulated
from meta_tests.card.card import Card
from meta_tests.conftest import ROOT, run_pytest_for_each
from prooflops import timing
from prooflops.machine import health
from prooflops.machine.conditions import conditions
from prooflops.suite.floors import Floors, committed_floors, reference_floors, stated_floors
from prooflops.suite.peaks import Peaks

CUDA = torch.device("cuda", 0)
PRODUCTS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "int8")
STREAMS = ("copy", "scale", "add", "triad", "sum", "dot")
LINKS = ("to-device", "to-host")
SIDE = 4096
# The share of the nominal clock that runs at the power limit: 1.70 of an H100's 1.83 GHz.
CLOCK_AT_THE_LIMIT = 0.93


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(delivery, "PAUSE_S", {"quick": 0.0})
    monkeypatch.setattr(delivery, "AGAIN_S", 0.0)


def workload(figure):
    """FLOPs or bytes of a call, their unit, the call, and its dtype."""
    if figure in PRODUCTS:
        case = product(figure, SIDE, SIDE, SIDE, CUDA)
        return case.work.flops, "FLOP/s", case.multiply, figure
    if figure in STREAMS:
        stream = Arrays(2**24, CUDA).stream(figure)
        return stream.work.bytes, "B/s", stream.run, ""
    if figure in LINKS:
        case = transfer(figure, 2**23, CUDA, pinned=True, blocking=False)
        return case.work.bytes, "B/s", case.run, ""
    x = torch.rand(1, device=CUDA)
    return 0, "s", partial(torch.add, x, x, out=torch.empty_like(x)), ""


def check(
    card,
    figure,
    stated=(),
    reference=MappingProxyType({}),
):
    """Measures a figure on a card as the benchmarks do, asserts its floor; returns its record."""
    with simulated(card):
        card.only_timed = True
        info = {}
        floors = Floors(CUDA, Peaks(CUDA), stated_floors(stated), reference)
        asked = Delivery(
            CUDA,
            floors,
            figure,
            info,
            pace="quick",
            conditions=partial(conditions, CUDA),
            causes=partial(health.causes, CUDA),
        )
        amount, unit, function, dtype = workload(figure)
        with conditions(CUDA) as seen, Float32Products(dtype):
            seconds = timing.time(function, CUDA, warmup=2, rounds=9).median_s
        if dtype:
            clock_mhz = seen["during"]["clock_mhz"]
            units = floors.at_clock(dtype, clock_mhz * 1e6)
            info |= share_of_units(amount / seconds, clock_mhz, units)
        asked.check(figure, amount, unit, function, seconds=seconds, dtype=dtype)
    return dict(info["delivers"])


def power_limited(card):
    """The card with the same rates at a lower clock, as a healthy one runs at its power limit."""
    rates = card.rates
    rates.clock = CLOCK_AT_THE_LIMIT
    rates.memory_bytes_per_s /= CLOCK_AT_THE_LIMIT
    for dtype in rates.flop_per_s:
        rates.flop_per_s[dtype] /= CLOCK_AT_THE_LIMIT
    return card


def degraded(shares, readings):
    card = Card(memory_bytes=2**31)
    if "clock" not in shares:
        power_limited(card)
    for name, share in shares.items():
        card.rates.lower(name, share)
    card.readings |= readings
    return card


# In place of a message: the margin allows the degradation, and the card passes.
WITHIN = ""
# The figure, the factor of each rate that is lowered, NVML's readings, and the message's pattern.
DEGRADATIONS = [
    ("fp32", {"fp32": 0.1}, {}, "BELOW FLOOR: fp32 .* % of the dense peak"),
    ("int8", {"int8": 0.5}, {}, "BELOW FLOOR"),
    # The simulated card does 80 % of its peak: 0.725 of these are 58 %.
    ("bf16", {"bf16": 0.725}, {}, "5[78] % of the dense peak, .*expected at least 63 %"),
    # The clock is high and the kernel slow: by the rate alone the card would pass.
    ("bf16", {"bf16": 0.875, "clock": 1.08}, {}, "(69|70) % at the clock that ran, expected"),
    ("fp16", {"fp16": 0.9}, {}, WITHIN),
    ("bf16", {"clock": 0.92}, {}, WITHIN),
    ("copy", {"memory": 0.8}, {}, "BELOW FLOOR: copy .* expected at least 82 % of the bandwidth"),
    ("triad", {"memory": 0.85}, {}, WITHIN),
    ("to-device", {"to-device": 0.5}, {"width": 8}, "PCI Express lanes 8 of 16"),
    ("to-host", {"to-host": 0.25}, {"generation": 3}, "PCI Express generation 3 of 5"),
    ("to-host", {"to-host": 0.96}, {}, WITHIN),
    ("tf32", {"clock": 0.5}, {}, "clock 915 of 1980 MHz"),
    (
        "bf16",
        {"clock": 0.7},
        {"power_limit": 400_000, "reasons": 0x4},
        "throttled: power limit 400 W, by default 700 W",
    ),
    (
        "bf16",
        {"clock": 0.6},
        {"temperature": 92, "reasons": 0x40},
        "temperature .hardware.*temperature 92 °C",
    ),
    ("bf16", {"clock": 0.7}, {"reasons": 0x4}, "power-limited: 1.28 of 1.98 GHz"),
    (
        "copy",
        {"memory": 0.5},
        {"errors": 3, "rows_to_remap": 1},
        "3 uncorrected memory errors, memory rows wait",
    ),
    ("launch", {"launch": 0.2}, {}, "BELOW FLOOR: launch .* expected at most 15 µs"),
    ("launch", {"launch": 0.5}, {}, WITHIN),
]


@pytest.mark.parametrize(
    ("figure", "shares", "readings", "saying"), DEGRADATIONS, ids=lambda part: str(part)[:40]
)
def test_a_degraded_card_is_red_and_names_the_cause(figure, shares, readings, saying):
    card = degraded(shares, readings)
    if not saying:
        assert check(card, figure)["met"]
        return
    with pytest.raises(BelowFloor) as red:
        check(card, figure)
    message = str(red.value)
    assert re.search(saying, message), message
    assert message.startswith(f"BELOW FLOOR: {figure} "), message
    if not readings and "clock" not in shares:
        no_cause = message.endswith("this machine shows: no cause")
        assert no_cause or "contended" in message, message


# The share of its dense peak that a healthy card does in products.
HEALTHY = {
    "H100 SXM5 80GB": 0.79,
    "H200 SXM 141GB": 0.79,
    "A100 SXM4 80GB": 0.85,
    "B200": 0.77,
    "RTX 4090": 0.9,
    "L4": 0.55,
}


def healthy_cards(number):
    """Cards of a fleet, warm and cold, with a spread of 3 %; and a figure to measure on each."""
    drawn = random.Random(20261125)
    for each in range(number):
        label = drawn.choice(list(HEALTHY))
        card = power_limited(Card(label, memory_bytes=2**31))
        spread = max(0.94, min(drawn.gauss(1.0, 0.015), 1.06))
        cold = drawn.choice([1.0, 1.03])
        # The simulated card does 80 % of its peak by default.
        share = HEALTHY[label] / 0.8 * spread * cold
        for rate in card.rates.flop_per_s:
            card.rates.flop_per_s[rate] *= share
        memory_spread = max(0.97, min(drawn.gauss(0.99, 0.01), 1.01))
        card.rates.lower("memory", memory_spread)
        card.rates.lower("launch", drawn.uniform(0.5, 1.0))
        figures = ["fp32", "bf16", "fp16", *STREAMS, "launch"]
        yield card, figures[each % len(figures)]


@pytest.mark.parametrize("cards", [20, pytest.param(200, marks=pytest.mark.prove)])
def test_no_card_of_many_healthy_ones_is_red(cards):
    for card, figure in healthy_cards(cards):
        assert check(card, figure)["met"] is not False, (card.label, figure)


def test_beside_another_process_a_low_figure_is_not_checked():
    found = check(degraded({"bf16": 0.5}, {"processes": 2}), "bf16")
    assert (found["met"], found["unknown"]) == (None, "another process uses this GPU")
    healthy = check(degraded({}, {"processes": 2}), "bf16")
    assert healthy["met"], "an idle process takes nothing"


def test_an_unknown_peak_is_not_checked_and_an_option_goes_first():
    card = Card(memory_bytes=2**31)
    card.name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert check(card, "bf16")["unknown"] == "the dense peak of this device is not on record"
    with pytest.raises(BelowFloor, match=r"expected at least 95 % of the dense peak; of --floor"):
        check(Card(memory_bytes=2**31), "bf16", ("bf16=0.95",))
    assert check(degraded({"bf16": 0.5}, {}), "bf16", ("bf16=0.3",))["met"]


H200 = next((ROOT / "results").glob("NVIDIA-H200-*.jsonl"))


IMPOSSIBLE = {
    "--floor=bf17=0.7": "the figure must be one of bf16, fp16",
    "--floor=bf16": "must be above 0 and at most 1",
    "--reference=missing.json": "must be a run record or a file of make evidence: No such file",
    "--reference=pyproject.toml": "--reference pyproject.toml must be a run record",
    f"--reference={H200} --device=cpu": (
        "is the record of a NVIDIA H200 (cuda), and this device is a "
    ),
}


def test_impossible_floors_are_refused_before_anything_runs():
    lines = [f"-p no:cacheprovider bench/test_launch.py {options}" for options in IMPOSSIBLE]
    runs = run_pytest_for_each(ROOT, lines).values()
    for run, saying in zip(runs, IMPOSSIBLE.values(), strict=True):
        assert run.code == 4
        assert saying in run.output


@pytest.mark.parametrize("form", ["record.json", "evidence.jsonl"])
def test_a_healthy_machines_record_is_the_floor_of_the_next(tmp_path, form):
    bench = {
        "fullname": "bf16",
        "stats": {"median": 1.0, "iqr": 0.01},
        "extra_info": {"delivers": {"figure": "bf16", "value": 8e14, "unit": "FLOP/s"}},
    }
    rows = [
        {"event": "plan", "fingerprint": {"name": "NVIDIA H100 80GB HBM3", "device": "cuda"}},
        {"event": "end", "benchmarks": [bench]},
    ]
    texts = {
        "record.json": json.dumps({"benchmarks": [bench]}),
        "evidence.jsonl": "\n".join(map(json.dumps, rows)),
    }
    (tmp_path / form).write_text(texts[form])
    floors = reference_floors(tmp_path / form)
    assert floors["bf16"].limit == pytest.approx(8e14 * (1 - 0.01 - 0.05))
    assert check(Card(memory_bytes=2**31), "bf16", reference=floors)["met"]
    stem = form.partition(".")[0]
    with pytest.raises(BelowFloor, match=f"expected at least 752 TFLOP/s; of {stem}"):
        check(degraded({"bf16": 0.9}, {}), "bf16", reference=floors)
    with simulated(Card(memory_bytes=2**31)):
        committed = committed_floors(tmp_path, CUDA)
    if form == "evidence.jsonl":
        # Two cards of a kind differ by more than one card does from itself.
        assert committed["bf16"].limit == pytest.approx(8e14 * (1 - 0.01 - 0.1))
    else:
        assert not committed
