"""What one operator costs: the counter against definitions that count their own operations."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from meta_tests.prooflops.counted.counting import flops_of
from meta_tests.prooflops.counted.operator_definitions import multiply_adds
from meta_tests.prooflops.counted.operator_table import ROWS, normal
from prooflops.counted import operators, rules


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor", "ignore:Sparse ... tensor support is in beta"
)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.operator}: {row.call}")
def test_an_operator_costs_what_its_definition_does(row):
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
def test_a_factorisation_costs_its_elimination_but_for_lower_orders(rows, columns):
    elimination = sum(2 * (rows - i) * (columns - i) for i in range(1, min(rows, columns)))
    count = flops_of(lambda: torch.linalg.lu_factor(normal(2, rows, columns)))
    assert 0 <= count.total - 2 * elimination <= 4 * rows * columns


def cost(act):
    return flops_of(act).total


def test_a_solution_costs_a_factorisation_and_two_triangular_solves():
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
def test_a_formula_is_one_decorated_function(monkeypatch, dtype):
    monkeypatch.setattr(operators, "OPERATORS", dict(operators.OPERATORS))
    monkeypatch.setattr(rules, "OPERATORS", operators.OPERATORS)

    @torch.library.custom_op("prooflops_meta_tests::gram", mutates_args=())
    def gram(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
leaf = wide.clone().requires_grad_()
bag = torch.tensor([[0, 1, 5]])


def bag_and_its_gradient():
    torch.autograd.grad(F.embedding_bag(bag, leaf, mode="sum"), leaf, wide[:1])


def pooling_and_its_gradient():
    torch.autograd.grad(F.avg_pool2d(leaf[None], (2, 5)), leaf, wide[None, :3, :2])


def masked_in_place():
    wide.clone().masked_fill_(wide > 0, 0)


def added_at_indices():
    wide.clone().index_add_(0, torch.tensor([1, 1]), wide[:2])


def copies_and_casts():
    torch.cat([wide, wide]).to(torch.bfloat16).t().contiguous()


def draws_and_orders():
    torch.randn(10).uniform_()
    wide.sort()
    wide.topk(3)


# One case of each kind of formula; the claims of topic roof hold those of the functions.
ELEMENTWISE = {
    "in place, untagged": (masked_in_place, 60 + 60),
    "the result of a broadcast": (partial(torch.add, torch.ones(6, 1), torch.ones(10)), 60),
    "a function": (partial(torch.softmax, wide, 1), 5 * 60),
    "its gradient": (partial(aten._softmax_backward_data, wide, wide, 1, torch.float32), 4 * 60),
    "a norm of rows": (partial(F.layer_norm, wide, (10,), *wide[:2]), 7 * 60 + 2 * 6),
    "a maximum with places": (partial(wide.max, 1), 60),
    "a list of tensors": (partial(torch._foreach_mul, [wide, wide], 2.0), 120),
    "a bag and its gradient": (bag_and_its_gradient, 30 + 30),
    "added at indices": (added_at_indices, 20),
    "average pooling and its gradient": (pooling_and_its_gradient, 60 + 60),
    "whole numbers": (partial(torch.mul, torch.arange(10), 2), 0),
    "copies and casts": (copies_and_casts, 0),
    "random numbers and orders": (draws_and_orders, 0),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work_is_one_flop_per_element_and_no_product(name):
    act, right = ELEMENTWISE[name]
    count = flops_of(act)
    assert count.elementwise == right, count.by_operator()
    assert (count.total, count.unknown) == (0, {}), count.by_operator()


def test_the_gradients_of_other_norms_cost_what_those_of_a_layer_norm_do():
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


HOW = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
START = [normal(5, 7), normal(3)]
GRADIENTS = [normal(5, 7), normal(3)]


def stepped_once(kind, options):
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
def test_a_fused_optimizer_costs_what_its_loop_over_tensors_does(kind, options):
    fused, loop = (
        flops_of(stepped_once(kind, {**options, **HOW[how]})[0].step) for how in ("fused", "loop")
    )
    assert fused.elementwise == loop.elementwise >= 38
