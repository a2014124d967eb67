"""Claims about the backward pass: its products, their cost, and the tensors that autograd keeps."""

from fractions import Fraction
from itertools import pairwise
from math import prod

import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accounting.flops import (
    linear_backward_flops,
    linear_flops,
    linear_step,
    matmul_flops,
)
from accounting.models import DeepLinear, step_flops
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import forward_and_backward, linear_net, product_flops
from test_claims.oracles.messages import agree, equal
from test_claims.oracles.scalars import Operations, integers


def parameters_of(net):
    return sum(parameter.numel() for parameter in net.parameters())


# Sizes of a batch and of the lecture's two layers: B, D and K.
# The last has matrices of more elements than kernels take for few.
SIZES = [
    (1, 1, 1),
    (5, 3, 2),
    (2, 4, 5),
    (3, 5, 1),
    (2, 130, 33),
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
    equal(reference, scalars.tensor(counted), "autograd's gradient")

    m, inner, n = {"w2": (d, b, k), "h1": (b, k, d), "w1": (d, b, d)}[wanted]
    formula = matmul_flops(m, inner, n)
    agree("FLOPs", formula=formula, counted=tally.flops, should=2 * m * inner * n)

    dispatched = product_flops(net.gradient_of, getattr(net, wanted))
    if wanted == "w1":
        # The gradient of h1 is on the way.
        dispatched -= product_flops(net.gradient_of, net.h1)

    equal(dispatched, formula, "FLOPs that autograd dispatches")


@pytest.mark.claim("grad.two-layer-sum")
@pytest.mark.parametrize(("b", "d", "k"), SIZES)
def test_the_three_products_add_up_to_2bdd_plus_4bdk_and_dx_is_the_fourth(device, b, d, k):
    net = TwoLayers(b, d, k, device)
    # The products listed are those of w2, h1 and w1.
    listed = matmul_flops(d, b, k)
    listed += matmul_flops(b, k, d)
    listed += matmul_flops(d, b, d)
    square = 2 * b * d * d
    head = 2 * b * d * k
    claimed = 2 * square + 2 * head
    assert listed != claimed, "the three products listed do add up to 4BDD + 4BDK"

    weights_only = product_flops(net.gradient_of, net.w1, net.w2)
    should = square + 2 * head
    agree("FLOPs of weights", listed=listed, dispatched=weights_only, should=should)

    with_x = product_flops(net.gradient_of, net.w1, net.w2, net.x)
    equal(with_x, claimed, "FLOPs with dx")


@pytest.mark.claim("grad.notes-shapes")
@pytest.mark.parametrize(("b", "d", "k"), [*SIZES, (3, 3, 3), (64, 33, 130)])
def test_the_gradient_of_a_weight_is_d_by_batch_times_batch_by_k(b, d, k):
    x = integers(b, d)
    weight = integers(d, k, requires_grad=True)
    dy = integers(b, k)
    (dw,) = torch.autograd.grad(x @ weight, weight, dy)
    equal(dw, x.T @ dy, "autograd's gradient")

    k_by_d = torch.empty(k, d)
    d_by_batch = torch.empty(d, b)
    stated = (k_by_d @ d_by_batch).shape
    equal(stated == weight.shape, k == d == b, "whether the stated product has the weight's shape")


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
        ((1,), torch.float16),
        ((6,), torch.bfloat16),
        ((2, 3), torch.float32),
        ((2, 1, 3), torch.float64),
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
    should = 4 * b * n - skipped
    agree("FLOPs", backward=backward, of_forward=2 * forward - skipped, should=should)
    assert b == 1 or forward != 2 * n, f"a batch of {b} costs as much as one example"

    formula = 0
    for at, (m, k) in enumerate(layers):
        formula += linear_backward_flops(b, m, k, input_gradient=not fed or at > 0)
    equal(formula, backward, "linear_backward_flops")

    # A frozen layer needs no gradient of its weight.
    net[-1].requires_grad_(False)
    if len(layers) > 1 or not fed:
        should -= linear_flops(b, *layers[-1])
        equal(forward_and_backward(net, x), (forward, should), "FLOPs with a frozen layer")


@pytest.mark.claim("grad.single-layer-exercise", "grad.same-as-forward-misconception")
def test_the_64_to_32_layer_costs_65_536_flops_both_ways_with_data(device):
    net = linear_net([64, 32], device)
    x = torch.rand(16, 64, device=device)
    once = linear_flops(16, 64, 32)
    equal(once, 65_536, "linear_flops")

    for needed, products in ((False, 1), (True, 2)):
        got = forward_and_backward(net, x.requires_grad_(needed))
        formula = linear_backward_flops(16, 64, 32, input_gradient=needed)
        equal(got, (once, products * once), "FLOPs both ways", needed=needed)
        equal(formula, got[1], "linear_backward_flops", needed=needed)


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
    equal(run(net, copies=2), (2 * once, forward, backward), "bytes and FLOPs, stored twice")

    should = x.nbytes, forward, backward + forward
    equal(run(recomputing), should, "bytes and FLOPs, recomputed")

    formula = sum(linear_step(b, *of, recomputed=True).recomputation for of in pairwise(widths))
    equal(formula, forward, "recomputation")

    # The default stops at the last tensor that the backward pass needs.
    _, _, stopped = run(recomputing, early=True)
    spared = backward + forward - stopped
    equal(spared, 2 * b * widths[-2] * widths[-1], "FLOPs that an early stop spares")


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
    """Each product is made of the loops of its definition, with numbers that count."""
    matrices = [integers(m, n, requires_grad=True) for m, n in pairwise(widths)]
    x = integers(b, widths[0], requires_grad=not fed)
    y = x
    for matrix in matrices:
        y = y @ matrix
    above = integers(b, widths[-1])
    y.backward(above)
    tallies = {phase: Operations() for phase in ("forward", "weight_gradient", "input_gradient")}

    def product(phase, a, b):
        tally = tallies[phase]
        return scalars.tensor(scalars.matmul(tally.array(a), tally.array(b)))

    inputs = [x]
    for matrix in matrices:
        inputs.append(product("forward", inputs[-1], matrix))
    for matrix, given in zip(matrices[::-1], inputs[-2::-1], strict=True):
        equal(matrix.grad, product("weight_gradient", given.T, above), "autograd's gradient")
        if given is not x or not fed:
            above = product("input_gradient", above, matrix.T)
    if not fed:
        equal(x.grad, above, "autograd's gradient of the input")

    layers = list(pairwise(widths))
    uses = b * sum(m * n for m, n in layers)
    spared = fed * b * widths[0] * widths[1]
    should = {
        "forward": uses,
        "weight_gradient": uses,
        "input_gradient": uses - spared,
    }
    for phase, expected in should.items():
        tally = tallies[phase]
        equal((tally.multiplications, tally.additions), (expected, expected), phase)

    formula = 0
    for at, (m, n) in enumerate(layers):
        step = linear_step(b, m, n, input_gradient=at > 0 or not fed)
        formula += step.hardware
    equal(formula, 2 * (3 * uses - spared), "linear_step")


@pytest.mark.claim("grad.six-rule", "flops.step-without-B")
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
    d = 32
    for b, inputs in ((1, 5), (30, d)):
        model = DeepLinear(dim=d, layers=layers, inputs=inputs)
        net = workloads.build(model, device=device)
        n = parameters_of(net)
        for needed in (True, False):
            x = torch.rand(b, inputs, device=device, requires_grad=needed)
            flops = sum(forward_and_backward(net, x))
            per_parameter = Fraction(flops, b * n)
            skipped = Fraction(2 * inputs * d * (not needed), n)
            equal(per_parameter, 6 - skipped, "FLOPs per parameter")
            formula = step_flops(model, b, input_gradient=needed).model
            equal(formula, flops, "step_flops", needed=needed)

    equal(f"{float(per_parameter):.2f}", printed, "FLOPs per parameter")


@pytest.mark.claim("grad.param-sharing")
@pytest.mark.parametrize(("b", "d", "times"), [(1, 1, 1), (6, 5, 10), (3, 40, 12)])
def test_a_matrix_used_several_times_costs_six_per_use_not_per_parameter(device, b, d, times):
    layer = torch.nn.Linear(d, d, bias=False, device=device)
    net = torch.nn.Sequential(*[layer] * times)
    x = torch.rand(b, d, device=device, requires_grad=True)
    forward, backward = forward_and_backward(net, x)
    equal(forward + backward, times * 6 * b * parameters_of(net), "FLOPs")


@pytest.mark.claim("grad.graph-built-in-forward")
@pytest.mark.parametrize("widths", NETS, ids=str)
def test_the_forward_pass_builds_the_graph_and_backward_uses_it_up(device, widths):
    net = linear_net(widths, device)
    x = torch.rand(2, widths[0], device=device)
    with torch.no_grad():
        equal(net(x).grad_fn, None, "the graph without gradients")
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
    equal(len(products), len(widths) - 1, "products in the graph")

    y.backward()
    equal(ran, built, "what the backward pass ran")

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
