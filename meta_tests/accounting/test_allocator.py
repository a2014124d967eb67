"""What the CUDA caching allocator charges, against the bounds of its rules and, on CUDA, the allocator.

On the simulated card they are held against an allocator written after torch's own; on CUDA not yet run.
"""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import allocator

MIB = 2**20


@given(request_bytes=st.integers(0, 64 * MIB), spare=st.integers(0, 100_000))
def test_every_charge_lies_between_its_bounds(request_bytes, spare):
    least, greatest = allocator.charge_bounds(request_bytes)
    block = allocator.rounded_bytes(request_bytes) + spare * allocator.BLOCK_BYTES
    for charge in (
        allocator.charged_bytes(request_bytes),
        allocator.charged_bytes(request_bytes, block),
    ):
        assert request_bytes <= least <= charge <= greatest, (
            f"{charge=}, but should be in [{least}, {greatest}]"
        )
        assert charge % 512 == 0, f"{charge=}, but should be a multiple of 512"


@pytest.fixture
def default_allocator(device):
    """The CUDA device with an empty cache, under the default configuration."""
    for variable in (
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
    ):
        if os.environ.get(variable):
            pytest.skip(f"{variable} is set: another rule than the default applies")
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return device


@pytest.mark.needs("cuda")
@pytest.mark.parametrize(
    "request_bytes", [1, 512, 513, MIB, MIB + 1, 3 * MIB, 10 * MIB, 21 * MIB // 2, 11 * MIB]
)
def test_memory_allocated_grows_by_the_charge(default_allocator, request_bytes):
    def held():
        return torch.cuda.memory_allocated(default_allocator), torch.cuda.memory_reserved(
            default_allocator
        )

    allocated, reserved = held()
    kept = torch.empty(request_bytes, dtype=torch.uint8, device=default_allocator)
    charge, segment = (
        after - before for after, before in zip(held(), (allocated, reserved), strict=True)
    )
    least, greatest = allocator.charge_bounds(kept.nbytes)
    assert least <= charge <= greatest, (
        f"{charge} bytes are charged, but should be from {least} to {greatest}"
    )
    if segment:
        formula = allocator.charged_bytes(request_bytes), allocator.segment_bytes(request_bytes)
        assert (charge, segment) == formula, (
            f"charge and segment are {charge, segment}, but should be {formula}"
        )


@pytest.mark.parametrize(
    ("capability", "config", "workspace"),
    [((8, 0), None, 8_519_680), ((8, 9), None, 8_519_680), ((9, 0), None, 33_554_432), ((10, 0), None, 33_554_432),
     ((12, 0), None, 33_554_432), ((8, 0), ":16:8", 131_072), ((9, 0), ":4096:2:16:8", 8_519_680)],
)  # fmt: skip
def test_the_workspace_of_cublas_follows_capability_and_config(capability, config, workspace):
    got = allocator.cublas_workspace_bytes(capability, config)
    assert got == workspace, (
        f"cublas_workspace_bytes={got}, but should be {workspace} [{capability=}, {config=}]"
    )
