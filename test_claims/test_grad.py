"""Claims about the backward pass: its products, their cost, and what autograd keeps for them."""

from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import prod

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
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import forward_and_backward, linear_net, product_flops
from test_claims.oracles.scalars import Net, Operations, gradients, integers
from test_claims.oracles.tensors import assert_same


def parameters_of(net):
    return sum(parameter.numel() for parameter in net.parameters())


# Sizes of a batch and of the lecture's two layers: B, D and K.
# The last has matrices of more elements than kernels take for few.
SIZES = [
    (1, 1, 1),
    (5, 3, 2),
    (2, 4, 5),
    (3, 5, 1),
    (5, 130, 33),
]
NETS = [
    [1, 1],
    [8, 3],
    [4, 7, 2],
    [5, 5, 1, 6, 3],
    [33, 130, 64],
]


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
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("b", "d", "k"), SIZES)
def test_a_gradient_is_one_product_more_at_two_flops_a_term(device, wanted, b, d, k, summed):
    net = TwoLayers(b, d, k, device)
    if summed:
        # A sum gives every output the same 1, of strides 0.
        net.dh2 = torch.ones((), device=device).expand(b, k)
    tally = Operations()
    (reference,) = net.gradient_of(getattr(net, wanted))
    left, right = net.factors(wanted)
    counted = scalars.matmul(tally.array(left), tally.array(right))
    assert_same("autograd's gradient against the product", reference, scalars.tensor(counted))

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
    # Of w2, h1 and w1.
    listed = matmul_flops(d, b, k)
    listed += matmul_flops(b, k, d)
    listed += matmul_flops(d, b, d)
    square = 2 * b * d * d
    head = 2 * b * d * k
    claimed = 2 * square + 2 * head
    assert listed != claimed, "the three products listed do add up to 4BDD + 4BDK"

    weights_only = product_flops(net.gradient_of, net.w1, net.w2)
    should = square + 2 * head
    assert listed == weights_only == should, f"{listed=}, {weights_only=}, not {should}"

    with_x = product_flops(net.gradient_of, net.w1, net.w2, net.x)
    assert with_x == claimed, f"with dx it is {with_x}"


@pytest.mark.claim("grad.notes-shapes")
@pytest.mark.parametrize(("b", "d", "k"), [*SIZES, (3, 3, 3), (64, 33, 130)])
def test_the_gradient_of_a_weight_is_d_by_batch_times_batch_by_k(b, d, k):
    x = integers(b, d)
    weight = integers(d, k, requires_grad=True)
    dy = integers(b, k)
    (dw,) = torch.autograd.grad(x @ weight, weight, dy)
    assert_same("autograd's gradient against xᵀ·dy", dw, x.T @ dy)

    k_by_d = torch.empty(k, d)
    d_by_batch = torch.empty(d, b)
    stated = (k_by_d @ d_by_batch).shape
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
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ((1,), torch.float32),
        ((6,), torch.bfloat16),
        ((2, 3), torch.float32),
        ((2, 1, 3), torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("widths", NETS, ids=str)
def test_backward_costs_twice_the_forward_less_a_product_where_data_enter(
    device, rows, dtype, widths, fed
):
    net = linear_net(widths, device).to(dtype)
    b = prod(rows)
    layers = list(pairwise(widths))
    x = torch.rand(*rows, widths[0], device=device, dtype=dtype, requires_grad=not fed)
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
    once = linear_flops(16, 64, 32)
    assert once == 65_536, f"linear_flops={once}, but should be 65,536"

    for needed, products in ((False, 1), (True, 2)):
        got = forward_and_backward(net, x.requires_grad_(needed))
        formula = linear_backward_flops(16, 64, 32, input_gradient=needed)
        should = once, products * once
        assert got == should, f"dispatched {got}, but should be {should} [{needed=}]"
        assert formula == got[1], f"linear_backward_flops={formula}, dispatched {got}"


@pytest.mark.claim("grad.reason-param-only")
@pytest.mark.parametrize(("b", "d", "k"), [*SIZES, (64, 33, 130)])
def test_autograd_spends_as_much_on_a_layers_input_as_on_its_weight(device, b, d, k):
    x = integers(b, d, device=device, requires_grad=True)
    weight = integers(k, d, device=device, requires_grad=True)
    y = torch.nn.functional.linear(x, weight)
    dy = torch.ones_like(y)
    gradient = partial(torch.autograd.grad, y, grad_outputs=dy, retain_graph=True)
    of_weight = product_flops(gradient, weight)
    of_input = product_flops(gradient, x)
    should = 2 * b * d * k
    assert of_weight == of_input == should, f"{of_weight=}, {of_input=}, not {should}"

    formula = matmul_backward_flops(b, d, k, a_gradient=False)
    assert formula == should, f"{formula=} for the weight, but should be {should}"

    formula = matmul_backward_flops(b, d, k, b_gradient=False)
    assert formula == should, f"{formula=} for the input, but should be {should}"


@pytest.mark.claim("grad.extra-activation-factor")
@pytest.mark.parametrize(
    ("b", "widths"),
    [
        (1, [2, 3, 2]),
        (6, [8, 2, 5, 4]),
        (3, [7, 8, 6, 5, 4]),
        (9, [64, 40, 33]),
    ],
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
        assert_same("autograd's gradient against the counted net's", leaf.grad, gradients(numbers))

    return net


@pytest.mark.claim("grad.six-micro-ops", "grad.reason-param-only", "grad.six-multiply-adds")
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("b", "widths"),
    [
        (1, [1, 1]),
        (4, [3, 2]),
        (2, [4, 1, 3]),
        (3, [2, 4, 3, 2]),
    ],
    ids=str,
)
def test_each_weight_takes_three_multiply_adds_and_two_where_data_enter(b, widths, fed):
    net = backpropagated(b, widths, input_needs_gradient=not fed)
    layers = list(pairwise(widths))
    uses = b * sum(m * n for m, n in layers)
    spared = fed * b * widths[0] * widths[1]
    should = {
        "forward": uses,
        "weight_gradient": uses,
        "input_gradient": uses - spared,
    }
    for phase, expected in should.items():
        tally = getattr(net, phase)
        got = tally.multiplications, tally.additions
        assert got == (expected, expected), f"{phase}: products and sums {got}, not {expected} each"

    formula = 0
    for at, (m, n) in enumerate(layers):
        step = linear_step(b, m, n, input_gradient=at > 0 or not fed)
        formula += step.hardware
    flops = 2 * (3 * uses - spared)
    assert formula == flops, f"linear_step={formula} for {uses} uses, but should be {flops}"


@pytest.mark.claim("grad.six-rule")
@pytest.mark.parametrize(
    ("layers", "printed"),
    [
        (1, "4.06"),
        (2, "5.02"),
        (4, "5.50"),
        (8, "5.75"),
        (16, "5.88"),
        (32, "5.94"),
    ],
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
    net = torch.nn.Sequential(*[layer] * times)
    x = torch.rand(b, d, device=device, requires_grad=True)
    forward, backward = forward_and_backward(net, x)
    got = forward + backward
    once = 6 * b * parameters_of(net)
    assert got == times * once, f"{times} uses cost {got}, not {times} times 6BN = {once}"


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
