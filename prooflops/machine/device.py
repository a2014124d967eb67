"""The device under test, its properties and limits: only this file queries torch for hardware."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.utils._triton import has_triton

from accounting import devices
from accounting.devices import Accelerator
from prooflops import precision
from prooflops.machine import cpu_clock, processor
from prooflops_gate.console.tables import many
from prooflops_gate.machine import cpu, limits, nvml

KINDS = ("cpu", "cuda", "mps", "xpu")
# A machine can have several of these.
SEVERAL = ("cuda", "xpu")
_NEED = re.compile(r"(?P<what>sm|gpus)>=(?P<least>\d+(\.\d+)?)")


def available() -> list[str]:
    """The valid names for `--device` on this machine."""
    names = ["cpu"]
    for kind in SEVERAL:
        module = getattr(torch, kind)
        if module.is_available():
            names += [kind, *(f"{kind}:{index}" for index in range(module.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def counts() -> dict[str, int]:
    """The number of visible accelerators per kind that can have several. Opens no context."""
    return {kind: count for kind in SEVERAL if (count := getattr(torch, kind).device_count())}


def chosen(request: str | None) -> torch.device:
    """The requested device, or by default the accelerator that torch reports, else the CPU.

    Raises ValueError, naming the valid ones, for a device that this machine does not have.
    """
    valid = available()
    if request is None:
        kind = next((kind for kind in ("cuda", "xpu", "mps") if kind in valid), "cpu")
        return torch.device(kind, 0) if kind in SEVERAL else torch.device(kind)
    if request not in valid:
        known = request.partition(":")[0] in KINDS
        why = (
            "this machine has no such device"
            if known
            else f"no such kind of device ({', '.join(KINDS)})"
        )
        why = "; ".join([why, *(unseen_gpus() if known else [])])
        raise ValueError(f"--device {request}: {why}; valid here: {', '.join(valid)}")
    device = torch.device(request)
    return torch.device(device.type, device.index or 0) if device.type in SEVERAL else device


def unseen_gpus() -> list[str]:
    """A line that names GPUs of NVIDIA's driver, if torch can use none of them."""
    names = [] if torch.cuda.is_available() else nvml.gpu_names()
    if not names:
        return []
    built = "without CUDA" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    also = "" if hidden is None else f", and CUDA_VISIBLE_DEVICES is {hidden!r}"
    found = f"the driver {nvml.driver_version()} has {', '.join(names)}, which torch cannot use"
    return [f"{found}: torch {torch.__version__} is built {built}{also}"]


def unmet(need: str, device: torch.device) -> str | None:
    """The reason why `device` does not meet `need`; None if it does.

    Needs: `cpu`, `cuda`, `sm>=8.9` (compute capability), `gpus>=2`, `c++` (torch.compile's code
    generators: a compiler, and triton for CUDA), or the name of an importable module. Raises
    ValueError for a need of no known form.
    """
    if need == "cpu":
        return None if device.type == "cpu" else "needs a CPU as the device under test"
    if need == "cuda":
        return None if device.type == "cuda" else "needs a CUDA device"
    if match := _NEED.fullmatch(need):
        least = float(match["least"])
        if device.type != "cuda":
            if match["what"] == "gpus":
                return f"needs {least:g} CUDA devices or more"
            return f"needs a CUDA device of compute capability {least:g} or more"
        found = float(torch.cuda.device_count()) if match["what"] == "gpus" else capability(device)
        return None if found >= least else f"needs {need}, this device has {found:g}"
    if need == "c++":
        lacks_triton = device.type == "cuda" and not has_triton()
        return (
            "needs the package triton, for a GPU that it supports"
            if lacks_triton
            else _lacks_compiler()
        )
    if re.fullmatch(r"[a-z_][a-z0-9_]*", need):
        return None if find_spec(need) else f"needs the package {need}"
    raise ValueError(
        f"unknown need {need!r}; valid: cpu, cuda, sm>=X.Y, gpus>=N, c++, or the name of a module"
    )


def capability(device: torch.device) -> float:
    """The compute capability of an NVIDIA GPU, such as 8.9; an AMD one's by its matrix formats.

    torch returns (9, 4) for gfx942, which multiplies bf16 as from 8.0 on, and another fp8 than
    e4m3fn, that of 8.9.
    """
    if torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        return float(major + minor / 10)
    arch = torch.cuda.get_device_properties(device).gcnArchName
    if arch.startswith(("gfx950", "gfx12")):
        return 8.9
    return 8.0 if arch.startswith(("gfx908", "gfx90a", "gfx94", "gfx11")) else 7.0


def _lacks_compiler() -> str | None:
    """The missing part of torch.compile's CPU back end: a working compiler, or Python's headers."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if not shutil.which(compiler):
        return f"needs a C++ compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "needs the header files of Python (Python.h)"
    return None


@cache
def name(device: torch.device) -> str:
    """The product name as the driver or the operating system returns it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xpu":
        return str(torch.xpu.get_device_name(device))
    return cpu.name()


# The features of a CPU that decide its rates: torch's name for each, and the name in /proc/cpuinfo
# where it is another.
TELLING = {
    **dict.fromkeys(
        ("avx2", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "avx10_2"), ""
    ),
    **dict.fromkeys(
        ("amx_bf16", "amx_int8", "amx_fp16", "amx_fp8", "sve", "sve2", "bf16", "i8mm"), ""
    ),
    "fma3": "fma",
    "avx512_f": "avx512f",
    "neon": "asimd",
    "fp16_arith": "asimdhp",
}


def isa(device: torch.device) -> list[str]:
    """The features of a CPU that decide its rates; the compute capability of a GPU."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return [f"sm_{major}{minor}"]
    if device.type != "cpu":
        return []
    capabilities = cpu_capabilities()
    return [feature for feature in TELLING if capabilities.get(feature)] or [
        torch.backends.cpu.get_cpu_capability()
    ]


def cpu_capabilities() -> dict[str, Any]:
    """The instruction sets of this CPU by torch's names.

    Before torch 2.10, which returns none, they are read from /proc/cpuinfo.
    """
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities:
        return dict(capabilities())
    words = set((cpu.info("flags") or cpu.info("Features")).split())
    return (
        {feature: (other or feature) in words for feature, other in TELLING.items()}
        if words
        else {}
    )


def driver(device: torch.device) -> str | None:
    """The driver's version, from NVML; None without one."""
    return nvml.driver_version() if device.type == "cuda" else None


def why_lost(device: torch.device) -> str:
    """The error of an accelerator that can no longer add two numbers; empty for a CPU.

    A CUDA error other than a lack of memory is sticky: every later call of the process fails with
    it.
    """
    if device.type == "cpu":
        return ""
    try:
        # Waits for all that was started before.
        (torch.ones(1, device=device) + 1).item()
    except torch.OutOfMemoryError:
        return ""
    except Exception as error:  # each back end has its own
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def uuid_of(device: torch.device) -> object:
    """The UUID of a CUDA device, by which NVML knows it; None if torch does not name it."""
    return getattr(torch.cuda.get_device_properties(device), "uuid", None)


def card_of(device: torch.device) -> Any:
    """NVML's handle of the card of a CUDA device; None if the driver knows none."""
    return nvml.card(uuid_of(device))


def is_here(device: torch.device) -> bool:
    """False for a CUDA device that a model is only asked about, on a machine without one."""
    return device.type != "cuda" or torch.cuda.is_available()


def memory_bytes(device: torch.device) -> int | None:
    """The memory of the device in bytes, as the driver reports it; of a CPU what we may use."""
    if device.type in SEVERAL:
        return int(getattr(torch, device.type).get_device_properties(device).total_memory)
    return limits.memory_bytes()


def free_bytes(device: torch.device) -> int | None:
    """The memory left for new tensors, with torch's cached blocks; None if unknown."""
    if device.type == "cpu":
        return limits.free_bytes()
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    module = getattr(torch, device.type)
    # Not in each torch for XPU.
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(device)
    reserved = module.memory_reserved(device)
    # The share that PYTORCH_ALLOC_CONF or the process itself allows torch's allocator; not in each
    # torch.
    share = getattr(module, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    return int(min(free, share * total - reserved) + reserved - module.memory_allocated(device))


def flags() -> dict[str, Any]:
    """The settings of torch that change speed or precision."""
    products = torch.backends.cuda.matmul
    unusual = [f"{name}:{each}" for name, each in precision.unusual_formats().items()]
    return {
        "float32_matmul_precision": precision.of_products(),
        "cudnn_allow_tf32": precision.format_of("cudnn.conv") == "tf32",
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "fp16_reduced_precision_reduction": products.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": products.allow_bf16_reduced_precision_reduction,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        **({"fp32_precision": " ".join(unusual)} if unusual else {}),
    }


# NVIDIA's images set it.
TF32_OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


def ignore_tf32_override() -> list[str]:
    """Computes fp32 products in full precision, in this process and those started from it.

    Returns a line that says so if the environment, or a conftest.py, requested less: claims about
    fp32 would test that setting.
    """
    value = os.environ.pop(TF32_OVERRIDE, None)
    asked = f"{TF32_OVERRIDE}={value} asks for tf32"
    setting = precision.of_products()
    if setting == "highest":
        return []
    if value != "1":
        asked = f"float32_matmul_precision is {setting}"
    torch.set_float32_matmul_precision("highest")
    return [f"fp32 products run in full precision, although {asked}"]


# The user's choice of a number of threads.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def fit_threads_to_quota() -> list[str]:
    """Lowers torch's threads to the cores of a container's CPU quota; returns a line that says so.

    More threads than that use the quota up early in each period, and all of them then stop.
    """
    threads, cores = torch.get_num_threads(), limits.usable_cores()
    if threads <= cores or any(name in os.environ for name in THREADS):
        return []
    torch.set_num_threads(cores)
    return [
        f"threads: {cores} instead of {threads}, by the CPU quota; OMP_NUM_THREADS overrides it"
    ]


def fingerprint(device: torch.device) -> dict[str, Any]:
    """Everything that must be equal for two runs' timings to be comparable."""
    return {
        "device": device.type,
        "name": name(device),
        "count": torch.cuda.device_count() if device.type == "cuda" else 1,
        "memory_bytes": memory_bytes(device),
        "isa": isa(device),
        "driver": driver(device),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "hip": torch.version.hip if device.type == "cuda" else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "flags": flags(),
        **(processor.identity() if device.type == "cpu" else {}),
    }


def headline(device: torch.device, facts: dict[str, Any]) -> list[str]:
    """The lines about machine and software that head every run, from the device's fingerprint."""
    memory = (
        f"{facts['memory_bytes'] / 2**30:.1f} GiB" if facts["memory_bytes"] else "memory unknown"
    )
    count = f"{facts['count']} x " if facts["count"] > 1 else ""
    *kind, cores = processor.described(facts)
    what = [f"{count}{facts['name']}", *kind, memory, " ".join(facts["isa"])]
    versions = [f"torch {facts['torch']}"]
    versions += [f"{key} {facts[key]}" for key in ("driver", "cuda", "hip") if facts[key]]
    flags = ", ".join(f"{key}={value}" for key, value in facts["flags"].items())
    software = f"{', '.join(versions)}, python {facts['python']}"
    return [
        f"device: {device} = {', '.join(what)}",
        f"{software}, {many(facts['threads'], 'thread')} on {cores}",
        f"flags: {flags}",
    ]


# Intel Core i9-14900KS, the highest boost clock any CPU on sale is specified for.
FASTEST_CPU_CLOCK_HZ = 6.2e9


def accelerator(device: torch.device) -> Accelerator | None:
    """The row of the peak table for exactly this device; None if it is not on record."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        arch = (
            getattr(facts, "gcnArchName", "")
            if torch.version.hip
            else f"{facts.major}.{facts.minor}"
        )
        return devices.device_named(
            name(device), arch, facts.multi_processor_count, facts.total_memory
        )
    if device.type == "xpu":
        return devices.device_named(
            name(device), units=torch.xpu.get_device_properties(device).max_compute_units
        )
    return None


def peak_flop_per_s(device: torch.device, dtype: str) -> float | None:
    """The vendor's dense peak for matrix products in `dtype`; None if none is on record."""
    return devices.peak_flop_per_s(accelerator(device), dtype)


def bound_flop_per_s(device: torch.device, dtype: str) -> float | None:
    """The rate of all units at their highest clock, which no measurement exceeds.

    None if unknown.

    For a GPU it is the vendor's peak, scaled from its nominal clock to the highest the driver
    allows. For a CPU it is physical cores times the FLOPs per cycle of the widest unit. The clock
    is the highest that the system reports, or else the highest of any CPU. In a virtual machine
    that bound is wide, and only catches errors of a factor.
    """
    if device.type == "cuda":
        clock = highest_clock_hz(device)
        return (
            clock and devices.clock_scaled_peak_flop_per_s(accelerator(device), dtype, clock)
        ) or None
    if device.type == "cpu":
        capabilities = cpu_capabilities()
        cores = int(capabilities.get("num_physical_cores") or os.cpu_count() or 1)
        clock = highest_clock_hz(device) or FASTEST_CPU_CLOCK_HZ
        return (
            devices.cpu_peak_flop_per_s(capabilities, cores, clock, dtype) if capabilities else None
        )
    return None


def flop_per_s_at_clock(device: torch.device, dtype: str, clock_hz: float) -> float | None:
    """The FLOP/s of all units at a clock; None if the peak table or the CPU's features tell none.

    132 SMs of an H200 make 4096 FLOPs per clock in bf16: 838 TFLOP/s at 1.55 GHz. For a CPU, the
    cores that torch uses count, by the FLOPs per cycle of their widest units.
    """
    if device.type != "cpu":
        return devices.clock_scaled_peak_flop_per_s(accelerator(device), dtype, clock_hz)
    capabilities = cpu_capabilities()
    if not capabilities:
        return None
    physical = int(capabilities.get("num_physical_cores") or os.cpu_count() or 1)
    cores = min(physical, limits.usable_cores(), torch.get_num_threads())
    units = cpu_clock.fma_units_512() if capabilities.get("avx512_f") else 2
    return devices.cpu_peak_flop_per_s(capabilities, cores, clock_hz, dtype, units)


def why_no_running_peak(dtype: str) -> str:
    """The missing part of a CPU's running peak: its clock, or its instruction sets."""
    try:
        cpu_clock.clock_hz()
    except cpu_clock.NoClock as error:
        return f"the clock of this CPU is not known: {error}"
    return f"no known dense peak: this CPU's FLOPs per clock in {dtype} are not on record"


def highest_clock_hz(device: torch.device) -> float | None:
    """The highest clock that the driver or the system allows the device; None if unknown."""
    if device.type == "cpu":
        return cpu.highest_clock_hz()
    return nvml.highest_clock_hz(card_of(device)) if device.type == "cuda" else None
