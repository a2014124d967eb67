"""What one operator costs: the counter against torch's own, and against products by hand."""

import warnings
from functools import partial
from itertools import islice

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meta_tests.prooflops.counted.counting import flops_of
from prooflops.counted import operators

ones = torch.ones
normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore")
def test_products_are_those_of_torchs_counter_but_for_our_own_formulas():
    torchs = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    for op in torchs.op_db:
        # Jiterators need a GPU.
        if torch.float32 not in op.dtypes or op.name.startswith("jiterator"):
            continue
        for sample in islice(op.sample_inputs("cpu", torch.float32), 2):
            call = partial(op, sample.input, *sample.args, **sample.kwargs)
            with FlopCounterMode(display=False) as should:
                call()
            found = flops_of(call).by_operator()
            got = sum(
                each.products for name, each in found.items() if name not in operators.OPERATORS
            )
            assert got == should.get_total_flops(), f"{got} FLOPs of {op.name}, {found}"


def fused_attention(*operands):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings():
        # The reasons why there is no kernel.
        warnings.simplefilter("ignore")
        return F.scaled_dot_product_attention(*operands, enable_gqa=True)


def quantised_linear():
    weight = torch._make_per_tensor_quantized_tensor(ones(6, 8, dtype=torch.int8), 0.1, 0)
    packed = torch.ops.quantized.linear_prepack(weight)
    return torch.ops.quantized.linear_dynamic(ones(5, 8), packed)


def without_gradients(module, *arguments, **options):
    """The fast path of a module."""
    with torch.no_grad():
        module.eval()(*arguments, **options)


x = normal(4)
square = normal(4, 4)
a = normal(3, 4)
b = normal(4, 5)
batch_a = normal(2, 3, 4)
batch_b = normal(2, 4, 5)
complex_a = normal(3, 4, dtype=torch.complex64)
complex_b = normal(4, 5, dtype=torch.complex64)
half = partial(ones, dtype=torch.bfloat16)
byte = partial(ones, dtype=torch.int8)
ends = torch.tensor([3, 8], dtype=torch.int32)
# Shapes alone: a CPU multiplies fp8 only since 2.7.
fp8 = partial(torch.empty, dtype=torch.float8_e4m3fn, device="meta")
scale = ones((), device="meta")
tokens = normal(2, 5, 16)
attention_layer = nn.MultiheadAttention(16, 2, batch_first=True)
encoder_layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
# 2 sequences of 5 tokens and width 16: scores and values, and four maps.
attended = 2 * (2 * 5 * 5 * 16 + 5 * 4 * 16 * 16)
# A call, and its multiply-adds; one of complex numbers is four.
PRODUCTS = {
    "mv": (lambda: a @ x, 3 * 4),
    "dot": (lambda: torch.dot(x, x), 4),
    "vdot, complex": (lambda: torch.vdot(complex_a[0], complex_a[1]), 4 * 4),
    "addmv": (lambda: torch.addmv(ones(3), a, x), 3 * 4),
    "addr": (lambda: torch.addr(square, x, x), 4 * 4),
    "addmm with an activation": (lambda: torch._addmm_activation(ones(5), a, b), 3 * 4 * 5),
    "addbmm": (lambda: torch.addbmm(ones(3, 5), batch_a, batch_b), 2 * 3 * 4 * 5),
    "_int_mm": (lambda: torch._int_mm(byte(20, 16), byte(16, 8)), 20 * 16 * 8),
    "_weight_int8pack_mm": (
        lambda: torch._weight_int8pack_mm(half(4, 32), byte(8, 32), half(8)),
        4 * 32 * 8,
    ),
    "_scaled_mm": (
        lambda: torch._scaled_mm(fp8(16, 32), fp8(16, 32).t(), scale, scale),
        16 * 32 * 16,
    ),
    "_grouped_mm": (
        lambda: torch._grouped_mm(half(8, 16), half(2, 16, 24), offs=ends),
        8 * 16 * 24,
    ),
    "complex mm": (lambda: complex_a @ complex_b, 4 * 3 * 4 * 5),
    # |x|² - 2·x·y + |y|² is one product of rows that are two longer.
    "cdist": (lambda: torch.cdist(normal(30, 5), normal(26, 5)), 30 * 7 * 26),
    "dynamically quantised linear": (quantised_linear, 5 * 8 * 6),
    "fast path of attention": (
        partial(without_gradients, attention_layer, tokens, tokens, tokens, need_weights=False),
        attended,
    ),
    "fast path of an encoder layer": (
        partial(without_gradients, encoder_layer, tokens),
        attended + 2 * 5 * 2 * 16 * 32,
    ),
}

left = normal(2, 3, requires_grad=True)
right = normal(2, 4, requires_grad=True)
steps = normal(4, 2, 3, requires_grad=True)
query = normal(1, 4, 5, 4, requires_grad=True)
keys = normal(1, 2, 6, 4, requires_grad=True)
attending = 4 * 5 * 6 * 4
image = normal(2, 4, 5, requires_grad=True)


def convolution(kind):
    return partial(kind(4, 8, 3, stride=2, padding=1, groups=4, bias=False), image)


# A call, its multiply-adds, and those of its gradients.
BOTH_PASSES = {
    "bilinear": (
        partial(nn.Bilinear(3, 4, 5), left, right),
        2 * 3 * 20 + 2 * 5 * 4,
        # The left side, the weight (whose first step multiplies alone) and the right side.
        (2 * 5 * 12 + 2 * 3 * 4) + (2 * 15 / 2 + 2 * 15 * 4) + (2 * 3 * 20 + 2 * 5 * 4),
    ),
    # oneDNN's fused layer computes the gradient of the initial state whether or not it is wanted.
    "LSTM": (lambda: lstm(steps)[0], 4 * 2 * (3 + 5) * 20, 2 * 4 * 2 * (3 + 5) * 20),
    "attention, 2 key heads": (
        partial(fused_attention, query, keys, keys),
        2 * attending,
        5 * attending,
    ),
    "convolution, 4 groups": (convolution(nn.Conv1d), 6 * 3 * 8, 2 * 6 * 3 * 8),
    "transposed convolution, 4 groups": (
        convolution(nn.ConvTranspose1d),
        10 * 3 * 8,
        20 * 3 * 8,
    ),
    # Substitution: an element of row i takes i multiply-adds and a division, n/2 on average.
    "triangular solve": (
        lambda: torch.linalg.solve_triangular(square, b.clone().requires_grad_(), upper=False),
        4 * 4 * 5 / 2,
        4 * 4 * 5 / 2,
    ),
}
lstm = nn.LSTM(3, 5)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_costs_two_flops_for_each_multiply_add(name):
    act, multiply_adds = PRODUCTS[name]
    count = flops_of(act)
    assert count.total == 2 * multiply_adds, count.by_operator()


@pytest.mark.parametrize("name", BOTH_PASSES)
def test_gradients_of_products_are_products(name):
    act, forward, backward = BOTH_PASSES[name]
    count = flops_of(lambda: act().sum().backward())
    assert (count.forward, count.backward) == (2 * forward, 2 * backward), count.by_operator()
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
    assert cost(lambda: linalg.lu_factor(x.cfloat())) == 4 * factorisation
    assert cost(lambda: linalg.det(x)) == factorisation
    assert cost(lambda: linalg.inv(x)) == 3 * factorisation


aten = torch.ops.aten
wide = torch.randn(6, 10)
leaf = wide.clone().requires_grad_()
bag = torch.tensor([[0, 1, 5]])


def bag_and_its_gradient():
    torch.autograd.grad(F.embedding_bag(bag, leaf, mode="sum"), leaf, wide[:1])


def pooling_and_its_gradient():
    torch.autograd.grad(F.avg_pool2d(leaf[None], (2, 5)), leaf, wide[None, :3, :2])


def resampling_and_its_gradient():
    found = F.interpolate(leaf[None], scale_factor=2.0, mode="linear")
    torch.autograd.grad(found, leaf, torch.ones_like(found))


def masked_in_place():
    wide.clone().masked_fill_(wide > 0, 0)


def added_at_indices():
    wide.clone().index_add_(0, torch.tensor([1, 1]), wide[:2])


def copies_and_casts():
    torch.cat([wide, wide]).to(torch.bfloat16).t().contiguous()
    torch.t_copy(wide)


def draws_and_orders():
    torch.randn(10).uniform_()
    wide.sort()
    wide.topk(3)


# One case of each kind of formula; the claims of topic roof hold those of the functions.
ELEMENTWISE = {
    "in place, untagged": (masked_in_place, 60 + 60),
    "the result of a broadcast": (partial(torch.add, torch.ones(6, 1), torch.ones(10)), 60),
    "a function": (partial(torch.softmax, wide, 1), 5 * 60),
    "a mean of squares": (partial(F.mse_loss, wide, wide), 3 * 60),
    "dropout": (partial(torch.native_dropout, wide, 0.5, True), 2 * 60),
    "its gradient": (partial(aten._softmax_backward_data, wide, wide, 1, torch.float32), 4 * 60),
    "a norm of rows": (partial(F.layer_norm, wide, (10,), *wide[:2]), 7 * 60 + 2 * 6),
    "a norm by given statistics": (partial(F.batch_norm, wide, *wide[:2].abs()), 2 * 60),
    "a maximum with places": (partial(wide.max, 1), 60),
    "a list of tensors": (partial(torch._foreach_mul, [wide, wide], 2.0), 120),
    "a bag and its gradient": (bag_and_its_gradient, 30 + 30),
    "added at indices": (added_at_indices, 20),
    "average pooling and its gradient": (pooling_and_its_gradient, 60 + 60),
    "resampling and its gradient": (resampling_and_its_gradient, 120 + 120),
    "scattered": (
        partial(torch.zeros(1).scatter_reduce, 0, torch.zeros(60).long(), wide.flatten(), "amax"),
        60,
    ),
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


@pytest.mark.skipif(not hasattr(aten, "_fused_rms_norm_backward"), reason="torch has none")
def test_the_gradient_of_a_fused_norm_costs_what_its_steps_do():
    x, rates, weight = (each.to("meta") for each in (wide, wide[:, :1], wide[0]))
    gradient = partial(aten._fused_rms_norm_backward, x, x, [10], rates)
    # The input times its rate, times the gradient, and their sum over a row; the product of both is
    # subtracted, and the rest times the rate. A weight is one product more.
    of_input = [flops_of(partial(gradient, each, [True, False])) for each in (None, weight)]
    # The input times its rate, times the gradient, and their sum over a column.
    of_weight = flops_of(partial(gradient, weight, [False, True]))
    assert [each.elementwise // 60 for each in (*of_input, of_weight)] == [6, 7, 3]


def step_flops(kind, **options):
    """Elementwise FLOPs of an optimizer's second step on two parameters, 38 elements together."""
    parameters = [normal(5, 7, requires_grad=True), normal(3, requires_grad=True)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = kind(parameters, lr=0.1, **options)
    optimizer.step()
    return flops_of(optimizer.step).elementwise


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_a_fused_optimizer_costs_what_its_loop_over_tensors_does(kind, options):
    loop = step_flops(kind, foreach=False, **options)
    assert step_flops(kind, fused=True, **options) == loop >= 38
