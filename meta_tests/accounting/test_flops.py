"""The FLOP formulas that no claim names: products of any operands, steps, layers with a bias; and bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import counted
from accounting.flops import (
    FORWARD_PRODUCTS,
    INPUT_GRADIENT_PRODUCTS,
    MULTIPLY_ADD_FLOPS,
    RECOMPUTED_PRODUCTS,
    WEIGHT_GRADIENT_PRODUCTS,
    StepFlops,
    broadcast_matmul_flops,
    elementwise_flops,
    linear_flops,
    linear_step,
    matmul_flops,
    reduction_flops,
)
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import scalars
from test_claims.oracles.scalars import Operations, integers

# ---- matmul ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4))],
)
def test_one_dimensional_operands_multiply_as_a_row_and_a_column(a_shape, b_shape):
    tally, a, b = Operations(), integers(*a_shape), integers(*b_shape)
    row, column = a if a.dim() > 1 else a[None], b if b.dim() > 1 else b[:, None]
    product = scalars.matmul(tally.array(row), tally.array(column))
    assert torch.equal(scalars.tensor(product).flatten(), (a @ b).flatten()), "the oracle's own product is wrong"
    with counted.flops() as dispatched:
        a @ b
    formula = broadcast_matmul_flops(a_shape, b_shape)
    assert formula == tally.flops == dispatched.total, (
        f"broadcast_matmul_flops={formula}, counted {tally.flops}, dispatched {dispatched} [{a_shape} @ {b_shape}]"
    )


# ---- steps -------------------------------------------------------------------------------------------------------


def test_steps_add_up_by_purpose_and_recomputation_counts_for_the_hardware_alone():
    step = linear_step(2, 3, 4) + linear_step(2, 4, 5, input_gradient=False, recomputed=True)
    assert step == StepFlops(48 + 80, 96 + 80, 80), f"{step}"
    assert (step.model, step.hardware) == (304, 384), f"{step.model} and {step.hardware}"


def test_a_product_its_gradients_and_its_recomputation_cost_the_same_each():
    products = FORWARD_PRODUCTS, WEIGHT_GRADIENT_PRODUCTS, INPUT_GRADIENT_PRODUCTS, RECOMPUTED_PRODUCTS
    assert (MULTIPLY_ADD_FLOPS, *products) == (2, 1, 1, 1, 1)
    size = 10**7  # 2·size³ is beyond the integers that a float has
    assert linear_step(size + 1, size + 3, size + 7, recomputed=True).recomputation == 2 * (size + 1) * (size + 3) * (
        size + 7
    )
    assert StepFlops(1, 2) == StepFlops(1, 2, 0)


def test_steps_add_up_with_sum_and_multiply():
    step = StepFlops(1, 2, 3)
    assert sum([step, step]) == 2 * step == step * np.int8(2) == StepFlops(2, 4, 6)
    with pytest.raises(TypeError):
        _ = sum([step], start=1)
    with pytest.raises(TypeError, match="times must be an integer"):
        _ = step * 1.5
    with pytest.raises(TypeError):
        step + 1


@given(batch=st.integers(1, 4), d=st.integers(1, 4), k=st.integers(1, 4), needs_input=st.booleans())
def test_the_gradients_of_a_layer_with_a_bias_cost_what_their_loops_count(batch, d, k, needs_input):
    x, weight, bias = integers(batch, d), integers(k, d), integers(k, requires_grad=True)
    dy, tally = integers(batch, k), Operations()
    (reference,) = torch.autograd.grad(torch.nn.functional.linear(x, weight, bias), bias, dy)
    numbers = tally.array(dy)
    assert torch.equal(scalars.tensor(scalars.total(numbers, 0)), reference), "the oracle's own gradient is wrong"
    scalars.matmul(numbers.T, tally.array(x))
    if needs_input:
        scalars.matmul(numbers, tally.array(weight))
    step = linear_step(batch, d, k, bias=True, input_gradient=needs_input)
    assert step.backward == tally.flops, f"backward={step.backward}, but should be {tally.flops} [{batch=}, {d=}, {k=}]"


# ---- bad input ---------------------------------------------------------------------------------------------------


test_bad_input_is_named_with_its_value_and_what_is_valid = refuses(
    (lambda: StepFlops(-1, 2), ValueError, "forward must be at least 0, got -1"),
    (lambda: matmul_flops(-1, 2, 3), ValueError, "m must be at least 0, got -1"),
    (lambda: matmul_flops(1, 2.5, 3), TypeError, "k must be an integer, got 2.5 of type float"),
    (lambda: matmul_flops(1, 2, True), TypeError, "n must be an integer, got True of type bool"),
    (lambda: linear_flops(1, -2, 3), ValueError, "in_features must be at least 0, got -2"),
    (lambda: broadcast_matmul_flops((2, 3), (4, 5)), ValueError, "got 3 and 4"),
    (lambda: broadcast_matmul_flops((), (4, 5)), ValueError, "at least one dimension"),
    (lambda: broadcast_matmul_flops((2, 4, 3), (5, 3, 1)), ValueError, "sizes 2 and 5 meet"),
    (lambda: broadcast_matmul_flops((2, -3), (3, 1)), ValueError, r"a_shape\[1\] must be at least 0, got -3"),
    (lambda: broadcast_matmul_flops(3, (3, 1)), TypeError, "a_shape must be a sequence of integers, got 3"),
    (lambda: elementwise_flops((2, 3), (2,)), ValueError, "2 and 3"),
    (lambda: elementwise_flops((2,), flops_per_element=0.5), TypeError, "flops_per_element"),
    (lambda: reduction_flops((2, 1.5)), TypeError, r"shape\[1\] must be an integer, got 1.5"),
)
