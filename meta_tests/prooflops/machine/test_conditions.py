"""The state of the device around a measurement, by stand-ins."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prooflops.machine import conditions as states
from prooflops.machine import cpu, nvml
from prooflops.machine.conditions import conditions, label_conditions, state

QUIET: dict[str, Any] = {"contended": False, "why": ""}
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_state_of_a_cpu_names_threads_cores_governor_and_clock() -> None:
    found = state(CPU)
    assert found["threads"] == torch.get_num_threads()
    assert found["affinity"], "no core is named"
    assert found.keys() >= {"governor", "clock_mhz", "totals"}


def system_files(root: Path) -> Path:
    for core, (clock, hot) in enumerate(((3000000, 5), (2000000, 7))):
        for name, text in (
            ("cpufreq/scaling_governor", "powersave"),
            ("cpufreq/scaling_cur_freq", str(clock)),
            ("thermal_throttle/core_throttle_count", str(hot)),
        ):
            file = root / f"cpu{core}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
    (root / "cpu.stat").write_text("usage_usec 17\nnr_throttled 2\nthrottled_usec 4200\n")
    (root / "cpuinfo").write_text("processor\t: 0\ncpu MHz\t\t: 2596.1\nprocessor\t: 1\ncpu MHz\t\t: 2000.1\n")
    return root


def test_what_the_system_tells_of_its_cores_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = system_files(tmp_path)
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [0, 1])
    found = states._cpu_state(root, root / "cpuinfo", root / "cpu.stat")
    assert (found["affinity"], found["governor"], found["clock_mhz"]) == ("0-1", "powersave", 2500.0)
    assert found["totals"] == {"temperature": 12, "quota of the container": 4200}
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [1])
    bare = states._cpu_state(root / "none", root / "cpuinfo", root)
    assert bare["clock_mhz"] == 2000.1, "the clock of another core than the allowed one"
    assert bare["totals"] == {}


def test_a_quiet_measurement_has_no_label() -> None:
    moment = {"reasons": ["idle", "application clocks"], "totals": {"temperature": 3}, "processes": 1}
    assert label_conditions(moment, moment, QUIET) == {"throttled": False, "contended": False, "labels": []}


def test_a_total_that_was_not_read_before_says_nothing() -> None:
    assert not label_conditions({}, {"totals": {"temperature": 12}}, QUIET)["throttled"]


@pytest.mark.parametrize(
    ("before", "after", "label"),
    [
        ({}, {"reasons": ["power cap"]}, "throttled: power cap"),
        ({"reasons": ["temperature (hardware)"]}, {"reasons": ["idle"]}, "throttled: temperature (hardware)"),
        ({"totals": {"temperature": 3}}, {"totals": {"temperature": 4}}, "throttled: temperature"),
        ({"totals": {"quota": 0}}, {"totals": {"quota": 9}}, "throttled: quota"),
    ],
)
def test_a_throttled_measurement_is_labelled_with_the_reason(
    before: dict[str, Any], after: dict[str, Any], label: str
) -> None:
    found = label_conditions(before, after, QUIET)
    assert (found["throttled"], found["labels"]) == (True, [label])


def test_a_contended_measurement_is_labelled_with_what_was_seen() -> None:
    found = label_conditions({"processes": 1}, {"processes": 3}, {"contended": True, "why": "steal 12 %"})
    labels = ["contended: steal 12 %, 2 other processes on the GPU"]
    assert (found["contended"], found["labels"]) == (True, labels)


def test_the_contention_of_a_block_is_in_its_record_and_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"load": 9.0, "steal": 0.3, "contended": True, "why": "the hypervisor took 30% of the machine's time"}
    monkeypatch.setattr(states, "Watch", lambda: SimpleNamespace(stop=lambda: seen))
    with conditions(CPU) as record:
        pass
    assert record["contention"] == seen
    assert record["contended"]
    assert "contended: the hypervisor took 30% of the machine's time" in record["labels"]


class Refused(Exception):
    """What the drivers of these tests raise."""


def refused(*_: object) -> None:
    raise Refused


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 that is slowed by its power cap more and more, and has no thermal account."""
    slowed_ns: list[int] = []

    def violation(handle: str, policy: int) -> SimpleNamespace:
        if policy:
            raise Refused
        slowed_ns.append(len(slowed_ns) + 1)
        return SimpleNamespace(violationTime=slowed_ns[-1])

    driver = SimpleNamespace(
        NVMLError=Refused, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0,
        NVML_PERF_POLICY_POWER=0, NVML_PERF_POLICY_THERMAL=1,
        nvmlDeviceGetHandleByUUID={"GPU-7f": "7f"}.__getitem__,
        nvmlDeviceGetClockInfo=lambda handle, which: {1: 1410, 2: 2619}[which],
        nvmlDeviceGetPowerUsage=lambda handle: 698_500,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetTemperature=refused,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x4 if len(slowed_ns) > 1 else 0x1,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [4711],
        nvmlDeviceGetViolationStatus=violation,
    )  # fmt: skip
    monkeypatch.setattr(nvml, "library", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7f"))
    monkeypatch.setattr(torch.version, "hip", None)


@pytest.mark.usefixtures("h100")
def test_the_state_of_a_gpu_is_what_its_driver_tells() -> None:
    found = state(GPU)
    assert (found["clock_mhz"], found["memory_clock_mhz"]) == (1410, 2619)
    assert (found["power_w"], found["power_limit_w"]) == (698.5, 700.0)
    assert found["reasons"] == ["idle"]
    assert found["totals"]["power cap"] == 1
    assert "temperature_c" not in found, "what the driver refuses is left out"
    assert found["threads"], "the host's state belongs to it"


@pytest.mark.usefixtures("h100")
def test_an_older_driver_gives_its_reasons_by_their_older_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml.library()
    monkeypatch.setattr(driver, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda handle: 0x4, raising=False)
    monkeypatch.setattr(driver, "nvmlDeviceGetCurrentClocksEventReasons", refused)  # nvidia-ml-py has it all the same
    assert state(GPU)["reasons"] == ["power cap"]


@pytest.mark.usefixtures("h100")
def test_the_clock_of_a_slice_is_that_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml.library()
    monkeypatch.setattr(driver, "nvmlDeviceGetHandleByUUID", {"MIG-7f": "slice"}.__getitem__)
    monkeypatch.setattr(driver, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", {"slice": "7f"}.get, raising=False)
    monkeypatch.setattr(driver, "nvmlDeviceGetClockInfo", lambda handle, which: {"7f": 1410}[handle])
    monkeypatch.setattr(driver, "NVMLError", Exception)
    assert state(GPU)["clock_mhz"] == 1410


@pytest.mark.usefixtures("h100")
def test_a_gpu_that_its_power_cap_slows_is_labelled_once() -> None:
    with conditions(GPU) as record:
        assert "after" not in record
    assert record["throttled"]
    assert record["labels"][0] == "throttled: power cap", f"{record['labels']}"


def test_a_gpu_without_a_driver_that_tells_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "library", lambda: None)
    monkeypatch.setattr(torch.version, "hip", None)
    with conditions(GPU) as record:
        pass
    assert record["before"]["unread"] == "no NVML"
    assert not record["throttled"]


@pytest.fixture
def mi300x(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MI300X: watts, as amdsmi gives them, and not NVML's milliwatts.

    Below torch's own calls, so that a torch that scales what amdsmi gives is noticed.
    """
    driver = SimpleNamespace(
        AmdSmiClkType=SimpleNamespace(GFX=0),
        AmdSmiTemperatureType=SimpleNamespace(JUNCTION=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        amdsmi_get_power_info=lambda handle: {"average_socket_power": 742},
        amdsmi_get_clock_info=lambda handle, which: {"clk": 2100},
        amdsmi_get_temp_metric=lambda handle, sensor, metric: 61,
    )
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "_get_amdsmi_handler", lambda device: "0000:05:00.0")
    monkeypatch.setattr(torch.cuda, "amdsmi", driver, raising=False)


@pytest.mark.usefixtures("mi300x")
def test_the_power_of_a_gpu_by_amdsmi_is_in_watts() -> None:
    found = state(GPU)
    assert found["power_w"] == 742, f"amdsmi says 742 W, the record has {found['power_w']}"
    assert (found["clock_mhz"], found["temperature_c"]) == (2100, 61)


@pytest.mark.usefixtures("mi300x")
def test_what_amdsmi_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class AmdSmiException(Exception):
        pass

    def refused(device: object) -> int:
        raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(torch.cuda, "clock_rate", refused)
    found = state(GPU)
    assert found["clock_mhz"] is None, "the clock of the host is none of the GPU's"
    assert found["power_w"] == 742


@pytest.mark.usefixtures("mi300x")
def test_reasons_that_nobody_asked_for_are_unread_and_not_none() -> None:
    with conditions(GPU) as record:
        pass
    before = record["before"]
    assert "reasons" not in before, f"an empty list would mean that nothing throttles: {before['reasons']}"
    assert before["unread"] == "reasons: torch does not ask amdsmi for them"
    assert not record["throttled"]


def test_the_cores_that_are_named_are_those_allowed() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no affinity")
    named = state(CPU)["affinity"]
    assert named == states.ranges(sorted(os.sched_getaffinity(0)))
