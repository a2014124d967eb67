"""What the CUDA caching allocator charges, against worked cases, torch's own header and, on CUDA, the allocator.

Without a device the rules can only be held against worked cases and torch's own header; a simulation written from
the same rules would prove nothing. The tests that need CUDA hold them against the allocator itself; not yet run.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import allocator, measured
from meta_tests.accounting.refusals import refuses

MIB = 2**20


@pytest.mark.parametrize(
    ("request_bytes", "charge", "segment"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),  # a small block's worth too much for the small pool
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (21 * MIB // 2, 21 * MIB // 2, 12 * MIB),  # 1.5 MiB remain: split
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB remains: not more than 1 MiB, so the whole segment
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    ],
)
def test_a_request_from_a_fresh_segment_is_charged_as_the_rules_say(request_bytes, charge, segment):
    got = allocator.charged_bytes(request_bytes), allocator.segment_bytes(request_bytes)
    assert got == (charge, segment), f"charge and segment are {got}, but should be {(charge, segment)}"


@pytest.mark.parametrize(
    ("block", "charge"), [(12 * MIB, 12 * MIB), (12 * MIB + 512, 11 * MIB), (40 * MIB, 11 * MIB), (11 * MIB, 11 * MIB)]
)
def test_a_reused_block_is_charged_whole_unless_more_than_a_mebibyte_remains(block, charge):
    got = allocator.charged_bytes(11 * MIB, block)
    assert got == charge, f"charged_bytes={got}, but should be {charge} [{block=}]"
    assert allocator.charged_bytes(11 * MIB, block, expandable_segments=True) == 11 * MIB


@given(request_bytes=st.integers(0, 64 * MIB), spare=st.integers(0, 100_000))
def test_every_charge_lies_between_its_bounds(request_bytes, spare):
    least, greatest = allocator.charge_bounds(request_bytes)
    block = allocator.rounded_bytes(request_bytes) + spare * allocator.BLOCK_BYTES
    for charge in (allocator.charged_bytes(request_bytes), allocator.charged_bytes(request_bytes, block)):
        assert request_bytes <= least <= charge <= greatest, f"{charge=}, but should be in [{least}, {greatest}]"
        assert charge % 512 == 0, f"{charge=}, but should be a multiple of 512"


def test_the_allocators_constants_are_those_of_the_installed_torch():
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    if not header.exists():
        pytest.skip("this torch keeps the constants in a source file that is not installed")
    constants = dict(re.findall(r"constexpr size_t (k\w+) = (\d+);", header.read_text()))
    ours = {
        "kMinBlockSize": allocator.BLOCK_BYTES,
        "kSmallSize": allocator.SMALL_REQUEST_BYTES,
        "kSmallBuffer": allocator.SMALL_SEGMENT_BYTES,
        "kMinLargeAlloc": allocator.LARGE_REQUEST_BYTES,
        "kRoundLarge": allocator.SEGMENT_ROUNDING_BYTES,
    }
    theirs = {name: int(constants[name]) for name in ours}
    assert ours == theirs, f"the constants are {ours}, but should be {theirs}"


@pytest.fixture
def default_allocator(device):
    """The CUDA device with an empty cache, under the default configuration."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        if os.environ.get(variable):
            pytest.skip(f"{variable} is set: another rule than the default applies")
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return device


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("request_bytes", [1, 512, 513, MIB, MIB + 1, 3 * MIB, 10 * MIB, 21 * MIB // 2, 11 * MIB])
def test_memory_allocated_grows_by_the_charge(default_allocator, request_bytes):
    def held():
        return torch.cuda.memory_allocated(default_allocator), torch.cuda.memory_reserved(default_allocator)

    allocated, reserved = held()
    kept = torch.empty(request_bytes, dtype=torch.uint8, device=default_allocator)
    charge, segment = (after - before for after, before in zip(held(), (allocated, reserved), strict=True))
    least, greatest = allocator.charge_bounds(kept.nbytes)
    assert least <= charge <= greatest, f"{charge} bytes are charged, but should be from {least} to {greatest}"
    if segment:
        formula = allocator.charged_bytes(request_bytes), allocator.segment_bytes(request_bytes)
        assert (charge, segment) == formula, f"charge and segment are {charge, segment}, but should be {formula}"


@pytest.mark.needs("cuda")
def test_a_freed_segment_is_handed_out_whole(default_allocator):
    block, request_bytes = 40 * MIB, 40 * MIB - 4096
    torch.empty(block, dtype=torch.uint8, device=default_allocator)
    allocated = torch.cuda.memory_allocated(default_allocator)
    kept = torch.empty(request_bytes, dtype=torch.uint8, device=default_allocator)
    charge = torch.cuda.memory_allocated(default_allocator) - allocated
    formula = allocator.charged_bytes(kept.nbytes, block)
    assert charge == formula == block, f"{charge} bytes are charged, but should be {formula}"


@pytest.mark.needs("cuda")
def test_the_first_product_takes_the_workspace_of_cublas(default_allocator):
    if torch.version.hip:
        pytest.skip("ROCm has workspaces of its own")
    torch._C._cuda_clearCublasWorkspaces()
    x = torch.ones(64, 64, device=default_allocator)
    with measured.memory(default_allocator) as held:
        y = x @ x
    capability = torch.cuda.get_device_capability(default_allocator)
    formula = allocator.cublas_workspace_bytes(capability, os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
    got = held.peak_bytes - y.nbytes
    assert got == formula, f"the workspace has {got} bytes, but should have {formula} [{capability=}]"


@pytest.mark.parametrize(
    ("capability", "config", "workspace"),
    [
        ((8, 0), None, 8_519_680),
        ((8, 9), None, 8_519_680),
        ((9, 0), None, 33_554_432),
        ((10, 0), None, 33_554_432),
        ((12, 0), None, 33_554_432),
        ((8, 0), ":16:8", 131_072),
        ((9, 0), ":4096:2:16:8", 8_519_680),
    ],
)
def test_the_workspace_of_cublas_follows_capability_and_config(capability, config, workspace):
    got = allocator.cublas_workspace_bytes(capability, config)
    assert got == workspace, f"cublas_workspace_bytes={got}, but should be {workspace} [{capability=}, {config=}]"


test_bad_input_is_named_with_its_value_and_the_valid_ones = refuses(
    (lambda: allocator.rounded_bytes(-1), ValueError, ["request", "-1"]),
    (lambda: allocator.charged_bytes(1000, block=512), ValueError, ["block", "512", "1024"]),
    (lambda: allocator.charged_bytes(10, block=1000), ValueError, ["block", "1000", "512"]),
    (lambda: allocator.cublas_workspace_bytes((9, 0), "32MiB"), ValueError, ["config", "32MiB", ":4096:2:16:8"]),
)
