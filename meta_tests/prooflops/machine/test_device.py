"""The choice of a device, its precision and fingerprint; GPUs by the simulated card."""

import os

import pytest
import torch

from meta_tests.card.api import simulated
from meta_tests.card.card import Card
from prooflops.machine import device as devices
from prooflops_gate.machine import limits

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.fixture
def h200(monkeypatch):
    """A machine with one H200."""
    monkeypatch.setattr(devices, "highest_clock_hz", lambda device: 1980e6)
    with simulated(Card("H200 SXM 141GB")):
        yield


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "int8"])
def test_the_products_of_an_h200_have_a_bound(dtype):
    """Its vector units are rated at another clock than its tensor cores."""
    peak = devices.peak_flop_per_s(GPU, dtype)
    bound = devices.bound_flop_per_s(GPU, dtype)
    assert peak is not None
    assert bound is not None
    assert peak <= bound <= 1.1 * peak


@pytest.mark.usefixtures("h200")
def test_the_accelerator_is_chosen_if_there_is_one():
    assert devices.available()[:3] == ["cpu", "cuda", "cuda:0"]
    assert devices.chosen(None) == devices.chosen("cuda") == GPU
    assert devices.chosen("cpu") == CPU


@pytest.mark.parametrize("request_", ["tpu", "cuda:7", "", "cpu:3", "CUDA"])
def test_a_device_that_is_not_here_is_refused_with_the_valid_ones(request_):
    with pytest.raises(ValueError, match=r"--device .*valid here: cpu"):
        devices.chosen(request_)


def test_tf32_that_the_environment_asks_for_is_taken_back_and_said(
    monkeypatch,
):
    before = torch.get_float32_matmul_precision()
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    try:
        # Torch does the same for this variable when it is imported.
        torch.set_float32_matmul_precision("high")
        (said,) = devices.ignore_tf32_override()
        assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 asks for tf32" in said, said
        assert torch.get_float32_matmul_precision() == "highest"
        assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in os.environ, (
            "processes started from here would have it"
        )
        assert devices.ignore_tf32_override() == []
    finally:
        torch.set_float32_matmul_precision(before)


def test_threads_keep_within_a_quota_unless_the_user_chose_them(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    try:
        torch.set_num_threads(3)
        assert devices.fit_threads_to_quota() == []
        monkeypatch.delenv("OMP_NUM_THREADS")
        (said,) = devices.fit_threads_to_quota()
        assert torch.get_num_threads() == 2, said
        assert devices.fit_threads_to_quota() == []
    finally:
        torch.set_num_threads(before)


def test_equal_machines_have_equal_fingerprints():
    before = devices.fingerprint(CPU)
    assert before == devices.fingerprint(CPU)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert devices.fingerprint(CPU) != before
    finally:
        torch.set_num_threads(threads)
