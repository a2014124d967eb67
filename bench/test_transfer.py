"""Transfers between the host and an accelerator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.checks import assert_random
from bench.measuring import Measure
from bench.streams import assert_bytes
from bench.transfers import DIRECTIONS, Transfer, beside, in_parts, overlap_share, transfer
from prooflops import timing

FP32_ELEMENTS = {"quick": 2**22, "default": 2**24, "thorough": 2**26}
PARTS = 1024
# Side of the products that run beside a copy: each takes a small part of its time.
SIDE = 1024


@pytest.fixture(autouse=True)
def link(device) -> None:
    if device.type not in ("cuda", "xpu"):
        pytest.skip(f"no link to measure: {device} is the host or shares its memory")


def measured_copy(case: Transfer, device: torch.device, measure: Measure, **declared: Any) -> float:
    """Times a copy, waits for the device, and checks the target."""

    def check(got: torch.Tensor) -> None:
        timing.synchronise(device)
        case.check(got)

    # New memory may come from an earlier copy, and hold the right numbers already.
    case.target.normal_()
    # Read at one end, written at the other.
    assert_bytes(case.work, case.run, uncounted=case.work.bytes)
    return measure.work(
        case.run, case.work, dtype="fp32", check=check, counted=False, launch=False, **declared
    )


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_copy(direction, pinned, blocking, device, pace, measure, delivery):
    case = transfer(direction, FP32_ELEMENTS[pace], device, pinned=pinned, blocking=blocking)
    measured_copy(case, device, measure, direction=direction, pinned=pinned, blocking=blocking)
    if pinned and not blocking:
        delivery.check(direction, case.work.bytes, "B/s", case.run)


def test_peer(device, pace, measure, delivery):
    """A copy from this card's memory to the next card's. Unrun."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        pytest.skip("needs a second card")
    source = torch.randn(FP32_ELEMENTS[pace], device=device)
    target = torch.empty_like(
        source, device=f"cuda:{((device.index or 0) + 1) % torch.cuda.device_count()}"
    )
    case = Transfer(lambda: target.copy_(source, non_blocking=True), source, target)
    measured_copy(case, device, measure, direction="peer")
    delivery.check("peer", case.work.bytes, "B/s", case.run)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_many_small(direction, device, pace, measure):
    """The bytes of one copy in 1024 parts: beside `test_copy`, the cost of each copy."""
    whole = transfer(direction, FP32_ELEMENTS[pace], device, pinned=True, blocking=False)
    measured_copy(in_parts(whole, PARTS), device, measure, direction=direction, copies=PARTS)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_overlap(direction, device, pace, measure):
    """The hidden share of the shorter of two: a copy in its own stream, and products.

    The products take about as long as the copy.
    """
    case = transfer(direction, FP32_ELEMENTS[pace], device, pinned=True, blocking=False)
    a, b = (torch.randn(SIDE, SIDE, device=device) for _ in range(2))
    out = torch.empty_like(a)
    assert_random([case.source, a, b])
    copy_s = timing.time(case.run, device, warmup=3, rounds=11).median_s
    product_s = timing.time(lambda: torch.mm(a, b, out=out), device, warmup=3, rounds=11).median_s
    times = max(1, round(copy_s / product_s))

    def compute() -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    compute_s = timing.time(compute, device, warmup=2, rounds=11).median_s
    both = beside(device, compute, case.run)
    together_s = measure.median_s(both, dtype="fp32", bytes=case.work.bytes, direction=direction)
    # Otherwise the host would write while a copy to it goes on.
    timing.synchronise(device)
    for each in (case.target, out):
        each.fill_(float("nan"))
    both()
    timing.synchronise(device)
    case.check(case.target)
    assert not bool(out.isnan().any()), "the products beside the copy were not computed"
    measure.declare(
        bytes_per_s=case.work.bytes / together_s,
        copy_s=copy_s,
        compute_s=compute_s,
        overlap=overlap_share(compute_s, copy_s, together_s),
    )
