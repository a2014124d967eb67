"""Files of Linux and a driver of NVIDIA are read, labelled, and missing without an error."""

import math
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from meta_tests.card.api import simulated
from meta_tests.card.card import Card
from prooflops.machine import device as devices
from prooflops.machine.conditions import conditions, label_conditions, state
from prooflops.machine.sampling import PERIOD_S, Sampler
from prooflops_gate.machine import cpu, nvml
from prooflops_gate.machine.core_speed import EVERY_S

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
QUIET = {"contended": False, "why": ""}


CORE = {
    "cpufreq/scaling_governor": "powersave",
    "cpufreq/scaling_cur_freq": "3000000",
    "cpufreq/cpuinfo_max_freq": "5100000",
    "thermal_throttle/core_throttle_count": "5",
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The files of a Linux host of four cores."""
    files = {
        "cpuinfo": "processor\t: 0\nmodel name\t: A CPU with 3: or so\ncpu MHz\t: "
        "2596.1\nflags\t\t: fpu avx2\n"
        "processor\t: 1\ncpu MHz\t: 2000.1\n",
    }
    for core in range(4):
        files |= {f"cpu/cpu{core}/{name}": text for name, text in CORE.items()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    for constant, name in {"CPUINFO": "cpuinfo", "SYSTEM": "cpu"}.items():
        monkeypatch.setattr(cpu, constant, tmp_path / name)
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [0, 1, 2, 3])
    return tmp_path


def test_a_host_is_read_from_its_files(host, monkeypatch):
    assert cpu.name() == "A CPU with 3: or so"
    assert cpu.info("flags") == "fpu avx2"
    assert cpu.info("flag") == ""
    assert state(CPU) == {
        "threads": torch.get_num_threads(),
        "affinity": "0-3",
        "governor": "powersave",
        "clock_mhz": 3000.0,
        "totals": {"temperature": 20},
    }
    assert devices.highest_clock_hz(CPU) == 5.1e9
    for core in range(4):
        (host / f"cpu/cpu{core}/cpufreq/scaling_cur_freq").unlink()
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [1])
    assert state(CPU)["clock_mhz"] == 2000.1, "the nominal clock of the allowed core"


HOT = {"totals": {"temperature": 3}}
# Rows of a healthy H200 at its default limit, and what a driver says of unhealthy ones.
CARD = {"highest_clock_mhz": 1980, "power_limit_w": 700.0, "default_power_w": 700.0}
LOWERED = CARD | {"power_limit_w": 400.0}
CAPPED = {"reasons": ["power cap"]}
SLOWED = {"clock_mhz": 1490.0, "reasons": ["power cap"]}


@pytest.mark.parametrize(
    ("before", "during", "after", "labels"),
    [
        ({"reasons": ["idle", "application clocks"], **HOT, "processes": 1}, {}, HOT, []),
        # No total was read before.
        ({}, {}, HOT, []),
        (HOT, {}, {"totals": {"temperature": 4}}, ["throttled: temperature"]),
        (CARD, SLOWED | {"reasons": ["power brake"]}, {}, ["throttled: power brake"]),
        (CARD, {"clock_mhz": 1950.0, "reasons": ["power brake"]}, {}, []),
        (LOWERED, SLOWED, {}, ["throttled: power limit 400 W, by default 700 W"]),
        (CARD, SLOWED, {}, []),
        ({"processes": 1}, {}, {"processes": 3}, ["contended: another process uses this GPU (2)"]),
    ],
)
def test_a_measurement_is_labelled_with_the_reason(before, during, after, labels):
    seen = {"before": before, "during": during, "after": after, "contention": QUIET}
    found = label_conditions(seen)
    assert found["labels"] == labels
    assert found["throttled"] == any("throttled" in label for label in labels)
    assert found["contended"] == any("contended" in label for label in labels)


@pytest.mark.parametrize(
    ("before", "during", "after", "facts"),
    [
        (CARD, SLOWED, {}, ["power-limited: 1.49 of 1.98 GHz"]),
        # A launch-bound product under a cap that takes nothing from it.
        (CARD, {"clock_mhz": 1965.0, "reasons": ["power cap"]}, {}, []),
        (LOWERED, {"clock_mhz": 1965.0}, {}, ["power limit 400 W, by default 700 W"]),
        # A record of two states, without samples.
        (
            CARD | CAPPED | {"clock_mhz": 1485},
            {},
            {"clock_mhz": 1665},
            ["power-limited: 1.57 of 1.98 GHz"],
        ),
    ],
)
def test_work_at_the_default_power_limit_is_a_fact_and_no_label(before, during, after, facts):
    found = label_conditions({"before": before, "during": during, "after": after})
    assert found["facts"] == facts
    assert not found["throttled"]


def test_other_work_on_the_host_is_named_beside_that_on_the_card():
    busy = {"contended": True, "why": "steal 12 %"}
    found = label_conditions({"before": {"processes": 3}, "contention": busy})
    assert found["labels"] == ["contended: steal 12 %, another process uses this GPU (2)"]
    assert found["other_processes"] == 2


def test_a_core_is_looked_at_between_rounds_alone():
    with conditions(CPU) as seen:
        for _ in range(3):
            time.sleep(2 * EVERY_S)
            seen.before_round()
    assert 0 < seen.core.stretch_s < math.inf
    assert not seen.core.waited_s
    with simulated(Card()), conditions(GPU) as seen:
        seen.before_round()


def test_a_card_is_sampled_during_the_rounds_and_not_in_its_warm_up():
    card = {"clock_mhz": 1980, "reasons": []}
    sampler = Sampler(lambda: dict(card))
    sampler.start()
    time.sleep(3 * PERIOD_S)
    card["clock_mhz"] = 1500
    sampler.restart()
    time.sleep(3 * PERIOD_S)
    found = sampler.stop()
    assert found["samples"] >= 2
    assert found["clock_mhz"] == 1500


def test_the_state_of_a_gpu_is_that_of_its_driver():
    with simulated(Card()) as kernels:
        found = state(kernels.card.device)
        assert devices.driver(GPU) == "580.00 (simulated)"
        assert devices.highest_clock_hz(GPU) == 1980e6
    assert found["clock_mhz"] == 1830
    assert found["power_limit_w"] == 700.0
    assert found["temperature_c"] == 50
    assert found["reasons"] == []
    assert found["processes"] == 1
    assert found["threads"], "the host's state belongs to it"


@pytest.fixture(params=[None, object()], ids=["absent", "another package"])
def without_nvml(request, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", request.param)
    properties = SimpleNamespace(uuid="7f")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    nvml.library.cache_clear()
    yield
    nvml.library.cache_clear()


@pytest.mark.usefixtures("without_nvml")
def test_a_gpu_without_a_driver_is_no_error():
    with conditions(GPU) as record:
        pass
    assert record["before"]["unread"] == "no NVML"
    assert not record["throttled"]
    assert nvml.driver_version() is None
    assert nvml.gpu_names() == []
    assert devices.driver(GPU) is None
    assert devices.highest_clock_hz(GPU) is None
