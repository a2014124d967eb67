"""What one call reads, writes and dispatches is seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from accounting import measured
from bench import call_inspection
from bench.call_inspection import assert_random, examine
from bench.products import DTYPES, Product, Unsupported, product
from meta_tests.bench.stand_ins import CPU


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operands_of_a_product_count_as_random_and_its_flops_as_declared(dtype: str) -> None:
    for _ in range(5):
        try:
            case: Product = product(dtype, 64, 128, 96, CPU)
        except Unsupported as reason:
            pytest.skip(str(reason))
        seen = examine(case.multiply)
        assert_random(seen.inputs)
        found = {tensor.data_ptr() for tensor in seen.inputs}
        assert {case.a.data_ptr(), case.b.data_ptr()} <= found, "an operand was not seen"
        assert seen.flops == case.work.flops, f"{seen.flops} FLOPs seen, {case.work.flops} declared"


def test_what_a_function_writes_is_no_input_of_it() -> None:
    x, out = torch.randn(256), torch.zeros(256)
    assert [t.data_ptr() for t in examine(lambda: torch.relu(torch.add(x, x, out=out))).inputs] == [x.data_ptr()]
    assert [t.data_ptr() for t in examine(lambda: out.copy_(x)).inputs] == [x.data_ptr()]
    assert [t.data_ptr() for t in examine(lambda: x.view(16, 16).t() + torch.zeros(16, 16)).inputs] == [x.data_ptr()]
    assert examine(lambda: (x + x).relu()).operators == 2, "operators miscounted"
    assert examine(lambda: x.view(16, 16).t() + 1).operators == 1, "a view launches nothing"


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_many_zeros_among_random_numbers_are_noticed(share: float) -> None:
    data = torch.randn(100_000).where(torch.rand(100_000) > share, torch.zeros(()))
    if share < 0.25:
        assert_random([data])
    else:
        with pytest.raises(AssertionError, match=r"\d\d% of an input .* are 0, but inputs should be random"):
            assert_random([data])


def test_what_a_call_writes_is_freed_as_it_is_without_being_looked_at() -> None:
    x = torch.randn(2**18)

    def held_bytes(look: Callable[[Callable[[], object]], object]) -> int:
        with measured.memory("cpu") as held:
            look(lambda: [x + 1 for _ in range(8)] and [(x * 2).relu_().sum() for _ in range(64)])
        return held.peak_bytes

    plain = held_bytes(lambda function: function())
    looked_at = held_bytes(examine)
    assert looked_at < plain + x.nbytes, f"a call holds {plain} bytes, but looked at {looked_at}"


def test_a_storage_that_takes_the_place_of_a_freed_one_is_told_from_it() -> None:
    """The second of two inputs often gets the address of what the call wrote, and freed, before."""

    def read_later() -> None:
        (torch.zeros(2**12) + 1).sum()
        inputs.append(torch.from_numpy(np.ones(2**12)))
        inputs[-1].sum()

    inputs: list[torch.Tensor] = []
    for _ in range(20):
        seen = examine(read_later)
        assert any(tensor is inputs[-1] for tensor in seen.inputs), "an input was taken for what the call wrote"


def test_what_a_call_reads_is_not_overwritten() -> None:
    x, kept = torch.randn(64), torch.arange(64)
    seen = call_inspection.examine(lambda: (x.add_(1), kept, kept + 1, torch.ones(1).expand(8)))
    call_inspection.overwrite(seen)
    assert x.isfinite().all()
    assert kept.tolist() == list(range(64))
    assert (seen.result[2] == torch.iinfo(torch.int64).min).all()
