"""Claims about the backward pass: its products, their cost, and what autograd keeps for them."""

from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accounting.flops import (
    linear_backward_flops,
    linear_flops,
    linear_step,
    matmul_backward_flops,
    matmul_flops,
)
from accounting.models import DeepLinear
from test_claims.oracles import operators, scalars
from test_claims.oracles.dispatched import forward_and_backward, linear_net, product_flops
from test_claims.oracles.scalars import Net, Operations, gradients, integers
from test_claims.oracles.tensors import difference
from test_claims.strategies import with_dtype


def parameters_of(net):
    return sum(parameter.numel() for parameter in net.parameters())


# Sizes of a batch and of the lecture's two layers: B, D and K.
SIZES = [(1, 1, 1), (5, 3, 2), (2, 4, 5), (3, 5, 1)]
NETS = [[1, 1], [8, 3], [4, 7, 2], [5, 5, 1, 6, 3], [33, 130, 64]]


class TwoLayers:
    """The lecture's net, h1 = x·w1 and h2 = h1·w2.

    A gradient of the output stands in for any loss.
    """

    def __init__(self, b, d, k, device="cpu"):
        shapes = (b, d), (d, d), (d, k)
        drawn = [integers(*shape, device=device, requires_grad=True) for shape in shapes]
        self.x, self.w1, self.w2 = drawn
        self.h1 = self.x @ self.w1
        self.h2 = self.h1 @ self.w2
        self.dh2 = integers(b, k, device=device)

    def gradient_of(self, *tensors):
        """By autograd."""
        return torch.autograd.grad(self.h2, tensors, self.dh2, retain_graph=True)

    def factors(self, wanted):
        """The factors of the product that is the gradient of this tensor."""
        if wanted == "w2":
            return self.h1.T, self.dh2
        if wanted == "h1":
            return self.dh2, self.w2.T
        return self.x.T, *self.gradient_of(self.h1)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param("w2", marks=pytest.mark.claim("grad.w2")),
        pytest.param("h1", marks=pytest.mark.claim("grad.h1")),
        pytest.param("w1", marks=pytest.mark.claim("grad.w1")),
    ],
)
@pytest.mark.parametrize(("b", "d", "k"), SIZES)
def test_a_gradient_is_one_product_more_at_two_flops_a_term(device, wanted, b, d, k):
    net = TwoLayers(b, d, k, device)
    tally = Operations()
    (reference,) = net.gradient_of(getattr(net, wanted))
    left, right = net.factors(wanted)
    got = scalars.tensor(scalars.matmul(tally.array(left), tally.array(right)))
    wrong = difference(reference, got)
    assert not wrong, f"autograd's gradient against the product: {wrong}"

    m, inner, n = {"w2": (d, b, k), "h1": (b, k, d), "w1": (d, b, d)}[wanted]
    formula = matmul_flops(m, inner, n)
    should = 2 * m * inner * n
    assert formula == tally.flops == should, f"{formula=}, but {tally.flops} were counted"

    dispatched = product_flops(net.gradient_of, getattr(net, wanted))
    if wanted == "w1":
        # The gradient of h1 is on the way.
        dispatched -= product_flops(net.gradient_of, net.h1)

    assert formula == dispatched, f"{formula=}, but autograd dispatched {dispatched} FLOPs"


@pytest.mark.claim("grad.two-layer-sum")
@pytest.mark.parametrize(("b", "d", "k"), SIZES)
def test_the_three_products_add_up_to_2bdd_plus_4bdk_and_dx_is_the_fourth(device, b, d, k):
    net = TwoLayers(b, d, k, device)
    dw2, dh1, dw1 = matmul_flops(d, b, k), matmul_flops(b, k, d), matmul_flops(d, b, d)
    listed = dw2 + dh1 + dw1
    claimed = 4 * b * d * d + 4 * b * d * k
    assert listed != claimed, "the three products listed do add up to 4BDD + 4BDK"

    weights_only = product_flops(net.gradient_of, net.w1, net.w2)
    should = 2 * b * d * d + 4 * b * d * k
    assert listed == weights_only == should, f"{listed=}, {weights_only=}, not {should}"

    with_x = product_flops(net.gradient_of, net.w1, net.w2, net.x)
    assert with_x == claimed == listed + matmul_flops(b, d, d), f"with dx it is {with_x}"


@pytest.mark.claim("grad.notes-shapes")
@pytest.mark.parametrize(("b", "d", "k"), [*SIZES, (3, 3, 3), (64, 33, 130)])
def test_the_gradient_of_a_weight_is_d_by_batch_times_batch_by_k(b, d, k):
    x = integers(b, d)
    weight = integers(d, k, requires_grad=True)
    dy = integers(b, k)
    (dw,) = torch.autograd.grad(x @ weight, weight, dy)
    wrong = difference(dw, x.T @ dy)
    assert not wrong, f"autograd's gradient against xᵀ·dy: {wrong}"

    stated = (torch.empty(k, d) @ torch.empty(d, b)).shape
    assert stated == (k, b), f"(k × d) by (d × B) has shape {stated}, but should have {(k, b)}"

    same = stated == weight.shape
    assert same == (k == d == b), f"the stated product has {stated}, a weight {weight.shape}"


@pytest.mark.claim(
    "grad.backward-4BN",
    "grad.quadruples",
    "grad.six-rule",
    "grad.wallclock-3x",
    "flops.step-without-B",
)
@pytest.mark.claim("grad.same-as-forward-misconception")
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("rows", [(1,), (6,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("widths", NETS, ids=str)
def test_backward_costs_twice_the_forward_less_a_product_where_data_enter(
    device, rows, widths, fed
):
    net = linear_net(widths, device)
    b = prod(rows)
    layers = list(pairwise(widths))
    x = torch.rand(*rows, widths[0], device=device, requires_grad=not fed)
    forward, backward = forward_and_backward(net, x)
    n = parameters_of(net)
    skipped = fed * linear_flops(b, *layers[0])
    twice = 2 * forward - skipped
    assert backward == twice == 4 * b * n - skipped, f"{backward=}, {forward=}, {skipped=}"
    assert b == 1 or forward != 2 * n, f"a batch of {b} costs as much as one example"

    formula = 0
    for at, (m, k) in enumerate(layers):
        formula += linear_backward_flops(b, m, k, input_gradient=not fed or at > 0)
    assert formula == backward, f"linear_backward_flops={formula}, dispatched were {backward}"


@pytest.mark.claim("grad.backward-4BN", "grad.same-as-forward-misconception")
@pytest.mark.parametrize(
    ("widths", "per_forward"),
    [
        ([8, 8], "1.00"),
        ([8] * 3, "1.50"),
        ([8] * 9, "1.88"),
        ([8] * 33, "1.97"),
        # 2.67 in place of 4.
        ([128, 128, 64], "1.33"),
    ],
)
def test_backward_over_forward_of_nets_fed_with_data(device, widths, per_forward):
    net = linear_net(widths, device)
    forward, backward = forward_and_backward(net, torch.rand(3, widths[0], device=device))
    got = f"{backward / forward:.2f}"
    assert got == per_forward, f"{backward=} / {forward=} is {got}, not {per_forward}"


@pytest.mark.claim("grad.single-layer-exercise", "grad.same-as-forward-misconception")
def test_the_64_to_32_layer_costs_65_536_flops_both_ways_with_data(device):
    net = linear_net([64, 32], device)
    x = torch.rand(16, 64, device=device)
    for needed, backward in ((False, 65_536), (True, 2 * 65_536)):
        got = forward_and_backward(net, x.requires_grad_(needed))
        of_backward = linear_backward_flops(16, 64, 32, input_gradient=needed)
        formula = linear_flops(16, 64, 32), of_backward
        assert got == formula == (65_536, backward), f"dispatched {got}, {formula=} [{needed=}]"


@pytest.mark.claim("grad.reason-param-only")
@pytest.mark.parametrize(("b", "d", "k"), [*SIZES, (64, 33, 130)])
def test_autograd_spends_as_much_on_a_layers_input_as_on_its_weight(device, b, d, k):
    x = integers(b, d, device=device, requires_grad=True)
    weight = integers(k, d, device=device, requires_grad=True)
    y = torch.nn.functional.linear(x, weight)
    should = 2 * b * d * k
    for wanted, left_out in ((weight, "a_gradient"), (x, "b_gradient")):
        got = product_flops(torch.autograd.grad, y, wanted, torch.ones_like(y), True)
        formula = matmul_backward_flops(b, d, k, **{left_out: False})
        assert got == formula == should, f"without {left_out} it costs {got}, {formula=}"


@pytest.mark.claim("grad.extra-activation-factor")
@pytest.mark.parametrize(
    ("b", "widths"), [(1, [2, 3, 2]), (6, [8, 2, 5, 4]), (3, [7, 8, 6, 5, 4]), (9, [64, 40, 33])]
)
def test_storing_activations_costs_no_flops_recomputing_one_forward(device, b, widths):
    """The same net: as it is, its activations stored twice over, its input alone stored."""
    net = linear_net(widths, device)
    x = torch.rand(b, widths[0], device=device, requires_grad=True)

    def run(through, copies=1, early=False):
        """The bytes stored, and the FLOPs of both passes."""
        stored = []

        def keep(tensor):
            stored.append(copies * tensor.nbytes)
            return [tensor.clone() for _ in range(copies)]

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept[0])
        with hooks, set_checkpoint_early_stop(early):
            forward, backward = forward_and_backward(through, x)
        return sum(stored), forward, backward

    def recomputing(x):
        return checkpoint(net, x, use_reentrant=False)

    once, forward, backward = run(net)
    got = run(net, copies=2)
    should = 2 * once, forward, backward
    assert got == should, f"stored twice over, bytes and FLOPs are {got}, not {should}"

    got = run(recomputing)
    should = x.nbytes, forward, backward + forward
    assert got == should, f"recomputed, bytes and FLOPs are {got}, not {should}"

    formula = sum(linear_step(b, *of, recomputed=True).recomputation for of in pairwise(widths))
    assert formula == forward, f"recomputation={formula}, but should be {forward}"

    # By default it stops at the last tensor that the backward pass needs.
    _, _, stopped = run(recomputing, early=True)
    spared = backward + forward - stopped
    last = 2 * b * widths[-2] * widths[-1]
    assert spared == last, f"stopped early it spares {spared}, but should the last layer's {last}"


def backpropagated(b, widths, input_needs_gradient):
    """A net run forward and backward number by number, checked against autograd."""
    matrices = [integers(m, n, requires_grad=True) for m, n in pairwise(widths)]
    x = integers(b, widths[0], requires_grad=input_needs_gradient)
    dy = integers(b, widths[-1])
    net = Net.of(matrices)

    def nodes_of(row):
        return [net.node(value, input_needs_gradient) for value in row]

    nodes = list(map(nodes_of, x.tolist()))
    net.run(nodes, dy)
    y = x
    for matrix in matrices:
        y = y @ matrix
    y.backward(dy)
    leaves = list(zip(matrices, net.weights, strict=True))
    if input_needs_gradient:
        leaves.append((x, nodes))
    for leaf, numbers in leaves:
        wrong = difference(leaf.grad, gradients(numbers))
        assert not wrong, f"autograd's gradient against the counted net's: {wrong}"

    return net


@pytest.mark.claim("grad.six-micro-ops", "grad.reason-param-only", "grad.six-multiply-adds")
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("b", "widths"), [(1, [1, 1]), (4, [3, 2]), (2, [4, 1, 3]), (3, [2, 4, 3, 2])], ids=str
)
def test_each_weight_takes_three_multiply_adds_and_two_where_data_enter(b, widths, fed):
    net = backpropagated(b, widths, input_needs_gradient=not fed)
    layers = list(pairwise(widths))
    uses = b * sum(m * n for m, n in layers)
    of_first = b * widths[0] * widths[1]
    tallies = {"forward": net.forward, "weights": net.weight_gradient, "inputs": net.input_gradient}
    for phase, tally in tallies.items():
        got = tally.multiplications, tally.additions
        should = uses - of_first if fed and phase == "inputs" else uses
        assert got == (should, should), f"{phase}: products and sums {got}, not {should} each"

    multiply_adds = sum(tally.multiplications for tally in tallies.values())
    assert fed or multiply_adds == 3 * uses, f"{uses} uses take {multiply_adds}, not 3 each"

    formula = 0
    for at, (m, n) in enumerate(layers):
        formula += linear_step(b, m, n, input_gradient=at > 0 or not fed).hardware
    should = 2 * multiply_adds
    assert formula == should, f"linear_step={formula} for {uses} uses, but should be {should}"


@pytest.mark.claim("grad.six-rule")
@pytest.mark.parametrize(
    ("layers", "printed"),
    [(1, "4.06"), (2, "5.02"), (4, "5.50"), (8, "5.75"), (16, "5.88"), (32, "5.94")],
)
def test_a_training_step_approaches_six_with_depth(workloads, device, layers, printed):
    net = workloads.build(DeepLinear(dim=32, layers=layers), device=device)
    b = 3
    d = 32
    n = parameters_of(net)
    flops = sum(forward_and_backward(net, torch.rand(b, d, device=device)))
    per_parameter = Fraction(flops, b * n)
    should = 6 - Fraction(2 * d * d, n)
    assert per_parameter == should, f"{per_parameter}, but should be 6 − 2·D²/N = {should}"

    got = f"{float(per_parameter):.2f}"
    assert got == printed, f"{got}, but should print as {printed}"


@pytest.mark.claim("grad.param-sharing")
@pytest.mark.parametrize(("b", "d", "times"), [(1, 1, 1), (6, 5, 10), (3, 40, 12)])
def test_a_matrix_used_several_times_costs_six_per_use_not_per_parameter(device, b, d, times):
    layer = torch.nn.Linear(d, d, bias=False, device=device)
    x = torch.rand(b, d, device=device, requires_grad=True)
    got = sum(forward_and_backward(torch.nn.Sequential(*[layer] * times), x))
    should = times * 6 * b * parameters_of(layer)
    assert got == should, f"{times} uses cost {got}, not {times} times 6BN = {should}"


@pytest.mark.claim("grad.quadratic-example")
def test_the_gradient_of_x_squared_plus_3x_at_2_is_7(device):
    x = torch.tensor(2.0, device=device, requires_grad=True)
    (x**2 + 3 * x).backward()
    by_hand = 2 * 2 + 3
    # A parabola's difference is exact.
    by_difference = ((2.5**2 + 3 * 2.5) - (1.5**2 + 3 * 1.5)) / (2.5 - 1.5)
    got = x.grad.item()
    assert got == by_hand == by_difference == 7, f"x.grad={got}, but should be 7"


@pytest.mark.claim("grad.linear-mse-example")
def test_the_linear_model_with_target_5_has_gradient_1_2_3(device):
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    w = torch.ones(3, device=device, requires_grad=True)
    loss = 0.5 * (x @ w - 5).pow(2)
    loss.backward()
    assert loss.item() == 0.5, f"loss={loss.item()}, but should be ½·(6 − 5)²"

    # A weight by ±½: exact.
    by_difference = [((1 + by / 2) ** 2 - (1 - by / 2) ** 2) / 2 for by in (1, 2, 3)]
    got = w.grad.tolist()
    assert got == by_difference == [1, 2, 3], f"w.grad={got}, not (6 − 5)·x = [1, 2, 3]"
    assert x.grad is None, f"x.grad={x.grad}, but data that needs no gradient should have none"


@pytest.mark.claim("grad.graph-built-in-forward")
@pytest.mark.parametrize("widths", NETS, ids=str)
def test_the_forward_pass_builds_the_graph_and_backward_uses_it_up(device, widths):
    net = linear_net(widths, device)
    x = torch.rand(2, widths[0], device=device)
    with torch.no_grad():
        assert net(x).grad_fn is None, "a graph was built although gradients were off"
    y = net(x).sum()
    built = []
    ran = []
    node = y.grad_fn
    while node is not None:
        name = node.name()
        built.append(name)
        node.register_prehook(lambda _, name=name: ran.append(name))
        inner = [of for of, _ in node.next_functions if of and "Accumulate" not in of.name()]
        node = inner[0] if inner else None

    products = [name for name in built if "mm" in name.lower() or "linear" in name.lower()]
    should = len(widths) - 1
    assert len(products) == should, f"the graph {built} has {products}, but should have {should}"

    y.backward()
    assert ran == built, f"the backward pass ran {ran}, but should run {built}, once each"

    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


# A module with its arguments, and the shape of its input.
MODULES = {
    "Linear": (partial(torch.nn.Linear, 3, 4), (2, 3)),
    "Conv2d": (partial(torch.nn.Conv2d, 2, 4, 3, groups=2), (1, 2, 5, 5)),
    "LayerNorm": (partial(torch.nn.LayerNorm, 4), (2, 4)),
    "PReLU": (partial(torch.nn.PReLU, 2), (3, 2)),
    "Embedding": (partial(torch.nn.Embedding, 3, 2, sparse=True), (4,)),
}
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.claim("grad.same-shape")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_a_gradient_has_the_shape_and_dtype_of_its_parameter(device, name, dtype):
    device = with_dtype(device, dtype)
    make, shape = MODULES[name]
    module = make().to(device, dtype)
    sparse = name == "Embedding"
    x = torch.rand(shape, device=device, dtype=dtype).to(torch.long if sparse else dtype)
    module(x).float().sum().backward()
    for of, parameter in module.named_parameters():
        got = parameter.grad.shape, parameter.grad.dtype, parameter.grad.is_sparse
        should = parameter.shape, parameter.dtype, sparse
        assert got == should, f"{name}.{of}.grad has {got}, but should have {should}"


@pytest.mark.claim("grad.same-shape")
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(
    ("shape", "rows", "own", "other"),
    [
        ((), 1, torch.float32, torch.bfloat16),
        ((3, 0), 2, torch.bfloat16, torch.float32),
        ((2, 1, 3), 6, torch.float16, torch.float32),
        ((130, 40), 5, torch.bfloat16, torch.float16),
        ((7,), 100, torch.float16, torch.bfloat16),
    ],
    ids=str,
)
def test_it_has_them_where_a_parameter_is_broadcast_and_cast(
    device, shape, rows, own, other, asked
):
    parameter = torch.ones(shape, device=device, dtype=own, requires_grad=True)
    should = own
    # Newer releases of torch have it.
    if asked and hasattr(parameter, "grad_dtype"):
        parameter.grad_dtype = should = other
    (2 * parameter.expand(rows, *shape).to(other)).sum().backward()
    got = parameter.grad.dtype
    assert got == should, f"a gradient is {got}, but should be {should}"

    wrong = difference(parameter.grad, torch.full(shape, 2.0 * rows))
    assert not wrong, f"the gradient's {wrong}"


@pytest.mark.claim("grad.no-manual")
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("batch", [1, 6, 300])
@pytest.mark.parametrize("widths", NETS, ids=str)
def test_backward_leaves_the_gradients_derived_by_hand_in_a_net(device, widths, batch, dtype, most):
    random = np.random.default_rng(0)
    arrays = [random.normal(size=shape) for shape in ((batch, widths[0]), *pairwise(widths))]
    kept = [arrays[0]]
    for weight in arrays[1:]:
        kept.append(np.tanh(kept[-1] @ weight))
    # Of the mean of squares.
    above = 2 * kept[-1] / kept[-1].size
    by_hand = []
    for weight, before, after in zip(arrays[:0:-1], kept[-2::-1], kept[:0:-1], strict=True):
        above = above * (1 - after**2)
        by_hand.insert(0, before.T @ above)
        above = above @ weight.T

    there = with_dtype(device, dtype)
    x, *weights = (torch.tensor(array, device=there, dtype=dtype) for array in arrays)
    for weight in weights:
        x = (x @ weight.requires_grad_()).tanh()
    x.square().mean().backward()
    for weight, should in zip(weights, by_hand, strict=True):
        off = np.abs(np.array(weight.grad.tolist()) - should).max()
        bound = most * max(1.0, np.abs(should).max())
        assert off < bound, f"a gradient is {off} from that by hand, beyond {bound}"


@pytest.mark.claim("grad.no-manual")
@pytest.mark.parametrize("name", [*operators.NEW, *operators.VIEWS])
def test_values_and_gradients_of_an_operator_are_those_of_its_definition(device, name):
    """The gradients of the definition are differences of values in numpy, without torch."""
    operator = (operators.NEW | operators.VIEWS)[name]
    arguments = operator.arguments(with_dtype(device), requires_grad=True)
    result = operator.call(*arguments)
    should = operator.definition(*operator.numbers())
    above = np.random.default_rng(1).normal(size=should.shape)
    result.backward(torch.tensor(above, dtype=result.dtype, device=result.device))
    got = {"the value": (result, should)}
    for number, gradient in enumerate(operators.differences(operator, above)):
        got[f"the gradient of argument {number}"] = (arguments[number].grad, gradient)
    for what, (tensor, expected) in got.items():
        values = np.array(tensor.tolist())
        close = np.allclose(values, expected, 1e-6, 1e-6)
        assert close, f"{what} of {name}={values}, but should be {expected}"


@pytest.mark.claim("grad.wallclock-3x")
@pytest.mark.parametrize("times", [1, 2])
def test_forward_and_backward_take_two_to_four_times_the_forward(device, sizing, speed, times):
    """Three products against one, to half: libraries differ in how fast transposes multiply."""
    n = 160 + 32 * times
    if device.type != "cpu":
        n = sizing.fitting(4096 * times, lambda n: 7 * 4 * n * n, least=2048)
    layer = torch.nn.Linear(n, n, bias=False, device=device)
    x = torch.rand(n, n, device=device, requires_grad=True)
    dy = torch.rand(n, n, device=device)

    def both():
        torch.autograd.grad(layer(x), (x, layer.weight), dy)

    claim = f"forward and backward of width {n} against forward, in time"
    speed.assert_slower(both, lambda: layer(x), claim, at_least=2, at_most=4.5)
