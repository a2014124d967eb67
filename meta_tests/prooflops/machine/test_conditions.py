"""Recorded files of Linux and a recorded driver of NVIDIA are read, labelled, and missing without an error."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prooflops.machine import cpu, nvml
from prooflops.machine import device as devices
from prooflops.machine.caches import Caches, caches_of
from prooflops.machine.conditions import conditions, label_conditions, state

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
QUIET: dict[str, Any] = {"contended": False, "why": ""}

# ---- the host ----------------------------------------------------------------------------------------------------

CORE = {
    "cpufreq/scaling_governor": "powersave",
    "cpufreq/scaling_cur_freq": "3000000",
    "cpufreq/cpuinfo_max_freq": "5100000",
    "thermal_throttle/core_throttle_count": "5",
}
CACHES = (("1", "Data", "own", "48K"), ("1", "Instruction", "own", "32K"), ("2", "Unified", "own", "1024K"),
          ("3", "Unified", "pair", "32768K"))  # fmt: skip


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a Linux host of four cores, two of which share each last-level cache."""
    files = {
        "cpuinfo": "processor\t: 0\nmodel name\t: A CPU with 3: or so\ncpu MHz\t: 2596.1\nflags\t\t: fpu avx2\n"
        "processor\t: 1\ncpu MHz\t: 2000.1\n",
        "meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n",
        "cgroup/cpu.stat": "usage_usec 17\nnr_throttled 2\nthrottled_usec 4200\n",
        "cgroup/memory.max": "max",
        "cgroup/memory.stat": "anon 1000000\nfile 7\n",
    }
    for core in range(4):
        files |= {f"cpu/cpu{core}/{name}": text for name, text in CORE.items()}
        for index, (level, kind, sharing, size) in enumerate(CACHES):
            shared = str(core) if sharing == "own" else ("0-1", "2-3")[core // 2]
            for name, text in {"level": level, "type": kind, "shared_cpu_list": shared, "size": size}.items():
                files[f"cpu/cpu{core}/cache/index{index}/{name}"] = text
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    for constant, name in {"CPUINFO": "cpuinfo", "MEMINFO": "meminfo", "CGROUP": "cgroup", "SYSTEM": "cpu"}.items():
        monkeypatch.setattr(cpu, constant, tmp_path / name)
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [0, 1, 2, 3])
    return tmp_path


def test_a_host_is_read_from_its_files(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (cpu.name(), cpu.info("flags"), cpu.info("flag")) == ("A CPU with 3: or so", "fpu avx2", "")
    assert state(CPU) == {
        "threads": torch.get_num_threads(), "affinity": "0-3", "governor": "powersave", "clock_mhz": 3000.0,
        "totals": {"temperature": 20, "quota of the container": 4200},
    }  # fmt: skip
    (host / "cgroup/cpu.stat").write_text("throttled_usec 0\n")
    assert state(CPU)["totals"]["quota of the container"] == 0, "from 0 on it may grow"
    assert devices.highest_clock_hz(CPU) == 5.1e9
    assert cpu.free_bytes() == 4000 * 1024
    (host / "cgroup/memory.max").write_text("3000000\n")
    assert cpu.free_bytes() == 2_000_000, "a container's limit, less the memory it holds"
    for core in range(4):
        (host / f"cpu/cpu{core}/cpufreq/scaling_cur_freq").unlink()
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [1])
    assert state(CPU)["clock_mhz"] == 2000.1, "the nominal clock of the allowed core"


def test_a_shared_cache_counts_once_and_one_per_group_of_cores_is_summed(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = caches_of(CPU)
    assert found.levels == {"L1": 4 * 48 * 2**10, "L2": 4 * 2**20, "L3": 2 * 2**25}
    assert found.core_levels == {"L1": 48 * 2**10, "L2": 2**20, "L3": 2**25}
    assert (found.cores, found.last_level_bytes) == (4, 2**26)
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [1])
    assert caches_of(CPU).levels == found.core_levels
    (host / "cpu/cpu1/cache/index3/size").write_text("much")
    assert caches_of(CPU).levels == {"L1": 48 * 2**10, "L2": 2**20}


@pytest.mark.parametrize(("size", "levels"), [(50 * 2**20, {"L2": 50 * 2**20}), (0, {})])
def test_a_gpu_has_the_cache_that_torch_names(
    monkeypatch: pytest.MonkeyPatch, size: int, levels: dict[str, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=size))
    assert caches_of(GPU).levels == caches_of(GPU).core_levels == levels
    assert caches_of(torch.device("mps")).levels == {}


def test_nothing_is_guessed_if_nothing_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "text", lambda file: "")
    found = state(CPU)
    assert (found["governor"], found["clock_mhz"], found["totals"]) == (None, None, {})
    assert (caches_of(CPU).levels, Caches().last_level_bytes, devices.highest_clock_hz(CPU)) == ({}, None, None)
    assert cpu.free_bytes() == cpu.memory_bytes()
    assert cpu.name(), "Python's own name of the machine"


# ---- labels ------------------------------------------------------------------------------------------------------

HOT = {"totals": {"temperature": 3}}


@pytest.mark.parametrize(
    ("before", "after", "contention", "labels"),
    [
        ({"reasons": ["idle", "application clocks"], **HOT, "processes": 1}, HOT, QUIET, []),
        ({}, HOT, QUIET, []),  # no total was read before
        ({}, {"reasons": ["power cap"]}, QUIET, ["throttled: power cap"]),
        ({"reasons": ["power brake"]}, {"reasons": ["idle"]}, QUIET, ["throttled: power brake"]),
        (HOT, {"totals": {"temperature": 4}}, QUIET, ["throttled: temperature"]),
        ({"processes": 1}, {"processes": 3}, {"contended": True, "why": "steal 12 %"},
         ["contended: steal 12 %, 2 other processes on the GPU"]),
    ],
)  # fmt: skip
def test_a_measurement_is_labelled_with_the_reason(
    before: dict[str, Any], after: dict[str, Any], contention: dict[str, Any], labels: list[str]
) -> None:
    found = label_conditions(before, after, contention)
    assert found["labels"] == labels
    assert found["throttled"] == any("throttled" in label for label in labels)
    assert found["contended"] == any("contended" in label for label in labels)


# ---- GPUs --------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The error of the recorded driver."""


def refused(*_: object) -> None:
    raise Refused


def answer(known: dict[Any, Any]) -> Any:
    """A function of the driver that refuses all but these arguments."""
    return lambda *arguments: known[arguments] if arguments in known else refused()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A driver with an H100, slowed by its power cap more and more, and a slice of it; it has no thermal account."""
    slowed_ns = iter(range(100))
    library = SimpleNamespace(
        NVMLError=Refused, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, NVML_PERF_POLICY_POWER=0,
        NVML_PERF_POLICY_THERMAL=1, starts=0,
        nvmlSystemGetDriverVersion=lambda: "570.86.15",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=answer({(0,): "card"}),
        nvmlDeviceGetHandleByUUID=answer({("GPU-7f",): "card", ("MIG-51",): "slice"}),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=answer({("slice",): "card"}),
        nvmlDeviceGetName=answer({("card",): "NVIDIA H100"}),
        nvmlDeviceGetClockInfo=answer({("card", 1): 1410, ("card", 2): 2619}),
        nvmlDeviceGetMaxClockInfo=answer({("card", 1): 1980}),
        nvmlDeviceGetPowerUsage=answer({("card",): 698_500}),
        nvmlDeviceGetEnforcedPowerLimit=answer({("card",): 700_000}),
        nvmlDeviceGetTemperature=refused,
        nvmlDeviceGetCurrentClocksEventReasons=answer({("card",): 0x1}),
        nvmlDeviceGetComputeRunningProcesses=answer({("card",): [4711], ("slice",): []}),
        nvmlDeviceGetViolationStatus=lambda handle, policy: (
            refused() if policy else SimpleNamespace(violationTime=next(slowed_ns))
        ),
    )  # fmt: skip

    def start() -> None:
        library.starts += 1

    library.nvmlInit = start
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7f"))
    monkeypatch.setattr(torch.version, "hip", None)
    nvml.library.cache_clear()
    yield library
    nvml.library.cache_clear()


def test_the_state_of_a_gpu_is_its_drivers_and_nvml_is_started_once(driver: Any) -> None:
    found = state(GPU)
    assert (found["clock_mhz"], found["memory_clock_mhz"], found["power_w"]) == (1410, 2619, 698.5)
    assert (found["power_limit_w"], found["reasons"], found["processes"]) == (700.0, ["idle"], 1)
    assert "temperature_c" not in found
    assert "temperature (driver)" not in found["totals"]
    assert found["threads"], "the host's state belongs to it"
    assert (devices.driver(GPU), nvml.gpu_names()) == ("570.86.15", ["NVIDIA H100"])
    assert devices.highest_clock_hz(GPU) == 1980e6
    assert driver.starts == 1


def test_a_slice_has_its_own_processes_and_the_clocks_of_its_card(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="51"))
    found = state(GPU)
    assert (found["clock_mhz"], found["processes"]) == (1410, 0)
    assert devices.highest_clock_hz(GPU) == 1980e6


def test_an_older_driver_gives_its_reasons_by_their_older_name(driver: Any) -> None:
    driver.nvmlDeviceGetCurrentClocksThrottleReasons = answer({("card",): 0x4})
    driver.nvmlDeviceGetCurrentClocksEventReasons = refused  # nvidia-ml-py has it all the same
    assert state(GPU)["reasons"] == ["power cap"]


@pytest.mark.usefixtures("driver")
def test_a_gpu_that_its_power_cap_slows_is_labelled() -> None:
    with conditions(GPU) as record:
        assert "after" not in record
    assert (record["throttled"], record["labels"][0]) == (True, "throttled: power cap")


@pytest.mark.usefixtures("driver")
def test_a_gpu_that_the_driver_does_not_know_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    assert "knows no device" in state(GPU)["unread"]
    assert devices.highest_clock_hz(GPU) is None
    assert nvml.ask(lambda library: library.nvmlOfANewerVersion()) is None


@pytest.mark.parametrize("broken", ["absent", "another package", "no driver"])
def test_a_gpu_without_a_driver_is_no_error(driver: Any, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    driver.nvmlInit = refused
    modules = {"absent": None, "another package": object(), "no driver": driver}
    monkeypatch.setitem(sys.modules, "pynvml", modules[broken])  # type: ignore[arg-type]
    with conditions(GPU) as record:
        pass
    assert (record["before"]["unread"], record["throttled"]) == ("no NVML", False)
    assert (nvml.driver_version(), nvml.gpu_names(), nvml.handle("7f")) == (None, [], None)
    assert devices.driver(GPU) is None
    assert devices.highest_clock_hz(GPU) is None


def test_an_amd_gpu_gives_watts_and_leaves_out_refused_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below torch's own calls, so that a torch that scales amdsmi's figures is noticed."""
    driver = SimpleNamespace(
        AmdSmiClkType=SimpleNamespace(GFX=0),
        AmdSmiTemperatureType=SimpleNamespace(JUNCTION=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        amdsmi_get_power_info=lambda handle: {"average_socket_power": 742},
        amdsmi_get_clock_info=refused,
        amdsmi_get_temp_metric=lambda handle, sensor, metric: 61,
    )
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "_get_amdsmi_handler", lambda device: "0000:05:00.0")
    monkeypatch.setattr(torch.cuda, "amdsmi", driver, raising=False)
    found = state(GPU)
    assert (found["power_w"], found["temperature_c"]) == (742, 61)
    assert found["clock_mhz"] is None, "the clock of the host is none of the GPU's"
    assert "reasons" not in found, "an empty list would mean that nothing throttles"
    assert found["unread"] == "reasons: torch does not ask amdsmi for them"
