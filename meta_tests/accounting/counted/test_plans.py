"""What is counted of an operator: nothing unknown passes for known, and a fused one is not taken apart."""

import torch
from torch import Tensor, nn

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
