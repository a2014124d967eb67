"""Claims about the backward pass: its products, their cost, and the tensors that autograd keeps for them."""

from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
from test_claims.strategies import TORCH_DTYPES, dtypes_among, seeds, shapes, sizes, with_dtype


def parameters_of(net):
    return sum(parameter.numel() for parameter in net.parameters())


widths_of_nets = st.lists(sizes(most=8), min_size=2, max_size=5)


class TwoLayers:
    """The lecture's net, h1 = x·w1 and h2 = h1·w2, with a gradient of the output that stands in for any loss."""

    def __init__(self, b, d, k, device="cpu"):
        shapes = (b, d), (d, d), (d, k)
        self.x, self.w1, self.w2 = (
            integers(*shape, device=device, requires_grad=True) for shape in shapes
        )
        self.h1 = self.x @ self.w1
        self.h2 = self.h1 @ self.w2
        self.dh2 = integers(b, k, device=device)

    def gradient_of(self, *tensors):
        """By autograd."""
        return torch.autograd.grad(self.h2, tensors, self.dh2, retain_graph=True)


# Both factors, and the product's m, k and n.
GRADIENTS = {
    "grad.w2": (lambda net: (net.h1.T, net.dh2), lambda b, d, k: (d, b, k)),
    "grad.h1": (lambda net: (net.dh2, net.w2.T), lambda b, d, k: (b, k, d)),
    "grad.w1": (lambda net: (net.x.T, *net.gradient_of(net.h1)), lambda b, d, k: (d, b, d)),
}


@pytest.mark.parametrize(
    ("wanted", "factors", "shape"),
    [
        pytest.param(c[-2:], *row, marks=pytest.mark.claim(c), id=c[-2:])
        for c, row in GRADIENTS.items()
    ],
)
@given(b=sizes(most=5), d=sizes(most=5), k=sizes(most=5))
def test_a_gradient_is_one_product_more_at_two_flops_a_term(
    device, wanted, factors, shape, b, d, k
):
    net, tally, (m, inner, n) = TwoLayers(b, d, k, device), Operations(), shape(b, d, k)
    (reference,) = net.gradient_of(getattr(net, wanted))
    got = scalars.tensor(scalars.matmul(*map(tally.array, factors(net))))
    dispatched = product_flops(net.gradient_of, getattr(net, wanted))
    if wanted == "w1":
        dispatched -= product_flops(net.gradient_of, net.h1)  # on the way
    formula = matmul_flops(m, inner, n)
    said = f"[d{wanted}, {b=}, {d=}, {k=}]"
    wrong = difference(reference, got)
    assert not wrong, f"autograd's gradient against the product: {wrong} {said}"
    assert formula == tally.flops == 2 * m * inner * n, (
        f"{formula=}, but {tally.flops} FLOPs were counted {said}"
    )
    assert formula == dispatched, f"{formula=}, but autograd dispatched {dispatched} FLOPs {said}"


@pytest.mark.claim("grad.two-layer-sum")
@given(b=sizes(most=5), d=sizes(most=5), k=sizes(most=5))
def test_the_three_products_add_up_to_2bdd_plus_4bdk_and_dx_is_the_fourth(device, b, d, k):
    net = TwoLayers(b, d, k, device)
    listed = matmul_flops(d, b, k) + matmul_flops(b, k, d) + matmul_flops(d, b, d)  # dw2, dh1, dw1
    claimed = 4 * b * d * d + 4 * b * d * k
    dx = matmul_flops(b, d, d)
    assert listed != claimed, (
        f"the three products listed do add up to 4BDD + 4BDK [{b=}, {d=}, {k=}]"
    )
    weights_only = product_flops(net.gradient_of, net.w1, net.w2)
    should = 2 * b * d * d + 4 * b * d * k
    assert listed == weights_only == should, (
        f"{listed=}, {weights_only=}, but should be {should} [{b=}, {d=}, {k=}]"
    )
    with_x = product_flops(net.gradient_of, net.w1, net.w2, net.x)
    assert with_x == claimed == listed + dx, (
        f"with dx autograd dispatched {with_x}, but should dispatch {claimed}"
    )


@pytest.mark.claim("grad.notes-shapes")
@given(b=sizes(), d=sizes(), k=sizes())
def test_the_gradient_of_a_weight_is_d_by_batch_times_batch_by_k(b, d, k):
    x = integers(b, d)
    weight = integers(d, k, requires_grad=True)
    dy = integers(b, k)
    (dw,) = torch.autograd.grad(x @ weight, weight, dy)
    wrong = difference(dw, x.T @ dy)
    assert not wrong, f"autograd's gradient against xᵀ·dy: {wrong} [{b=}, {d=}, {k=}]"
    stated = (torch.empty(k, d) @ torch.empty(d, b)).shape
    assert stated == (k, b), f"(k × d) by (d × B) has shape {stated}, but should have {(k, b)}"
    assert (stated == weight.shape) == (k == d == b), (
        f"the stated product has {stated}, a weight {weight.shape}"
    )


@pytest.mark.claim(
    "grad.backward-4BN",
    "grad.quadruples",
    "grad.six-rule",
    "grad.wallclock-3x",
    "flops.step-without-B",
)
@pytest.mark.claim("grad.same-as-forward-misconception")
@given(rows=shapes((1, 3), (1, 3)), widths=widths_of_nets, fed=st.booleans())
def test_backward_costs_twice_the_forward_less_a_product_where_data_enter(
    device, rows, widths, fed
):
    net = linear_net(widths, device)
    b = prod(rows)
    layers = list(pairwise(widths))
    forward, backward = forward_and_backward(
        net, torch.rand(*rows, widths[0], device=device, requires_grad=not fed)
    )
    n = parameters_of(net)
    skipped = fed * linear_flops(b, *layers[0])
    what = f"[{rows=}, {widths=}, {fed=}]"
    assert backward == 2 * forward - skipped == 4 * b * n - skipped, (
        f"{backward=}, {forward=}, {skipped=} {what}"
    )
    assert b == 1 or forward != 2 * n, f"a batch of {b} costs as much as one example {what}"
    formula = sum(
        linear_backward_flops(b, *of, input_gradient=not fed or at > 0)
        for at, of in enumerate(layers)
    )
    assert formula == backward, (
        f"linear_backward_flops={formula}, but autograd dispatched {backward} {what}"
    )


@pytest.mark.claim("grad.backward-4BN", "grad.same-as-forward-misconception")
@pytest.mark.parametrize(
    ("layers", "per_forward"), [(1, "1.00"), (2, "1.50"), (8, "1.88"), (32, "1.97"), (0, "1.33")]
)
def test_backward_over_forward_of_nets_fed_with_data(device, layers, per_forward):
    net = linear_net(
        [8] * (layers + 1) if layers else [128, 128, 64], device
    )  # the latter: 2.67 in place of 4
    forward, backward = forward_and_backward(net, torch.rand(3, net[0].in_features, device=device))
    assert f"{backward / forward:.2f}" == per_forward, (
        f"{backward=}, {forward=}, not {per_forward} [{layers=}]"
    )


@pytest.mark.claim("grad.single-layer-exercise", "grad.same-as-forward-misconception")
def test_the_64_to_32_layer_costs_65_536_flops_both_ways_with_data(device):
    net = linear_net([64, 32], device)
    x = torch.rand(16, 64, device=device)
    for needed, backward in ((False, 65_536), (True, 2 * 65_536)):
        got = forward_and_backward(net, x.requires_grad_(needed))
        formula = linear_flops(16, 64, 32), linear_backward_flops(16, 64, 32, input_gradient=needed)
        assert got == formula == (65_536, backward), (
            f"dispatched {got}, {formula=} [gradient of x {needed}]"
        )


@pytest.mark.claim("grad.reason-param-only")
@given(b=sizes(), d=sizes(), k=sizes())
def test_autograd_spends_as_much_on_a_layers_input_as_on_its_weight(device, b, d, k):
    x = integers(b, d, device=device, requires_grad=True)
    weight = integers(k, d, device=device, requires_grad=True)
    y = torch.nn.functional.linear(x, weight)
    got = tuple(
        product_flops(torch.autograd.grad, y, of, torch.ones_like(y), True) for of in (weight, x)
    )
    formula = (
        matmul_backward_flops(b, d, k, a_gradient=False),
        matmul_backward_flops(b, d, k, b_gradient=False),
    )
    should = 2 * b * d * k, 2 * b * d * k
    assert got == formula == should, (
        f"weight and input cost {got}, {formula=}, but should be {should}"
    )


@pytest.mark.claim("grad.extra-activation-factor")
@given(b=sizes(), widths=st.lists(sizes(2, 8), min_size=3, max_size=5))
def test_storing_activations_costs_no_flops_recomputing_one_forward(device, b, widths):
    """The same net three times: as it is, with its activations stored twice over, with the input alone stored."""
    net = linear_net(widths, device)
    stored = []
    x = torch.rand(b, widths[0], device=device, requires_grad=True)

    def run(through, pack, early=False):
        stored.append(0)
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0]),
            set_checkpoint_early_stop(early),
        ):
            return forward_and_backward(through, x)

    def keep(tensor, copies=1):
        stored[-1] += copies * tensor.nbytes
        return tuple(tensor.clone() for _ in range(copies))

    plain = run(net, keep)
    twice = run(net, lambda tensor: keep(tensor, copies=2))
    again, stopped = (
        run(lambda x: checkpoint(net, x, use_reentrant=False), keep, early)
        for early in (False, True)
    )
    steps = [linear_step(b, m, n, recomputed=True) for m, n in pairwise(widths)]
    recomputed = sum(step.recomputation for step in steps)
    assert stored[2] == x.nbytes < stored[0] == stored[1] / 2, (
        f"{stored} bytes, but should be once, twice, {x.nbytes=}"
    )
    assert twice == plain, (
        f"stored twice over, the passes cost {twice}, but should cost {plain} as before [{widths=}]"
    )
    assert again == (plain[0], plain[1] + plain[0]), (
        f"recomputed, they cost {again}, not one forward more [{plain=}]"
    )
    assert recomputed == again[1] - plain[1], (
        f"recomputation={recomputed}, but should be {again[1] - plain[1]}"
    )
    spared = (
        again[1] - stopped[1]
    )  # by default it stops when the last tensor is there that the backward pass needs
    assert spared == 2 * b * widths[-2] * widths[-1], (
        f"stopped early it spares {spared}, but should the last layer"
    )


def backpropagated(b, widths, input_needs_gradient):
    """A net run forward and backward number by number, checked against autograd."""
    matrices = [integers(m, n, requires_grad=True) for m, n in pairwise(widths)]
    x = integers(b, widths[0], requires_grad=input_needs_gradient)
    dy = integers(b, widths[-1])
    net = Net.of(matrices)
    nodes = [[net.node(value, input_needs_gradient) for value in row] for row in x.tolist()]
    net.run(nodes, dy)
    y = x
    for matrix in matrices:
        y = y @ matrix
    y.backward(dy)
    for matrix, numbers in [
        *zip(matrices, net.weights, strict=True),
        *[(x, nodes)] * input_needs_gradient,
    ]:
        wrong = difference(matrix.grad, gradients(numbers))
        assert not wrong, (
            f"autograd's gradient against the counted net's: {wrong} [{b=}, {widths=}]"
        )
    return net


@pytest.mark.claim("grad.six-micro-ops", "grad.reason-param-only", "grad.six-multiply-adds")
@given(b=sizes(most=4), widths=st.lists(sizes(most=4), min_size=2, max_size=4), fed=st.booleans())
def test_each_weight_takes_three_multiply_adds_and_two_where_data_enter(b, widths, fed):
    net = backpropagated(b, widths, input_needs_gradient=not fed)
    layers = list(pairwise(widths))
    uses = b * sum(m * n for m, n in layers)
    of_first = b * widths[0] * widths[1]
    rows = (
        ("forward", net.forward, 0),
        ("weights'", net.weight_gradient, 0),
        ("inputs'", net.input_gradient, fed),
    )
    for phase, tally, skipped in rows:
        got = (tally.multiplications, tally.additions)
        should = uses - skipped * of_first
        assert got == (should, should), (
            f"{phase} products, sums: {got}, not {should} each [{b=}, {widths=}, {fed=}]"
        )
    formula = sum(
        linear_step(b, m, n, input_gradient=bool(at) or not fed).hardware
        for at, (m, n) in enumerate(layers)
    )
    assert formula == 6 * uses - 2 * fed * of_first, (
        f"linear_step={formula} for {uses} uses [{b=}, {widths=}, {fed=}]"
    )
    multiply_adds = sum(tally.multiplications for _, tally, _ in rows)
    assert fed or multiply_adds == 3 * uses, (
        f"{uses} uses take {multiply_adds} multiply-adds, not 3 each (6: 12 FLOPs)"
    )


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
    per_parameter = Fraction(sum(forward_and_backward(net, torch.rand(b, d, device=device))), b * n)
    assert per_parameter == 6 - Fraction(2 * d * d, n), (
        f"{per_parameter}, but should be 6 − 2·D²/N [{layers=}]"
    )
    assert f"{float(per_parameter):.2f}" == printed, (
        f"{float(per_parameter):.2f}, but should print as {printed}"
    )


@pytest.mark.claim("grad.param-sharing")
@given(b=sizes(), d=sizes(), times=sizes(most=12))
def test_a_matrix_used_several_times_costs_six_per_use_not_per_parameter(device, b, d, times):
    layer = torch.nn.Linear(d, d, bias=False, device=device)

    def step(uses):
        x = torch.rand(b, d, device=device, requires_grad=True)
        return sum(forward_and_backward(torch.nn.Sequential(*[layer] * uses), x))

    assert step(times) == times * 6 * b * d * d, (
        f"{times} uses cost {step(times)}, not {times} times 6BN [{b=}, {d=}]"
    )
    assert step(10) == 60 * b * d * d != 6 * b * d * d, (
        f"ten uses cost {step(10) / (b * d * d)} BN, but should cost 60"
    )


@pytest.mark.claim("grad.quadratic-example")
def test_the_gradient_of_x_squared_plus_3x_at_2_is_7(device):
    x = torch.tensor(2.0, device=device, requires_grad=True)
    (x**2 + 3 * x).backward()
    by_hand, by_difference = (
        2 * 2 + 3,
        ((2.5**2 + 3 * 2.5) - (1.5**2 + 3 * 1.5)) / (2.5 - 1.5),
    )  # exact for a parabola
    assert x.grad.item() == by_hand == by_difference == 7, (
        f"x.grad={x.grad.item()}, but should be 7"
    )


@pytest.mark.claim("grad.linear-mse-example")
def test_the_linear_model_with_target_5_has_gradient_1_2_3(device):
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    w = torch.ones(3, device=device, requires_grad=True)
    loss = 0.5 * (x @ w - 5).pow(2)
    loss.backward()
    assert loss.item() == 0.5, f"loss={loss.item()}, but should be ½·(6 − 5)²"
    by_difference = [
        ((1 + moved / 2) ** 2 - (1 - moved / 2) ** 2) / 2 for moved in (1, 2, 3)
    ]  # a weight by ±½: exact
    assert w.grad.tolist() == by_difference == [1, 2, 3], (
        f"w.grad={w.grad.tolist()}, not (6 − 5)·x = [1, 2, 3]"
    )
    assert x.grad is None, f"x.grad={x.grad}, but data that needs no gradient should have none"


@pytest.mark.claim("grad.graph-built-in-forward")
@given(widths=widths_of_nets)
def test_the_forward_pass_builds_the_graph_and_backward_uses_it_up(device, widths):
    net = linear_net(widths, device)
    x = torch.rand(2, widths[0], device=device)
    with torch.no_grad():
        assert net(x).grad_fn is None, "a graph was built although gradients were off"
    y = net(x).sum()
    names = []
    node = y.grad_fn
    ran = []
    while node is not None:
        names.append(name := node.name())
        node.register_prehook(lambda _, name=name: ran.append(name))
        node = next(
            (
                after
                for after, _ in node.next_functions
                if after and "Accumulate" not in after.name()
            ),
            None,
        )
    layers = sum("mm" in name.lower() or "linear" in name.lower() for name in names)
    assert layers == len(widths) - 1, (
        f"the graph {names} has {layers} products, but should have {len(widths) - 1}"
    )
    y.backward()
    assert ran == names, f"the backward pass ran {ran}, but should run {names}, once each"
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


MODULES = {
    "Linear": (lambda: torch.nn.Linear(3, 4), (2, 3)),
    "Conv2d": (lambda: torch.nn.Conv2d(2, 4, 3, groups=2), (1, 2, 5, 5)),
    "LayerNorm": (lambda: torch.nn.LayerNorm(4), (2, 4)),
    "PReLU": (lambda: torch.nn.PReLU(2), (3, 2)),
    "Embedding": (lambda: torch.nn.Embedding(3, 2, sparse=True), (4,)),
}


@pytest.mark.claim("grad.same-shape")
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("name", MODULES)
def test_a_gradient_has_the_shape_and_dtype_of_its_parameter(device, name, dtype):
    device = with_dtype(device, dtype)
    sparse = name == "Embedding"
    make, shape = MODULES[name]
    module = make().to(device, dtype)
    of = torch.long if sparse else dtype
    module(torch.rand(shape, device=device, dtype=dtype).to(of)).float().sum().backward()
    for parameter_name, parameter in module.named_parameters():
        got = parameter.grad.shape, parameter.grad.dtype, parameter.grad.is_sparse
        should_be = parameter.shape, parameter.dtype, sparse
        assert got == should_be, (
            f"{name}.{parameter_name}.grad has {got}, but should have {should_be}"
        )


@pytest.mark.claim("grad.same-shape")
@given(
    shape=shapes((0, 3), (0, 3)),
    rows=sizes(),
    both=st.tuples(*[dtypes_among(["fp32", "bf16", "fp16"])] * 2),
)
@pytest.mark.parametrize("asked", [False, True])
def test_it_has_them_where_a_parameter_is_broadcast_and_cast(device, shape, rows, both, asked):
    should, other = (TORCH_DTYPES[name] for name in both)
    parameter = torch.ones(shape, device=device, dtype=should, requires_grad=True)
    if asked and hasattr(parameter, "grad_dtype"):  # newer releases of torch have it
        parameter.grad_dtype = should = other
    (2 * parameter.expand(rows, *shape).to(other)).sum().backward()
    assert parameter.grad.dtype == should, (
        f"a gradient is {parameter.grad.dtype}, not {should} [{both=}, {asked=}]"
    )
    wrong = difference(parameter.grad, torch.full(shape, 2.0 * rows))
    assert not wrong, f"the gradient's {wrong} [{shape=}, {rows=}, {both=}]"


@pytest.mark.claim("grad.no-manual")
@given(widths=st.lists(sizes(1, 6), min_size=2, max_size=5), batch=sizes(1, 6), seed=seeds)
def test_backward_leaves_the_gradients_derived_by_hand_in_a_net(device, widths, batch, seed):
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=shape) for shape in ((batch, widths[0]), *pairwise(widths))]
    x, *weights = (torch.tensor(each, device=with_dtype(device, torch.float64)) for each in arrays)
    kept = [arrays[0]]
    for weight in arrays[1:]:
        kept.append(np.tanh(kept[-1] @ weight))
    above, by_hand = 2 * kept[-1] / kept[-1].size, []  # of the mean of squares
    for weight, before, after in zip(arrays[:0:-1], kept[-2::-1], kept[:0:-1], strict=True):
        above = above * (1 - after**2)
        by_hand.insert(0, before.T @ above)
        above = above @ weight.T
    for weight in weights:
        x = (x @ weight.requires_grad_()).tanh()
    x.square().mean().backward()
    off = [
        np.abs(np.array(w.grad.tolist()) - should).max()
        for w, should in zip(weights, by_hand, strict=True)
    ]
    assert max(off) < 1e-12, (
        f"the gradients are {off} from those by hand [{widths=}, {batch=}, {seed=}]"
    )


@pytest.mark.claim("grad.no-manual")
@pytest.mark.parametrize("name", [*operators.NEW, *operators.VIEWS])
def test_values_and_gradients_of_an_operator_are_those_of_its_definition(device, name):
    """The gradients of the definition are differences of values in numpy, which torch has no part in."""
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
        assert np.allclose(values, expected, 1e-6, 1e-6), (
            f"{what} of {name}={values}, but should be {expected}"
        )


@pytest.mark.claim("grad.wallclock-3x")
@pytest.mark.parametrize("times", [1, 2])
def test_forward_and_backward_take_two_to_four_times_the_forward(device, sizing, speed, times):
    """Three products against one, to half: libraries differ in how fast they multiply transposes."""
    n = (
        160 + 32 * times
        if device.type == "cpu"
        else sizing.fitting(4096 * times, lambda n: 7 * 4 * n * n, least=2048)
    )
    layer = torch.nn.Linear(n, n, bias=False, device=device)
    x = torch.rand(n, n, device=device, requires_grad=True)
    dy = torch.rand(n, n, device=device)

    def both():
        torch.autograd.grad(layer(x), (x, layer.weight), dy)

    claim = f"forward and backward of width {n} against forward, in time"
    speed.assert_slower(both, lambda: layer(x), claim, at_least=2, at_most=4.5)
