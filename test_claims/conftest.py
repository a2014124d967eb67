"""Fixtures that several topics share."""

from collections.abc import Iterator

import pytest
import torch

from accounting import measured
from test_claims.strategies import draw_dtypes_of


@pytest.fixture(scope="session", autouse=True)
def _dtypes_of_the_device(device: torch.device) -> None:
    """Has the strategies draw the dtypes of the device under test alone."""
    draw_dtypes_of(device)


@pytest.fixture
def memory_device(device: torch.device) -> torch.device:
    """The device under test, where torch counts the bytes on it; warmed up, because cuBLAS takes a workspace.

    cuBLASLt, which multiplies where a bias is added, may take one of its own.
    """
    if why := measured.why_uncounted(device):
        pytest.skip(why)
    for bias in (False, True):
        x = torch.ones(64, 8, device=device, requires_grad=True)
        torch.nn.Linear(8, 8, bias=bias, device=device)(x).sum().backward()
    return device


@pytest.fixture
def default_dtype() -> Iterator[torch.dtype]:
    """The default dtype, which is restored afterwards."""
    before = torch.get_default_dtype()
    yield before
    torch.set_default_dtype(before)
