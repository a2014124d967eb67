"""A CPU whose name tells nothing is known by the numbers that its cores state."""

import pytest
import torch

from accounting.devices import cpus
from prooflops.machine import device, processor
from prooflops.suite.page.page import headline
from prooflops.suite.page.run_report import RunReport
from prooflops_gate.machine import cpu

# The numbers of /proc/cpuinfo, and what they mean.
STATED = {
    "GenuineIntel 6 143 8": "Sapphire Rapids",
    "GenuineIntel 6 207 2": "Emerald Rapids",
    "GenuineIntel 6 106 6": "Ice Lake",
    "GenuineIntel 6 85 4": "Skylake",
    "GenuineIntel 6 85 7": "Cascade Lake",
    "GenuineIntel 6 85 11": "Cooper Lake",
    "AuthenticAMD 23 49 0": "Zen 2 (Rome)",
    "AuthenticAMD 25 1 1": "Zen 3 (Milan)",
    "AuthenticAMD 25 17 1": "Zen 4 (Genoa)",
    "AuthenticAMD 26 2 1": "Zen 5 (Turin)",
    "AuthenticAMD 25 1 unknown": "Zen 3 (Milan)",
    # Nobody guesses.
    "GenuineIntel 6 85 unknown": "GenuineIntel family 6 model 85 stepping None",
    "GenuineIntel 6 250 1": "GenuineIntel family 6 model 250 stepping 1",
    "AuthenticAMD 6 143 8": "AuthenticAMD family 6 model 143 stepping 8",
    "GenuineIntel unknown 143 8": None,
    "0x41 8 0xd40 1": "Neoverse V1",
    "0x41 8 0xd4f 1": "Neoverse V2",
    "": None,
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A function that makes this machine's CPU one of these numbers."""

    def made(stated, flags="fpu"):
        keys = processor.KEYS[stated.startswith("0x")]
        lines = [f"{key}\t: {word}" for key, word in zip(keys, stated.split(), strict=False)]
        (tmp_path / "cpuinfo").write_text("\n".join([*lines, f"flags\t: {flags}"]))
        monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")

    return made


@pytest.mark.parametrize("stated", STATED)
def test_family_model_and_stepping_tell_the_microarchitecture(host, stated):
    host(stated)
    found = {"microarchitecture": STATED[stated], "hypervisor": None}
    assert processor.identity() == found


def test_the_table_of_cpus_is_unambiguous_and_sourced():
    table = cpus.TABLE
    assert {row["source"] for row in table["cpus"]} == set(table["sources"])
    stated = []
    for row in table["cpus"]:
        first, last = row.get("steppings", (0, 15))
        for model in row["models"]:
            stated += [(row["vendor"], row["family"], model, n) for n in range(first, last + 1)]
    assert len(stated) == len(set(stated))


def test_header_and_first_screen_name_chip_cores_memory_and_hypervisor(host, monkeypatch):
    host("GenuineIntel 6 143 8", "fpu hypervisor")
    monkeypatch.setattr(processor, "hypervisor", lambda: "KVM")
    here = torch.device("cpu")
    facts = device.fingerprint(here) | {"name": "Intel(R) Xeon(R) Processor", "cores": 2}
    facts |= {"memory_bytes": 4 * 2**30, "isa": ["avx2"], "threads": 1}
    first, second, _ = device.headline(here, facts)
    assert first == "device: cpu = Intel(R) Xeon(R) Processor, Sapphire Rapids, 4.0 GiB, avx2"
    assert second.endswith(", 1 thread on 2 virtual cores (KVM)")
    shown = headline(RunReport(machine=facts)).facts
    assert shown[:4] == [
        "Intel(R) Xeon(R) Processor", "Sapphire Rapids", "2 virtual cores (KVM)", "4.0 GiB"
    ]  # fmt: skip


def test_a_hypervisor_is_asked_only_where_the_system_names_one(host, monkeypatch):
    def refused(code):
        raise processor.cpu_clock.NoClock("executable memory is refused")

    host("AuthenticAMD 25 1 1", "fpu hypervisor")
    assert processor.hypervisor() in {*processor.HYPERVISORS.values(), "unknown hypervisor"}
    monkeypatch.setattr(processor.cpu_clock, "function_of", refused)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert processor.hypervisor() == "unknown hypervisor"
    host("AuthenticAMD 25 1 1")
    assert processor.hypervisor() is None
