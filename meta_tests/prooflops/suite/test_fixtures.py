"""The fixtures of claims and benchmarks follow the options, and the device under test, here a stand-in for an H200."""

import json
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import new_house, run_pytest_for_each

# Overrides the fixture `device` in one of two files, so that the others are seen to ask for that device.
WRITES_FIXTURES = """
import json, os
from types import SimpleNamespace
import pytest, torch
from prooflops.console.progress import Progress
from prooflops.machine import device as machine
{device}
def test_fixtures(device, job, pace, isa, peak_flop_per_s, bound_flop_per_s, bound_bytes_per_s, speed, progress):
    assert isinstance(progress, Progress)
    values = {{"device": str(device), "rank": job, "pace": pace, "isa": isa, "peak": peak_flop_per_s("bf16"),
              "bound": bound_flop_per_s("bf16"), "bytes_per_s": bound_bytes_per_s}}
    with open("values.json", "a") as file:
        file.write(json.dumps(values) + "\\n")
"""
H200 = """
@pytest.fixture(scope="session")
def device():
    facts = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132,
                            total_memory=150_754_820_096, uuid="0f0f0f0f-0000-0000-0000-000000000000")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: facts.name)
        patch.setattr(torch.cuda, "get_device_properties", lambda device=None: facts)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        patch.setattr(machine, "highest_clock_hz", lambda device: 2 * 1830e6)
        yield torch.device("cuda", 0)
"""
OPTIONS = {
    "quick": "--device cpu --quick",
    "default": "--device cpu",
    "thorough": "--device cpu --thorough --peak bf16=1e12",
}


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the fixtures gave on the CPU at each pace, and on the stand-in."""
    house = new_house(tmp_path_factory.mktemp("house"))
    house.test(WRITES_FIXTURES.format(device=""))
    house.test(WRITES_FIXTURES.format(device=H200), "bench/test_h200.py")
    lines = {pace: f"-p no:cacheprovider {line} test_claims" for pace, line in OPTIONS.items()}
    lines["h200"] = "-p no:cacheprovider --device cpu bench -o peak=bf16=1e12"
    done = run_pytest_for_each(house.root, lines.values())
    for line, run in done.items():
        assert run.code == 0, f"{line}: {run.output}"
    return dict(zip(lines, map(json.loads, Path(house.root, "values.json").read_text().splitlines()), strict=True))


@pytest.mark.parametrize("pace", OPTIONS)
def test_device_and_pace_are_those_of_the_options(values: dict[str, dict[str, Any]], pace: str) -> None:
    assert (values[pace]["device"], values[pace]["pace"], values[pace]["rank"]) == ("cpu", pace, None)


def test_a_cpu_has_no_peak_and_no_bandwidth_on_record(values: dict[str, dict[str, Any]]) -> None:
    assert (values["quick"]["peak"], values["quick"]["bytes_per_s"]) == (None, None)
    assert values["thorough"]["peak"] == 1e12, "that of --peak"


def test_peaks_and_bounds_are_those_of_the_device_under_test(values: dict[str, dict[str, Any]]) -> None:
    """The H200's datasheet: 1,979 TFLOP/s in bf16 with sparsity, 4.8 TB/s; the clock of the stand-in is doubled."""
    h200 = values["h200"]
    assert h200["device"] == "cuda:0"
    assert h200["peak"] == pytest.approx(1979e12 / 2)
    assert h200["bound"] == pytest.approx(1979e12)
    assert h200["bytes_per_s"] == pytest.approx(4.8e12)
    assert h200["isa"] != values["quick"]["isa"], "the features should be those of the GPU"
