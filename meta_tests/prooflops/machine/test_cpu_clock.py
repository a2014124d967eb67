"""The clock that a core runs at, against another chain and the system's own word."""

import mmap
from time import perf_counter

import pytest
import torch

from accounting.devices import cpu_flops_per_cycle
from accounting.devices.floors import floor_of
from prooflops.machine import cpu_clock
from prooflops.machine import device as machine
from prooflops.machine.conditions import conditions
from prooflops.suite.floors import Floors
from prooflops.suite.peaks import Peaks
from prooflops_gate.machine import cpu

CPU = torch.device("cpu")
# Products of this side are so short that some of many are not interrupted.
SIDE = 192


def test_the_chain_agrees_with_the_system_where_that_names_the_clock():
    file = cpu.SYSTEM / f"cpu{min(cpu.allowed_cores())}" / "cpufreq" / "scaling_cur_freq"
    if not cpu.text(file).isdigit():
        pytest.skip("the system names no running clock, as in a virtual machine")
    measured_hz = cpu_clock.clock_hz()
    assert measured_hz == pytest.approx(1e3 * int(cpu.text(file)), rel=0.02)


def test_a_core_with_avx512_has_units_that_products_stay_below():
    capabilities = machine.cpu_capabilities()
    if not capabilities.get("avx512_f"):
        pytest.skip("this CPU has no AVX-512")
    units = cpu_clock.fma_units_512()
    a = torch.randn(SIDE, SIDE)
    b = torch.randn(SIDE, SIDE)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fastest_s = float("inf")
        for _ in range(1000):
            began = perf_counter()
            torch.mm(a, b)
            fastest_s = min(fastest_s, perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    per_cycle = 2 * SIDE**3 / fastest_s / cpu_clock.clock_hz()
    most = cpu_flops_per_cycle(capabilities, units)["fp32"]
    assert 0.4 * most < per_cycle < 1.05 * most


def test_the_share_of_a_row_on_a_cpu_is_that_of_the_clock_that_ran():
    with conditions(CPU) as record:
        pass
    clock_mhz = record["during"]["clock_mhz"]
    peak = machine.flop_per_s_at_clock(CPU, "fp32", clock_mhz * 1e6)
    nominal = Floors(CPU, Peaks(CPU)).nominal("peak", "fp32")
    if peak is None:
        pytest.skip("the FLOPs per cycle of this CPU are not on record")
    assert nominal == pytest.approx(peak, rel=0.2)


def test_what_is_missing_for_a_peak_is_named(monkeypatch):
    floors = Floors(CPU, Peaks(CPU))
    floor = floor_of(None, "fp32", "cpu")
    assert "FLOPs per clock in fp16" in floors.why_unknown(floor, "fp16")

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    cpu_clock._chain.cache_clear()
    monkeypatch.setattr(mmap, "mmap", refused)
    try:
        assert floors.nominal("peak", "fp32") is None
        found = floors.why_unknown(floor, "fp32")
        with conditions(CPU) as record:
            pass
    finally:
        cpu_clock._chain.cache_clear()
    assert found.startswith("the clock of this CPU is not known: executable memory is refused")
    assert record["during"]["unread"].startswith("clock: executable memory is refused")
