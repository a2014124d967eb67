"""What several topics need: the device under test, where torch counts the bytes that tensors hold on it."""

from collections.abc import Iterator

import pytest
import torch

from accounting import measured


@pytest.fixture
def memory_device(device: torch.device) -> torch.device:
    """The device under test, where torch counts the bytes on it; warmed up, because cuBLAS takes a workspace."""
    if device.type not in measured.MEASURED_DEVICES:
        pytest.skip(f"torch does not count the bytes that tensors hold on {device.type}")
    x = torch.ones(64, 8, device=device, requires_grad=True)
    (x @ torch.ones(8, 8, device=device)).sum().backward()
    return device


@pytest.fixture
def default_dtype() -> Iterator[torch.dtype]:
    """The default dtype, which is restored afterwards."""
    before = torch.get_default_dtype()
    yield before
    torch.set_default_dtype(before)
