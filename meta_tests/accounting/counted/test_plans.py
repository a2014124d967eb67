"""What is counted of an operator: nothing unknown passes for known, and a fused one is not taken apart."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.out_dtype import out_dtype
from torch.utils.flop_counter import flop_registry

from accounting.counted import Totals, rules
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

    monkeypatch.setattr(rules, "RULES", {})
    monkeypatch.setitem(flop_registry, torch.ops.prooflops_meta_tests.power, formula)
    count, should = flops_of(lambda: power(square, factors=4)), flops_of(lambda: square @ square @ square @ square)
    assert count.total == should.total, f"{count}, but three products cost {should.total}"


def test_what_is_only_a_name_for_others_costs_in_inference_mode_what_they_do() -> None:
    """There torch hands it over whole, elsewhere it takes it apart beforehand."""
    layer, batch = nn.Linear(4, 5), torch.randn(2, 3, 4)
    counts = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            counts.append(flops_of(lambda: layer(batch).matmul(torch.ones(5, 3)).unflatten(1, (1, 3))).by_operator())
    assert counts[0] == counts[1], f"in inference mode {counts[1]}, without gradients {counts[0]}"


@pytest.mark.skipif(torch.__version__ < "2.7", reason="before torch 2.7 no mode is handed higher-order operators")
def test_a_higher_order_operator_is_listed_unless_torch_has_a_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [torch.ones(4, 4, dtype=torch.int8)] * 2
    monkeypatch.setattr(rules, "RULES", {})
    counts = [flops_of(lambda: out_dtype(torch.ops.aten.mm.default, torch.int32, *operands))]
    monkeypatch.setitem(flop_registry, out_dtype, lambda *_, out_val: 2 * 4 * out_val.numel())
    counts.append(flops_of(lambda: out_dtype(torch.ops.aten.mm.default, torch.int32, *operands)))
    should = flops_of(lambda: square @ square).total
    assert [(count.total, count.unknown) for count in counts] == [(0, {"out_dtype": 1}), (should, {})], f"{counts}"


def test_the_plan_of_a_known_operator_is_made_once() -> None:
    for known in (torch.ops.aten.mm.default, torch.ops.aten.t.default, torch.ops.aten.matmul.default):
        assert rules.rule_of(known) is rules.rule_of(known), f"{known} is looked up again with each call"


def test_a_name_for_several_operators_is_counted_as_one_where_the_device_has_a_kernel_for_it() -> None:
    channels, aten = torch.ones(1, 4, 6, 6), torch.ops.aten
    counts = [flops_of(lambda x=x: aten.mish_backward(x, x)).by_operator() for x in (a, a.to("meta"))]
    counts.append(flops_of(lambda: aten.native_channel_shuffle(channels, 2)).by_operator())
    assert counts[0] == {"aten.mish_backward": Totals(0, a.numel(), 2 * a.nbytes, a.nbytes)}
    assert "aten.tanh" in counts[1], f"nothing but its parts runs on meta, but {counts[1]}"
    assert counts[2] == {"aten.native_channel_shuffle": Totals(0, 0, channels.nbytes, channels.nbytes)}


def test_a_view_is_not_listed() -> None:
    by_operator = flops_of(lambda: a.t()[1:].unsqueeze(0)).by_operator()
    assert not by_operator, f"{by_operator}, but nothing is computed and nothing moves"


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
        answers.append(torch.ops.aten.is_non_overlapping_and_dense(x))
        answers.append(torch.ops.aten.is_strides_like_format(x, torch.channels_last))

    count = flops_of(ask)
    assert answers == [(3, 3), (6, 2), 6, 9, 2, False, torch.strided, False, False], f"{answers}"
    assert not count.by_operator(), f"{count.by_operator()} should not be counted"
