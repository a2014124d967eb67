"""FLOPs of einsums, against operations counted one by one, and of convolutions."""

import itertools
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting.convolution import Convolution, convolution_flops
from accounting.flops import einsum_flops
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.scalars import Operations, integers


@st.composite
def einsums(draw, most_operands=3):
    """An equation over the letters a to e, and the shapes of its operands."""
    letters = "abcde"
    size = {letter: draw(st.integers(1, 3)) for letter in letters}
    term = st.lists(st.sampled_from(letters), min_size=1, max_size=3, unique=True).map("".join)
    terms = draw(st.lists(term, min_size=1, max_size=most_operands))
    used = st.sampled_from(sorted(set("".join(terms))))
    output = "".join(draw(st.lists(used, unique=True, max_size=3)))
    shapes = [tuple(map(size.get, term)) for term in terms]
    return f"{','.join(terms)}->{output}", shapes


def orders(operands):
    """Every order in which pairs can be contracted, from left to right first."""
    if operands == 1:
        return [()]
    pairs = itertools.combinations(range(operands), 2)
    return [(pair, *rest) for pair in pairs for rest in orders(operands - 1)]


def contracted(equation, arrays, order):
    """The einsum by loops over counted numbers, two operands at a time."""
    left, _, output = equation.partition("->")
    operands = list(zip(left.split(","), arrays, strict=True))
    for i, j in order:
        others = [operand for position, operand in enumerate(operands) if position not in (i, j)]
        needed = set(output).union(*(indices for indices, _ in others))
        indices = dict.fromkeys(operands[i][0] + operands[j][0])
        result = "".join(index for index in indices if index in needed)
        operands = [*others, scalars.contract(operands[i], operands[j], result)]
    return operands[0]


@given(einsum=einsums())
def test_an_einsum_costs_what_its_loops_count(einsum):
    equation, shapes = einsum
    if len(shapes) == 1:
        shapes, equation = shapes * 2, "{0},{0}->{1}".format(*equation.split("->"))
    costs = []
    for order in orders(len(shapes)):
        tally, operands = Operations(), [integers(*shape) for shape in shapes]
        arrays = [tally.array(operand) for operand in operands]
        indices, values = contracted(equation, arrays, order)
        reference = torch.einsum(f"{equation.partition('->')[0]}->{indices}", *operands)
        assert torch.equal(scalars.tensor(values), reference), "the oracle's own einsum is wrong"
        costs.append(tally.flops)
    got = [einsum_flops(equation, *shapes, order=order) for order in ("left", "best")]
    assert got == [costs[0], min(costs)], f"{got}, but {costs} by order [{equation} {shapes}]"


def per_dimension(low, high):
    """One number, or one for each of two dimensions."""
    return st.integers(low, high) | st.tuples(st.integers(low, high), st.integers(low, high))


@given(
    groups=st.integers(1, 2),
    stride=per_dimension(1, 2),
    padding=per_dimension(0, 1),
    dilation=per_dimension(1, 2),
)
def test_a_convolution_costs_what_torch_counts_and_an_addition_a_bias(groups, **options):
    layer = torch.nn.Conv2d(2 * groups, 3 * groups, 2, groups=groups, **options)
    x = torch.empty(2, 2 * groups, 5, 4)
    y = layer(x)
    shape = Convolution(2, 2 * groups, 3 * groups, (5, 4), (2, 2), groups=groups, **options)
    assert shape.output_size == y.shape[2:], shape
    assert convolution_flops(shape) == product_flops(layer, x), shape
    with_bias = convolution_flops(replace(shape, bias=True))
    assert with_bias == convolution_flops(shape) + y.numel(), shape
