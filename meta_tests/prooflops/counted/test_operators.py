"""What one operator costs: the counter against definitions that count their own operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from meta_tests.prooflops.counted.counting import flops_of
from meta_tests.prooflops.counted.operator_definitions import multiply_adds
from meta_tests.prooflops.counted.operator_table import ROWS, Row, normal
from prooflops.counted import operators, rules


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor", "ignore:Sparse ... tensor support is in beta"
)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.operator}: {row.call}")
def test_an_operator_costs_what_its_definition_does(row: Row) -> None:
    try:
        count = row.count()
    except (AttributeError, RuntimeError) as error:
        if "has no attribute" in str(error) or "No available kernel" in str(error):
            pytest.skip(f"torch {torch.__version__}: {error}")
        raise
    right = row.flops()
    assert count.total == right
    assert not count.unknown


@pytest.mark.parametrize(("rows", "columns"), [(60, 60), (60, 20), (20, 60)])
def test_a_factorisation_costs_its_elimination_but_for_lower_orders(
    rows: int, columns: int
) -> None:
    elimination = sum(2 * (rows - i) * (columns - i) for i in range(1, min(rows, columns)))
    count = flops_of(lambda: torch.linalg.lu_factor(normal(2, rows, columns)))
    assert 0 <= count.total - 2 * elimination <= 4 * rows * columns


def cost(act: Callable[[], object]) -> int:
    return flops_of(act).total


def test_a_solution_costs_a_factorisation_and_two_triangular_solves() -> None:
    x = torch.eye(6)
    b = normal(6, 2)
    linalg = torch.linalg
    factors = linalg.lu_factor(x)
    factorisation = cost(lambda: linalg.lu_factor(x))
    triangle = cost(lambda: linalg.solve_triangular(x, b, upper=True))
    assert cost(lambda: linalg.lu_solve(*factors, b)) == 2 * triangle
    assert cost(lambda: linalg.solve(x, b)) == factorisation + 2 * triangle
    assert cost(lambda: torch.cholesky_solve(b, x)) == 2 * triangle
    assert cost(lambda: linalg.cholesky(x)) == factorisation // 2
    assert cost(lambda: linalg.det(x)) == factorisation
    assert cost(lambda: linalg.inv(x)) == 3 * factorisation


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_a_formula_is_one_decorated_function(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(operators, "OPERATORS", dict(operators.OPERATORS))
    monkeypatch.setattr(rules, "OPERATORS", operators.OPERATORS)

    @torch.library.custom_op("prooflops_meta_tests::gram", mutates_args=())
    def gram(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows @ rows.mH, rows.abs()

    rows = torch.ones(3, 4, dtype=dtype)
    before = flops_of(lambda: gram(rows))
    operators.operator("prooflops_meta_tests.gram")(
        lambda out, rows: 2 * operators.elements(out[0]) * rows.shape[-1]
    )
    count = flops_of(lambda: gram(rows))
    assert before.total == 0
    assert before.unknown == {"prooflops_meta_tests.gram": 1}
    assert count.total == multiply_adds(rows, rows.mH)
    assert count.unknown == {}


aten = torch.ops.aten
wide = torch.randn(6, 10)
classes = torch.tensor([0, 9, 3, 3, 0, 1])
bag = torch.tensor([[0, 1, 5]])


def there_and_back(function: Callable[[Tensor], Tensor]) -> None:
    out = function(wide.clone().requires_grad_())
    out.backward(torch.ones_like(out))


ELEMENTWISE: dict[str, tuple[Callable[[], object], int]] = {
    "in place, untagged": (lambda: wide.clone().masked_fill_(wide > 0, 0), 60 + 60),
    "the result of a broadcast": (lambda: torch.ones(6, 1) + torch.ones(10), 60),
    "softmax": (lambda: torch.softmax(wide, 1), 5 * 60),
    "its gradient": (lambda: aten._softmax_backward_data(wide, wide, 1, torch.float32), 4 * 60),
    "log softmax": (lambda: torch.log_softmax(wide, 1), 5 * 60 + 6),
    "the gradient of it": (
        lambda: aten._log_softmax_backward_data(wide, wide, 1, torch.float32),
        4 * 60,
    ),
    "layer norm": (lambda: F.layer_norm(wide, (10,), *wide[:2]), 7 * 60 + 2 * 6),
    "group norm": (lambda: F.group_norm(wide, 5, *wide[:2]), 7 * 60 + 2 * 30),
    "GELU": (lambda: F.gelu(wide), 5 * 60),
    "GELU by tanh": (lambda: F.gelu(wide, approximate="tanh"), 9 * 60),
    "gradient of GELU": (lambda: aten.gelu_backward(wide, wide), 11 * 60),
    "SiLU": (lambda: F.silu(wide), 4 * 60),
    "gradient of SiLU": (lambda: aten.silu_backward(wide, wide), 9 * 60),
    "squared error": (lambda: F.mse_loss(wide, wide), 3 * 60),
    "a maximum with places": (lambda: wide.max(1), 60),
    "a norm": (lambda: torch.linalg.vector_norm(wide), 60),
    "a running sum": (lambda: wide.cumsum(0), 60),
    "a list of tensors": (lambda: torch._foreach_mul([wide, wide], 2.0), 120),
    "rows of a bag": (lambda: F.embedding_bag(bag, wide, mode="sum"), 30),
    "gradient of a bag": (
        lambda: there_and_back(lambda x: F.embedding_bag(bag, x, mode="sum")),
        30 + 30,
    ),
    "added at indices": (lambda: wide.clone().index_add_(0, torch.tensor([1, 1]), wide[:2]), 20),
    "added at places": (lambda: wide.scatter_add(0, torch.zeros(2, 3, dtype=torch.long), wide), 6),
    "put at indices": (lambda: wide.clone().index_put_((torch.tensor([1]),), wide[:1]), 0),
    "max pooling": (lambda: F.max_pool2d(wide[None, :, :], 2), 3 * 5 * 4),
    "average pooling and its gradient": (
        lambda: there_and_back(lambda x: F.avg_pool2d(x[None], (2, 5))),
        60 + 60,
    ),
    "a window given by one size": (lambda: aten.avg_pool3d(wide.view(3, 2, 5, 2), [2]), 3 * 2 * 8),
    "batch norm of inference": (
        lambda: F.batch_norm(wide, wide[0], torch.ones(10), *wide[2:4]),
        4 * 60,
    ),
    "gradient of a squared error": (
        lambda: aten.mse_loss_backward(wide[0, 0], wide, wide, 1),
        3 * 60,
    ),
    "a likelihood and its gradient": (
        lambda: there_and_back(lambda x: F.nll_loss(x, classes)),
        6 + 6,
    ),
    "dropout": (lambda: torch.native_dropout(wide, 0.5, True), 60 + 60),
    "whole numbers": (lambda: torch.arange(10) * 2 + 1, 0),
    "views": (
        lambda: wide.t().reshape(3, 20)[1:].unsqueeze(0).expand(4, -1, -1).clone().unsqueeze_(0),
        0,
    ),
    "copies and casts": (lambda: torch.cat([wide, wide]).to(torch.bfloat16).contiguous(), 0),
    "random numbers": (lambda: torch.randn(10).uniform_(), 0),
    "orders": (lambda: (wide.sort(), wide.topk(3), torch.bucketize(wide, torch.arange(3.0))), 0),
    "distances by turns": (
        lambda: there_and_back(lambda x: torch.cdist(x, wide[:4])),
        (3 + 4) * 6 * 4 * 10,
    ),
    "a gather": (lambda: wide[torch.tensor([0, 2])], 0),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work_is_one_flop_per_element_and_no_product(name: str) -> None:
    act, right = ELEMENTWISE[name]
    count = flops_of(act)
    assert count.elementwise == right, count.by_operator()
    assert (count.total, count.unknown) == (0, {}), count.by_operator()


def test_the_gradients_of_other_norms_cost_what_those_of_a_layer_norm_do() -> None:
    leaves = [each.clone().requires_grad_() for each in (wide, wide[0], wide[1])]
    outs = [
        F.layer_norm(leaves[0], (10,), *leaves[1:]),
        F.group_norm(leaves[0], 5, *leaves[1:]),
        F.batch_norm(leaves[0], None, None, *leaves[1:], training=True),
    ]
    layer, *others = (
        flops_of(lambda out=out: torch.autograd.grad(out, leaves, wide)).elementwise for out in outs
    )
    assert others == [layer] * 2


HOW: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
START = [normal(5, 7), normal(3)]
GRADIENTS = [normal(5, 7), normal(3)]


def stepped_once(kind: Any, options: dict[str, Any]) -> tuple[torch.optim.Optimizer, list[Tensor]]:
    """An optimizer of two parameters, 38 elements together, whose state exists."""
    parameters = [each.clone().requires_grad_() for each in START]
    for parameter, gradient in zip(parameters, GRADIENTS, strict=True):
        parameter.grad = gradient.clone()
    optimizer = kind(parameters, lr=0.1, **options)
    optimizer.step()
    return optimizer, parameters


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.AdamW, {"weight_decay": 0.01}),
        (torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_a_fused_optimizer_costs_what_its_loop_over_tensors_does(
    kind: Any, options: dict[str, Any]
) -> None:
    fused, loop = (
        flops_of(stepped_once(kind, {**options, **HOW[how]})[0].step) for how in ("fused", "loop")
    )
    assert fused.elementwise == loop.elementwise >= 38
