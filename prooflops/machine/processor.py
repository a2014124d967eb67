"""Identifies the CPU and its hypervisor where the CPU's name tells neither."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from typing import Any

from accounting.devices.cpus import microarchitecture
from prooflops.machine import cpu_clock
from prooflops_gate.machine import cpu

# The keys of /proc/cpuinfo for vendor, family, model and stepping: on x86, and on Arm.
KEYS = (
    ("vendor_id", "cpu family", "model", "stepping"),
    ("CPU implementer", "CPU architecture", "CPU part", "CPU revision"),
)
# The signatures stand in CPUID's leaf 0x40000000.
HYPERVISORS = {
    "KVMKVMKVM": "KVM", "Microsoft Hv": "Hyper-V", "VMwareVMware": "VMware", "XenVMMXenVMM": "Xen",
    "TCGTCGTCGTCG": "QEMU", "bhyve bhyve": "bhyve",
}  # fmt: skip
UNKNOWN_HYPERVISOR = "unknown hypervisor"
# push rbx; mov eax, 0x40000000; cpuid; mov [rdi], ebx; mov [rdi+4], ecx; mov [rdi+8], edx;
# pop rbx; ret.
CPUID = bytes.fromhex("53 b8 00000040 0fa2 891f 894f04 895708 5b c3")


def identity() -> dict[str, str | None]:
    """`microarchitecture`, or the numbers that would tell it, and `hypervisor`.

    Both are None where the system does not tell.
    """
    found = None
    for keys in KEYS:
        vendor = cpu.info(keys[0])
        family, model, stepping = (_number(cpu.info(key)) for key in keys[1:])
        if vendor and family is not None and model is not None:
            numbers = f"{vendor} family {family} model {model} stepping {stepping}"
            found = microarchitecture(vendor, family, model, stepping) or numbers
    return {"microarchitecture": found, "hypervisor": hypervisor()}


def _number(word: str) -> int | None:
    """A decimal or hexadecimal number; None for another word: some systems write "unknown"."""
    try:
        return int(word, 0)
    except ValueError:
        return None


def hypervisor() -> str | None:
    """The name of the hypervisor under this system; None on a machine of its own, or on Arm."""
    if "hypervisor" not in cpu.info("flags").split():
        return None
    signature = ctypes.create_string_buffer(12)
    if platform.machine() == "x86_64":
        try:
            cpu_clock.function_of(CPUID)(ctypes.addressof(signature), 0)
        except cpu_clock.NoClock:
            return UNKNOWN_HYPERVISOR
    name = signature.raw.decode("latin-1").strip("\0 ")
    return HYPERVISORS.get(name, UNKNOWN_HYPERVISOR)


def described(facts: Mapping[str, Any]) -> list[str]:
    """The properties of a CPU in a fingerprint, without its name.

    >>> described({"microarchitecture": "Sapphire Rapids", "cores": 2, "hypervisor": "KVM"})
    ['Sapphire Rapids', '2 virtual cores (KVM)']
    >>> described({"cores": 16})
    ['16 cores']
    """
    under, cores = facts.get("hypervisor"), facts.get("cores")
    text = f"{cores} virtual cores ({under})" if under else f"{cores} cores"
    return [*filter(None, [facts.get("microarchitecture")]), *([text] if cores else [])]
