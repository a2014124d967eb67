"""Floors are decided on values; a few simulated cards show the way from a slow one to its cause."""

import json
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from accounting.devices.floors import floor_of
from accounting.roofline import Work
from bench import delivery
from bench.delivery import BelowFloor, Delivery
from bench.products import product
from bench.streams import Arrays
from bench.transfers import transfer
from meta_tests.card.api import simulated
from meta_tests.card.card import Card
from prooflops import timing
from prooflops.machine import health
from prooflops.machine.conditions import conditions
from prooflops.precision import Float32Products
from prooflops.suite.floors import Floors, committed_floors, reference_floors, stated_floors
from prooflops.suite.peaks import Peaks

CUDA = torch.device("cuda", 0)
H100 = "H100 SXM5 80GB"
H100_BF16_FLOP_PER_S = 989.4e12
NOTHING = MappingProxyType({})

# Each row is a figure of an H100, its value, the share at the actual clock, and whether it
# suffices.
DECIDED = [
    ("bf16", 0.58, None, False),
    # The clock is high and the kernel slow. By the rate alone the card would pass.
    ("bf16", 0.7, 0.7, False),
    ("fp16", 0.7, 0.8, True),
    ("to-device", 27e9, None, False),
    ("to-host", 48e9, None, True),
    ("launch", 20e-6, None, False),
    ("launch", 8e-6, None, True),
]


@pytest.mark.parametrize(("figure", "value", "at_clock", "is_enough"), DECIDED)
def test_a_figure_reaches_its_floor_or_falls_short(figure, value, at_clock, is_enough):
    assert floor_of(H100, figure).is_met(value, at_clock) == is_enough


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setattr(delivery, "PAUSE_S", {"quick": 0.0})
    monkeypatch.setattr(delivery, "AGAIN_S", 0.0)
    with simulated(Card(memory_bytes=2**31)) as kernels:
        kernels.card.only_timed = True
        yield kernels.card


def row_of(device, floors, info, **options):
    return Delivery(
        device,
        floors,
        "a test",
        info,
        pace="quick",
        conditions=partial(nullcontext, NOTHING),
        causes=lambda *_: ["heat"],
        **options,
    )


def delivered(share, *stated, seen=NOTHING, reference=NOTHING, figure="", at_clock=None, **ceiling):
    """What a row with this share of the peak in bf16 records, measured under `seen` conditions."""
    amount = share * H100_BF16_FLOP_PER_S
    info = {"conditions": seen, "share_at_clock": at_clock, "flop_per_s": amount}
    row = row_of(CUDA, Floors(CUDA, Peaks(CUDA), stated_floors(stated), reference), info)
    if figure:
        row.check(figure, amount, "FLOP/s", None, seconds=1.0, dtype="bf16", **ceiling)
    else:
        row.product("bf16", SimpleNamespace(work=Work(amount, 0), multiply=None))
    return info["delivers"]


def test_a_step_is_compared_with_the_best_product_of_the_run(card):
    of_step = partial(
        delivered, figure="mfu transformer", ceiling=lambda: 0.5 * H100_BF16_FLOP_PER_S
    )
    assert of_step(0.06)["share"] == pytest.approx(0.12)
    with pytest.raises(BelowFloor, match="8 % of the best product's rate"):
        of_step(0.04)


def test_a_figure_below_its_floor_is_red_and_an_option_goes_first(card):
    assert delivered(0.7)["met"]
    with pytest.raises(BelowFloor, match=r"bf16 .*, 60 % .*at least 63 %.*possible cause: heat"):
        delivered(0.6)
    assert delivered(0.6, "bf16=0.3")["met"]
    with pytest.raises(BelowFloor, match="at least 95 % of the dense peak; from --floor"):
        delivered(0.7, "bf16=0.95")


def test_beside_another_process_a_low_figure_is_not_checked(card):
    beside_another = {"other_processes": 1}
    found = delivered(0.4, seen=beside_another)
    assert (found["met"], found["unknown"]) == (None, "another process uses this GPU")
    assert delivered(0.7, seen=beside_another)["met"], "an idle process slows nothing"


def timed(device, seconds, conditions, *, floor=("launch=10e-6",), **options):
    """What a row of a launch that takes so long records."""
    floors = Floors(device, Peaks(device), stated_floors(floor))
    row = row_of(device, floors, {"conditions": conditions}, **options)
    row.check("launch", 0.0, "s", None, seconds=seconds)
    return row.info.get("delivers")


@pytest.mark.parametrize(
    ("device", "busy"), [(CUDA, "other_processes"), (torch.device("cpu"), "contended")]
)
def test_other_work_may_have_lengthened_a_time_so_far(card, device, busy):
    seen = {busy: True, "slowed_at_most": 2.0}
    found = timed(device, 18e-6, seen)
    assert (found["met"], found["most"]) == (None, pytest.approx(9e-6))
    for seconds, read in ((22e-6, seen), (18e-6, {"slowed_at_most": 2.0})):
        with pytest.raises(BelowFloor, match="possible cause: heat"):
            timed(device, seconds, read)
    assert timed(device, 1.0, {}, active=False) is None, "the gate compares times alone"


def test_a_launch_of_a_cpu_has_no_floor_unless_one_is_stated(card):
    assert timed(torch.device("cpu"), 1.0, {}, floor=())["unknown"]


def test_contention_explains_no_more_than_it_took(card):
    slowed = {"other_processes": 1, "slowed_at_most": 1.2}
    found = delivered(0.6, seen=slowed)
    assert (found["met"], found["most_share"]) == (None, pytest.approx(0.72))
    assert found["most"] == pytest.approx(0.72 * H100_BF16_FLOP_PER_S)
    assert delivered(0.7, seen=slowed, at_clock=0.7)["met"] is None
    with pytest.raises(BelowFloor, match="60 % of the dense peak"):
        delivered(0.6, seen=slowed | {"slowed_at_most": 1.02})


def test_without_a_peak_a_figure_is_not_compared_and_a_stated_floor_stays_on_record(card):
    card.name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert delivered(0.7)["unknown"] == "the dense peak of this device is not on record"
    found = delivered(0.7, "bf16=0.9")
    assert (found["floor"]["limit"], "met" in found) == (0.9, False)


def measured(figure):
    """A call, its FLOPs or bytes, and their unit."""
    if figure == "copy":
        stream = Arrays(2**24, CUDA).stream(figure)
        return stream.run, stream.work.bytes, "B/s"
    if figure in ("to-device", "to-host"):
        case = transfer(figure, 2**23, CUDA, pinned=True, blocking=False)
        return case.run, case.work.bytes, "B/s"
    if figure == "launch":
        return torch.zeros(1, device=CUDA).neg_, 0.0, "s"
    case = product(figure, 4096, 4096, 4096, CUDA)
    return case.multiply, case.work.flops, "FLOP/s"


def deliver(figure, slower_at_first=1.0):
    """Measures a figure on the card as the benchmarks do, and asserts its floor."""
    info = {}
    row = Delivery(
        CUDA,
        Floors(CUDA, Peaks(CUDA)),
        figure,
        info,
        pace="quick",
        conditions=partial(conditions, CUDA),
        causes=partial(health.causes, CUDA),
    )
    function, amount, unit = measured(figure)
    dtype = figure if unit == "FLOP/s" else ""
    with conditions(CUDA) as info["conditions"], Float32Products(dtype):
        seconds = timing.time(function, CUDA, warmup=2, rounds=9).median_s
    row.check(figure, amount, unit, function, seconds=seconds * slower_at_first, dtype=dtype)
    return info["delivers"]


# Each row is a figure, the rate that is lowered and its factor, NVML's readings, and the cause.
SLOWED = [
    ("to-device", "to-device", 0.5, {"width": 8}, "PCI Express lanes 8 of 16"),
    ("to-host", "to-host", 0.25, {"generation": 3}, "PCI Express generation 3 of 5"),
    ("tf32", "clock", 0.5, {}, "clock 915 of 1980 MHz"),
    (
        "bf16",
        "clock",
        0.7,
        {"power_limit": 400_000, "reasons": 0x4},
        "throttled: power limit 400 W, by default 700 W",
    ),
    ("bf16", "clock", 0.7, {"reasons": 0x4}, "power-limited: 1.28 of 1.98 GHz"),
    (
        "copy",
        "memory",
        0.5,
        {"errors": 3, "rows_to_remap": 1},
        "3 uncorrected memory errors, memory rows wait to be remapped",
    ),
]


@pytest.mark.parametrize(("figure", "rate", "share", "readings", "cause"), SLOWED)
def test_a_slow_card_is_red_and_names_the_cause(card, figure, rate, share, readings, cause):
    card.rates.lower(rate, share)
    card.readings |= readings
    with pytest.raises(BelowFloor, match=f"BELOW FLOOR: {figure} .*{cause}"):
        deliver(figure)


@pytest.mark.parametrize("figure", ["bf16", "launch"])
def test_a_figure_that_falls_short_once_is_measured_again(card, figure):
    assert not deliver(figure)["again"]
    found = deliver(figure, slower_at_first=10.0)
    assert (found["met"], found["again"]) == (True, True)


def test_the_better_of_two_measurements_counts_at_the_clock_that_ran(card):
    card.rates.lower("clock", 0.95)
    found = deliver("bf16", slower_at_first=3.0)
    assert found["share_at_clock"] == pytest.approx(found["share"] / 0.95, rel=1e-3)
    card.rates.lower("clock", 0.5)
    first = found["share"] * 0.5 / 0.9
    with pytest.raises(BelowFloor, match=f"{first:.0%}".replace("%", " %")):
        deliver("bf16", slower_at_first=0.9)


BENCHMARK = {
    "fullname": "a test",
    "stats": {"median": 1.0, "iqr": 0.01},
    "extra_info": {"delivers": {"figure": "bf16", "value": 8e14, "unit": "FLOP/s"}},
}
EVIDENCE = [
    {"event": "plan", "fingerprint": {"name": "NVIDIA H100 80GB HBM3", "device": "cuda"}},
    {"event": "end", "benchmarks": [BENCHMARK]},
]
FORMS = {
    "record.json": json.dumps({"benchmarks": [BENCHMARK]}),
    "evidence.jsonl": "\n".join(map(json.dumps, EVIDENCE)),
}


@pytest.mark.parametrize(("name", "text"), FORMS.items())
def test_a_healthy_machines_record_is_the_floor_of_the_next(card, tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    floors = reference_floors(file)
    assert floors["a test"].limit == pytest.approx(8e14 * (1 - 0.01 - 0.05))
    assert delivered(0.8, reference=floors)["met"]
    with pytest.raises(BelowFloor, match=f"expected at least 752 TFLOP/s; from {file.stem}"):
        delivered(0.7, reference=floors)


def test_committed_evidence_leaves_room_for_another_card_of_the_kind(card, tmp_path):
    (tmp_path / "record.json").write_text(FORMS["record.json"])
    assert not committed_floors(tmp_path, CUDA)
    newest = FORMS["evidence.jsonl"]
    (tmp_path / "a-2026-11-02.jsonl").write_text(newest)
    (tmp_path / "b-2026-10-03.jsonl").write_text(newest.replace("a test", "an old test"))
    ((figure, floor),) = committed_floors(tmp_path, CUDA).items()
    assert (figure, floor.limit) == ("a test", pytest.approx(8e14 * (1 - 0.01 - 0.1)))
