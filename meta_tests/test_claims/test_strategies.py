"""What the claims' strategies draw: the device's dtypes, and each pair of a cover."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings

from accounting.devices import has_dtype
from meta_tests import cover
from meta_tests.conftest import ROOT
from prooflops.suite.registry import load_registry
from test_claims import strategies

MPS = torch.device("mps")
COVERED = strategies.covers()


@pytest.fixture(scope="module")
def on_mps():
    before = dict(strategies._under_test)
    strategies.draw_dtypes_of(MPS)
    yield
    strategies._under_test.update(before)


@given(dtype=strategies.dtypes)
@settings(max_examples=100)
def test_no_dtype_is_drawn_that_the_device_lacks(on_mps, dtype):
    assert has_dtype("mps", dtype), f"{dtype} was drawn for a device that has none"


def test_what_needs_a_dtype_that_the_device_lacks_is_on_the_cpu():
    assert (
        strategies.with_dtype(MPS).type
        == strategies.with_dtype(MPS, torch.float8_e5m2).type
        == "cpu"
    )
    assert strategies.with_dtype(MPS, "bf16") == MPS


def test_covers_are_of_claims_in_the_registry():
    unknown = COVERED.keys() - load_registry(ROOT / "test_claims" / "registry").claims.keys()
    assert not unknown, (
        f"test_claims/covers.toml has rows for {sorted(unknown)}, which are no claims"
    )


@pytest.mark.parametrize("claim", ["storage.contiguous-copies", "storage.elementwise-new"])
def test_cases_are_what_they_are_called_and_have_each_pair_of_a_cover(claim):
    cases = strategies.covering(claim)
    for case in cases:
        x = case.tensor("cpu")
        assert x.dtype == strategies.TORCH_DTYPES[case.dtype], case
        names = strategies.layouts_of(x.shape, x.stride(), x.storage_offset())
        names |= strategies.sizes_of(x.shape)
        assert {*case[1:]} <= names, f"{case} is {sorted(names)}"
    had = {pair for case in cases for pair in combinations(case, 2)}
    axes = COVERED[claim][0][1:]
    pairs = {(a, b) for one, other in combinations(axes, 2) for a in one for b in other}
    assert had == {pair for pair in pairs if strategies.makes_sense({*pair})}


def test_a_gap_is_what_no_call_has():
    row = (("sum", "mean"), ("fp32", "bf16"))
    call = "torch.sum", torch.float32, (2, 3), (3, 1), 0
    assert cover.gaps(row, [call]) == ["mean", "bf16"]
    assert cover.gaps(row, [call, ("torch.mean", torch.bfloat16, (2,), (1,), 0)]) == [
        "sum x bf16",
        "mean x fp32",
    ]
