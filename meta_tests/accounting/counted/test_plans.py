"""What is counted of an operator: nothing unknown passes for known, and a fused one is not taken apart."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from accounting.counted import plans
from meta_tests.accounting.counted.counting import a, b, flops_of, square


def test_an_operator_without_a_formula_is_listed_with_its_calls() -> None:
    count = flops_of(lambda: [torch.linalg.cholesky(torch.eye(3)) for _ in range(2)])
    assert count.unknown.get("aten.linalg_cholesky_ex") == 2, f"{count.unknown}, but cholesky was called twice"
    assert "aten.linalg_cholesky_ex" in repr(count), f"{count!r} should name what is missing"


def test_a_fused_layer_of_inference_is_listed_and_not_taken_apart() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        count = flops_of(lambda: layer(torch.randn(2, 5, 16)))
    assert count.unknown == {"aten._transformer_encoder_layer_fwd": 1}, f"{count.unknown}"
    assert count.total == 0, f"{count}, but what it does inside should not be seen"


def test_a_kernel_of_another_library_is_listed() -> None:
    @torch.library.custom_op("prooflops_meta_tests::square", mutates_args=())
    def square_of(matrix: Tensor) -> Tensor:
        return matrix @ matrix

    count = flops_of(lambda: square_of(square))
    assert count.unknown == {"prooflops_meta_tests.square": 1}, f"{count.unknown}"


def test_an_operator_of_sparse_tensors_is_listed_and_not_taken_for_a_dense_one() -> None:
    sparse = a.to_sparse()
    count = flops_of(lambda: sparse @ b)
    assert (count.total, count.unknown) == (0, {"aten.mm": 1}), f"{count}, but should list aten.mm"


def test_a_formula_in_torchs_own_list_is_given_the_arguments_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.library.custom_op("prooflops_meta_tests::power", mutates_args=())
    def power(matrix: Tensor, *, factors: int) -> Tensor:
        return torch.linalg.matrix_power(matrix, factors)

    def formula(matrix: Tensor, *, factors: int, out_val: Tensor) -> int:
        return 2 * (factors - 1) * len(matrix) * out_val.numel()

    monkeypatch.setattr(plans, "PLANS", {})
    monkeypatch.setitem(flop_registry, torch.ops.prooflops_meta_tests.power, formula)
    count, should = flops_of(lambda: power(square, factors=4)), flops_of(lambda: square @ square @ square @ square)
    assert count.total == should.total, f"{count}, but three products cost {should.total}"


class OwnLayout(Tensor):
    """Answers questions about its layout itself, as nested tensors do."""

    @staticmethod
    def __new__(cls, of: Tensor) -> "OwnLayout":
        return Tensor._make_wrapper_subclass(cls, of.shape, dispatch_sizes_strides_policy="sizes", dispatch_layout=True)

    def __init__(self, of: Tensor) -> None:
        self.of = of

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(args[0].of, *args[1:], **(kwargs or {}))


def test_a_tensor_is_asked_for_its_own_layout_within_a_count() -> None:
    plain = torch.empty(4, 6)[1:, ::2]
    answers: list[Any] = []

    def ask() -> None:
        x = OwnLayout(plain)
        answers.extend((x.size(), x.stride(), x.storage_offset(), x.numel(), x.dim(), x.is_contiguous(), x.layout))

    count = flops_of(ask)
    assert answers == [(3, 3), (6, 2), 6, 9, 2, False, torch.strided], f"{answers}"
    assert not count.by_operator(), f"{count.by_operator()} should not be counted"
