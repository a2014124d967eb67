"""Convolutions of any stride, padding, dilation and grouping, against inner products counted one by one."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting.convolution import Convolution, convolution_backward_flops, convolution_flops
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.scalars import Operations, integers


def test_sizes_in_a_list_are_those_in_a_tuple():
    assert Convolution(1, 3, 8, [5, 5], [3, 3]) == Convolution(1, 3, 8, (5, 5), 3)


def per_dimension(low, high):
    """One number, or one for each of two dimensions."""
    return st.integers(low, high) | st.tuples(st.integers(low, high), st.integers(low, high))


@given(data=st.data(), groups=st.integers(1, 2), stride=per_dimension(1, 2), padding=per_dimension(0, 1))
def test_a_convolution_costs_what_its_inner_products_count(data, groups, stride, padding):
    channels, outputs, kernel = (data.draw(st.integers(1, 2)) for _ in range(3))
    size, dilation = data.draw(st.integers(3, 5)), data.draw(per_dimension(1, 2))
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    x, weight = integers(1, groups * channels, size, size), integers(groups * outputs, channels, kernel, kernel)
    columns = torch.nn.functional.unfold(x, kernel, **options)[0].unflatten(0, (groups, -1))
    tally = Operations()
    y = scalars.matmul(tally.array(weight.reshape(groups, outputs, -1)), tally.array(columns))
    reference = torch.nn.functional.conv2d(x, weight, groups=groups, **options)
    assert torch.equal(scalars.tensor(y).flatten(), reference.flatten()), "the oracle's own convolution is wrong"
    shape = Convolution(
        1, groups * channels, groups * outputs, (size, size), (kernel, kernel), groups=groups, **options
    )
    formula = convolution_flops(shape)
    assert formula == tally.flops, f"convolution_flops={formula}, but should be {tally.flops} [{shape}]"
    assert shape.output_size == reference.shape[2:], f"{shape.output_size=}, but torch returns {reference.shape}"
    with_bias = convolution_flops(replace(shape, bias=True))
    assert with_bias == formula + reference.numel(), "a bias adds once per output element"


@given(data=st.data(), groups=st.integers(1, 3), needs_input=st.booleans())
def test_a_convolutions_gradients_cost_what_torch_dispatches_group_by_group(data, groups, needs_input):
    """One convolution a group: torch counts the gradients of a grouped one wrongly."""
    channels, outputs, kernel, size = (data.draw(st.integers(*bounds)) for bounds in ((1, 3), (1, 3), (1, 3), (3, 6)))
    x = torch.rand(1, channels, size, requires_grad=needs_input)
    weight = torch.rand(outputs, channels, kernel, requires_grad=True)
    y = torch.nn.functional.conv1d(x, weight)
    dispatched = groups * product_flops(lambda: y.backward(torch.ones_like(y)))
    shape = Convolution(1, groups * channels, groups * outputs, (size,), (kernel,), groups=groups)
    formula = convolution_backward_flops(shape, input_gradient=needs_input)
    assert formula == dispatched, f"convolution_backward_flops={formula}, but should be {dispatched} [{shape}]"


test_bad_input_is_named_with_its_value_and_what_is_valid = refuses(
    (lambda: Convolution(1, 3, 4, (8,), (3,), groups=2), ValueError, "in_channels=3 and groups=2"),
    (lambda: Convolution(1, 4, 4, (8,), (3, 3)), ValueError, "kernel_size must be one number or 1, got"),
    (lambda: Convolution(1, 4, 4, (2,), (3,)), ValueError, "must fit into the padded input"),
    (lambda: Convolution(1, 4, 4, (8, 2), (3, 3)), ValueError, "must fit into the padded input"),
    (lambda: Convolution(1, 4, 4, (8,), (0,)), ValueError, "must be at least 1, got 0"),
    (lambda: Convolution(1, 4, 4, (8,), (3,), groups=0), ValueError, "groups must be at least 1, got 0"),
    (lambda: Convolution(1, 4, 4, (8,), (3,), padding=-1), ValueError, "padding must be at least 0, got -1"),
    (lambda: Convolution(1, 4, 4, (8,), (3,), dilation=0), ValueError, "dilation must be at least 1, got 0"),
    (lambda: Convolution(1, 4, 4, (8,), (3,), stride=0), ValueError, "stride must be at least 1, got 0"),
    (lambda: Convolution(1, 4, 4, (8, 8), (3, 3), padding=(1,)), ValueError, "padding must be one number or"),
)
