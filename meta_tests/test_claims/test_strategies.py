"""The dtypes that claims draw are those of the device under test."""

import pytest
import torch
from hypothesis import given, settings

from accounting.devices import has_dtype
from test_claims import strategies

MPS = torch.device("mps")


@pytest.fixture(scope="module", autouse=True)
def on_mps():
    before = dict(strategies._under_test)
    strategies.draw_dtypes_of(MPS)
    yield
    strategies._under_test.update(before)


@given(dtype=strategies.dtypes)
@settings(max_examples=100)
def test_no_dtype_is_drawn_that_the_device_lacks(dtype):
    assert has_dtype("mps", dtype), f"{dtype} was drawn for a device that has none"


def test_what_needs_a_dtype_that_the_device_lacks_is_on_the_cpu():
    assert (
        strategies.with_dtype(MPS).type
        == strategies.with_dtype(MPS, torch.float8_e5m2).type
        == "cpu"
    )
    assert strategies.with_dtype(MPS, "bf16") == MPS
