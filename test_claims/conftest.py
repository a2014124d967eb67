"""What several topics need: the device under test as something whose bytes are accounted for."""

import pytest
import torch

from accounting import measured


@pytest.fixture
def allocator(device: torch.device) -> torch.device:
    """The device under test, where torch keeps account of its bytes; warmed up, as cuBLAS takes a workspace."""
    if device.type not in measured.MEASURED_DEVICES:
        pytest.skip(f"torch keeps no account of the bytes that tensors hold on {device.type}")
    x = torch.ones(64, 8, device=device, requires_grad=True)
    (x @ torch.ones(8, 8, device=device)).sum().backward()
    return device
