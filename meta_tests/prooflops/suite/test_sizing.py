"""Operands fit the memory that is free on the device, whatever part of it that is; here a pretended one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from _pytest.outcomes import Skipped

from accounting.devices import ROWS
from bench import cache, streams, training
from bench.ceilings import Ceilings
from bench.products import DTYPES, product_bytes
from bench.rounds import PACES
from bench.test_matmul import SHAPES, SIDES
from bench.test_training import LECTURE
from prooflops.machine import device as machine
from prooflops.machine.caches import Caches
from prooflops.suite.sizing import SHARE_OF_FREE, Sizing
from test_claims import test_roof

GIB = 2**30
GPU = torch.device("cuda", 0)
CARDS = {"MIG slice": 4.75 * GIB, "8 GB": 7 * GIB, "24 GB": 23 * GIB, "80 GB": 79 * GIB}


@pytest.fixture(params=CARDS)
def sizing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sizing:
    monkeypatch.setattr(machine, "free_bytes", lambda device: CARDS[request.param])
    return Sizing(GPU)


def test_a_size_is_halved_until_it_fits_and_else_the_row_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda device: 8 * GIB)
    assert Sizing(GPU).fitting(2**30, lambda elements: 4 * elements) == 2**30
    assert Sizing(GPU).fitting(2**30, lambda elements: 8 * elements) == 2**29
    with pytest.raises(Skipped, match="needs 16 GiB of free memory, cuda:0 has 8"):
        Sizing(GPU).require(16 * SHARE_OF_FREE * GIB)
    with pytest.raises(ValueError, match="least must be from 1 to 4, got 8"):
        Sizing(GPU).fitting(4, float, least=8)
    monkeypatch.setattr(machine, "free_bytes", lambda device: None)
    assert Sizing(GPU).fitting(2**40, float) == 2**40


def test_free_is_what_the_driver_has_and_what_torch_keeps_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 * GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0, raising=False)
    assert machine.free_bytes(GPU) == 7 * GIB
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.075, raising=False)
    assert machine.free_bytes(GPU) == 5 * GIB, "of 80 GiB torch may take 6, and has 1"
    assert 0 < (machine.free_bytes(torch.device("cpu")) or 0) <= (machine.memory_bytes(torch.device("cpu")) or 0)


@pytest.mark.parametrize(("label", "most"), [("H100 SXM5 80GB", 3.35e9), ("RTX 4090", 1.008e9), (None, 8e9)])
def test_bytes_are_scaled_by_the_bandwidth_on_record(
    monkeypatch: pytest.MonkeyPatch, label: str | None, most: float
) -> None:
    row = next((row for row in ROWS if row.label == label), None)
    monkeypatch.setattr(machine, "accelerator", lambda device: row)
    assert Sizing(GPU).bytes_moved_in(1e-3) == pytest.approx(most, rel=1e-3)


# ---- what takes most -----------------------------------------------------------------------------------------------


def test_arrays_and_the_flush_fit(sizing: Sizing) -> None:
    room = sizing.room_bytes()
    size = streams.memory_size(GPU, "default", Caches({"L2": 128 * 2**20}), room)
    assert 3 * 4 * size.elements <= room
    assert bool(size.label) == (size.multiple is not None and size.multiple < 16)
    assert cache.flush_bytes(GPU, Caches({"L2": GIB}), room)[0] <= room / 4


def test_a_training_step_fits_or_says_what_it_needs(sizing: Sizing) -> None:
    for name in training.ON_ACCELERATOR:
        if sizing.room_bytes() < 7 * GIB:
            with pytest.raises(Skipped, match=r"needs .* GiB of free memory"):
                training.workload(name, GPU, sizing.fitting)
            continue
        work = training.workload(name, GPU, sizing.fitting)
        assert training.step_bytes(work) <= sizing.room_bytes()
        assert work.batch == training.ON_ACCELERATOR[name].batch or sizing.room_bytes() < 30 * GIB


def test_the_operands_of_a_product_fit_or_say_what_they_need(sizing: Sizing) -> None:
    largest = max(product_bytes(dtype, *SHAPES[f"square-{max(SIDES)}"]) for dtype in DTYPES)
    assert largest <= sizing.room_bytes()
    small = sizing.room_bytes() < 5.5 * GIB
    with pytest.raises(Skipped, match=r"needs 7.33 GiB of free memory") if small else nullcontext():
        sizing.require(product_bytes("fp32", *LECTURE))


def test_the_operands_of_a_search_and_of_its_zeros_fit(sizing: Sizing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(Ceilings, "probed", lambda self, dtype: 2e16)
    ceilings = Ceilings(torch.device("cpu"), PACES["default"], room_bytes=sizing.room_bytes)
    ceilings._device = GPU
    for dtype in ("fp32", "bf16", "fp8_e4m3", "fp64"):
        space = ceilings.space(dtype)
        m, k = max(space.m), max(space.k)
        held = (2 * (m * k + k * m) + m * m) * (8 if dtype == "fp64" else 4)
        assert held <= sizing.room_bytes(), f"{dtype}: a product and its zeros take {held / GIB:.1f} GiB"


def test_the_operands_of_the_roofline_claims_fit(sizing: Sizing) -> None:
    operands = test_roof.memory.__wrapped__(torch.device("meta"), sizing)
    assert 6 * operands.x.nbytes <= sizing.room_bytes()
    assert operands.x.numel() == 2**28 or sizing.room_bytes() < 6 * GIB
