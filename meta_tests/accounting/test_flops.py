"""FLOPs of einsums, against operations counted one by one, and of convolutions."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting.convolution import Convolution, convolution_flops
from accounting.flops import einsum_flops
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.messages import equal
from test_claims.oracles.scalars import Operations, integers


@st.composite
def einsums(draw):
    """An equation of two operands over the letters a to e, and their shapes."""
    size = {letter: draw(st.integers(1, 3)) for letter in "abcde"}
    term = st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True).map("".join)
    terms = draw(term), draw(term)
    used = st.sampled_from(sorted(set("".join(terms))))
    output = "".join(draw(st.lists(used, unique=True, max_size=3)))
    shapes = [tuple(map(size.get, term)) for term in terms]
    return f"{','.join(terms)}->{output}", shapes


@given(einsum=einsums())
def test_an_einsum_costs_what_its_loops_count(einsum):
    equation, shapes = einsum
    terms, _, output = equation.partition("->")
    tally, operands = Operations(), [integers(*shape) for shape in shapes]
    arrays = map(tally.array, operands)
    _, values = scalars.contract(*zip(terms.split(","), arrays, strict=True), output)
    reference = torch.einsum(equation, *operands)
    assert torch.equal(scalars.tensor(values), reference), "the oracle's own einsum is wrong"
    equal(einsum_flops(equation, *shapes), tally.flops, equation)


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
