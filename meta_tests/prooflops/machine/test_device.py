"""The choice of a device, its needs, peaks and fingerprint; GPUs by stand-ins."""

import os
from types import SimpleNamespace

import pytest
import torch

from prooflops.machine import cpu, nvml
from prooflops.machine import device as devices

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one H200, as torch describes it."""
    facts = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150_754_820_096
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: facts.name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (facts.major, facts.minor))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: facts)
    monkeypatch.setattr(devices, "highest_clock_hz", lambda device: 1980e6)
    devices.name.cache_clear()


@pytest.mark.usefixtures("h200")
def test_the_accelerator_is_chosen_if_there_is_one() -> None:
    assert devices.available()[:3] == ["cpu", "cuda", "cuda:0"]
    assert devices.chosen(None) == devices.chosen("cuda") == GPU
    assert devices.chosen("cpu") == CPU


@pytest.mark.parametrize("request_", ["tpu", "cuda:7", "", "cpu:3", "CUDA"])
def test_a_device_that_is_not_here_is_refused_with_the_valid_ones(request_: str) -> None:
    with pytest.raises(ValueError, match=r"--device .*valid here: cpu"):
        devices.chosen(request_)


def test_a_gpu_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # as with a driver that is too old
    monkeypatch.setattr(nvml, "gpu_names", lambda: ["NVIDIA H100 80GB HBM3"])
    monkeypatch.setattr(nvml, "driver_version", lambda: "470.82.01")
    (line,) = devices.unseen_gpus()
    assert "the driver 470.82.01 has NVIDIA H100 80GB HBM3, which torch cannot use" in line
    assert "for CUDA 13.0" in line
    with pytest.raises(
        ValueError, match=r"--device cuda: this machine has no such device; the driver 470.* valid here"
    ):
        devices.chosen("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.unseen_gpus() == []


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("need", "device", "why"),
    [
        ("cuda", GPU, None),
        ("cpu", GPU, "needs a CPU as the device under test"),
        ("sm>=8.9", GPU, None),
        ("sm>=10.0", GPU, "needs sm>=10.0, this device has 9"),
        ("gpus>=2", GPU, "needs gpus>=2, this device has 1"),
        ("sm>=8.9", CPU, "needs a CUDA device of compute capability >= 8.9"),
        ("torch", CPU, None),
        ("no_such_package", CPU, "needs the package no_such_package"),
    ],
)
def test_needs_are_met_by_what_the_device_has(need: str, device: torch.device, why: str | None) -> None:
    assert devices.unmet(need, device) == why
    with pytest.raises(ValueError, match=r"unknown need .*valid: cpu, cuda, sm>=X\.Y"):
        devices.unmet(f"{need}>two", device)


@pytest.mark.usefixtures("h200")
def test_compiling_for_a_gpu_needs_triton_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_lacks_compiler", lambda: None)
    for has, why in ((True, None), (False, "needs the package triton, for a GPU that it supports")):
        monkeypatch.setattr(devices, "has_triton", lambda has=has: has)
        assert devices.unmet("c++", GPU) == why
        assert devices.unmet("c++", CPU) is None


@pytest.mark.parametrize(
    ("arch", "meets"),
    [("gfx942:sramecc+:xnack-", ["sm>=8.0"]), ("gfx950", ["sm>=8.0", "sm>=8.9"]), ("gfx1201", ["sm>=8.0", "sm>=8.9"]),
     ("gfx90a", ["sm>=8.0"]), ("gfx1030", [])],
)  # fmt: skip
@pytest.mark.usefixtures("h200")
def test_an_amd_device_meets_the_needs_whose_formats_it_multiplies(
    monkeypatch: pytest.MonkeyPatch, arch: str, meets: list[str]
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: SimpleNamespace(gcnArchName=arch))
    assert [need for need in ("sm>=8.0", "sm>=8.9", "sm>=10.0") if devices.unmet(need, GPU) is None] == meets


def test_tf32_that_the_environment_asks_for_is_taken_back_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_float32_matmul_precision()
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    try:
        torch.set_float32_matmul_precision("high")  # as that variable does when torch is imported
        (said,) = devices.ignore_tf32_override()
        assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 asks for tf32" in said, said
        assert torch.get_float32_matmul_precision() == "highest"
        assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in os.environ, "processes started from here would have it"
        assert devices.ignore_tf32_override() == []
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("h200")
def test_the_peak_is_that_of_exactly_this_device_and_the_bound_that_of_its_highest_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak, bound = devices.peak_flop_per_s(GPU, "bf16"), devices.bound_flop_per_s(GPU, "bf16")
    assert peak == pytest.approx(989.5e12, rel=1e-3)
    assert bound == pytest.approx(989.5e12 * 1980 / 1830, rel=1e-3)
    devices.name.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200 MIG 1g.18gb")
    assert (devices.peak_flop_per_s(GPU, "bf16"), devices.bound_flop_per_s(GPU, "bf16")) == (None, None)
    devices.name.cache_clear()


def test_the_features_of_an_older_torch_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    lines = {"flags": "fpu fma avx2 avx512f amx_bf16", "Features": ""}
    monkeypatch.setattr(cpu, "info", lambda key: lines.get(key, ""))
    assert devices.isa(CPU) == ["avx2", "amx_bf16", "fma3", "avx512_f"]
    monkeypatch.setattr(cpu, "info", lambda key: "")
    assert devices.isa(CPU) == [torch.backends.cpu.get_cpu_capability()]
    assert devices.bound_flop_per_s(CPU, "fp32") is None


def test_equal_machines_have_equal_fingerprints_and_another_thread_count_another_one() -> None:
    before = devices.fingerprint(CPU)
    assert before == devices.fingerprint(CPU)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert devices.fingerprint(CPU) != before
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, ""),
        (torch.OutOfMemoryError("CUDA out of memory"), ""),
        (RuntimeError("CUDA error: an illegal\nmemory access"), "RuntimeError: CUDA error: an illegal memory access"),
    ],
)
def test_a_device_is_lost_where_it_cannot_add_for_another_reason_than_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, why: str
) -> None:
    def ones(size: int, device: torch.device) -> torch.Tensor:
        if error:
            raise error
        return torch.zeros(size)

    monkeypatch.setattr(torch, "ones", ones)
    assert devices.why_lost(GPU) == why
    assert devices.why_lost(CPU) == "", "a CPU is not asked"
