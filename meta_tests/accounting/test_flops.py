"""The FLOP formulas that no claim names: einsum in any order, attention of any kind, convolutions; and bad input."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import contraction, counted
from accounting.convolution import convolution_backward_flops, convolution_flops
from accounting.flops import (
    StepFlops,
    attention_backward_flops,
    attention_flops,
    attention_pairs,
    attention_step,
    broadcast_matmul_flops,
    einsum_backward_flops,
    einsum_flops,
    einsum_order,
    elementwise_flops,
    linear_flops,
    linear_step,
    matmul_flops,
    reduction_flops,
)
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.names import Quantity, of_member, violations
from test_claims.oracles.scalars import Operations, integers

few = settings(max_examples=60, deadline=None)

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


# ---- einsum ------------------------------------------------------------------------------------------------------


@st.composite
def einsums(draw, most_operands=4):
    """An equation over the letters a to e, and the shapes of its operands."""
    letters = "abcde"
    size = dict(zip(letters, draw(st.tuples(*[st.integers(1, 3)] * len(letters))), strict=True))
    term = st.lists(st.sampled_from(letters), min_size=1, max_size=3, unique=True).map("".join)
    terms = draw(st.lists(term, min_size=1, max_size=most_operands))
    output = draw(st.lists(st.sampled_from(sorted(set("".join(terms)))), unique=True, max_size=3).map("".join))
    return f"{','.join(terms)}->{output}", [tuple(size[letter] for letter in term) for term in terms]


def orders(operands):
    """Every order in which pairs can be contracted."""
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
        result = "".join(dict.fromkeys(index for index in operands[i][0] + operands[j][0] if index in needed))
        operands = [*others, scalars.contract(operands[i], operands[j], result)]
    return operands[0]


@few
@given(einsum=einsums(), data=st.data())
def test_an_einsum_costs_what_its_loops_count_in_any_order(einsum, data):
    equation, shapes = einsum
    if len(shapes) == 1:
        shapes, equation = shapes * 2, "{0},{0}->{1}".format(*equation.split("->"))
    order = data.draw(st.sampled_from(orders(len(shapes))))
    tally, operands = Operations(), [integers(*shape) for shape in shapes]
    indices, values = contracted(equation, [tally.array(operand) for operand in operands], order)
    reference = torch.einsum(f"{equation.partition('->')[0]}->{indices}", *operands)
    assert torch.equal(scalars.tensor(values), reference), "the oracle's own einsum is wrong"
    formula = einsum_flops(equation, *shapes, order=order)
    assert formula == tally.flops, f"einsum_flops={formula}, but should be {tally.flops} [{equation} {shapes} {order}]"


@few
@given(einsum=einsums())
def test_the_best_order_is_the_cheapest_of_all(einsum):
    equation, shapes = einsum
    cheapest = min(einsum_flops(equation, *shapes, order=order) for order in orders(len(shapes)))
    best, found = einsum_flops(equation, *shapes), einsum_order(equation, *shapes)
    assert best == cheapest, f"best={best}, but an order costs {cheapest} [{equation} {shapes}]"
    assert einsum_flops(equation, *shapes, order=found) == best, f"einsum_order {found} does not cost {best}"


@few
@given(sizes=st.lists(st.integers(2, 40), min_size=3, max_size=9))
def test_the_best_order_of_a_chain_is_that_of_matrix_chain_multiplication(sizes):
    """Against the textbook recurrence over intervals (Cormen et al., section 15.2), up to eight operands.

    The textbook multiplies neighbours only. With sizes of 1 it may be cheaper to multiply two others first, since where
    nothing is summed nothing is added.
    """
    cost = {}
    for length in range(1, len(sizes)):
        for i in range(len(sizes) - length):
            j = i + length
            splits = [cost[i, k] + cost[k, j] + 2 * sizes[i] * sizes[k] * sizes[j] for k in range(i + 1, j)]
            cost[i, j] = min(splits, default=0)
    letters = "abcdefghi"[: len(sizes)]
    equation = ",".join(map("".join, itertools.pairwise(letters))) + f"->{letters[0]}{letters[-1]}"
    if len(sizes) > 2:
        got = einsum_flops(equation, *itertools.pairwise(sizes))
        assert got == cost[0, len(sizes) - 1], f"best={got}, but should be {cost[0, len(sizes) - 1]} [{sizes=}]"


@few
@given(sizes=st.lists(st.integers(2, 9), min_size=3, max_size=7))
def test_left_order_multiplies_from_left_to_right(sizes):
    letters = "abcdefg"[: len(sizes)]
    equation = ",".join(map("".join, itertools.pairwise(letters))) + f"->{letters[0]}{letters[-1]}"
    product, dispatched = torch.rand(sizes[0], sizes[1]), 0
    for shape in list(itertools.pairwise(sizes))[1:]:
        dispatched += product_flops(torch.matmul, product, torch.rand(shape))
        product = product @ torch.rand(shape)
    got = einsum_flops(equation, *itertools.pairwise(sizes), order="left")
    assert got == dispatched, f"left={got}, but should be {dispatched} [{sizes=}]"


@few
@given(sizes=st.tuples(*[st.integers(2, 6)] * 4), wanted=st.sets(st.integers(0, 2), min_size=1))
def test_the_gradients_of_a_chain_cost_what_autograd_dispatches(sizes, wanted):
    i, j, k, m = sizes
    operands = [torch.rand(shape, requires_grad=n in wanted) for n, shape in enumerate(((i, j), (j, k), (k, m)))]
    a, b, c = operands
    y = (a @ b) @ c
    dispatched = product_flops(lambda: y.backward(torch.ones_like(y)))
    shapes = [tuple(operand.shape) for operand in operands]
    formula = einsum_backward_flops("ij,jk,km->im", *shapes, order="left", gradients=wanted)
    assert formula == dispatched, f"einsum_backward_flops={formula}, but should be {dispatched} [{sizes=}, {wanted=}]"


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("ij,jk", [(2, 3), (3, 4)], 48),  # without an arrow: the letters that occur once
        ("b i j, b j k -> b i k", [(5, 2, 3), (5, 3, 4)], 5 * 48),
        ("...ij,jk->...ik", [(7, 5, 2, 3), (3, 4)], 35 * 48),
        ("...ij,...jk->...ik", [(7, 1, 2, 3), (5, 3, 4)], 35 * 48),  # sizes of 1 stretch
        ("i,i->", [(1,), (3,)], 3 + 1),  # what meets a 1 is summed alone, then multiplied once
        ("i,j->ij", [(2,), (3,)], 6),  # nothing is summed: multiplications alone
        ("ij,ij->ij", [(2, 3), (2, 3)], 6),
        ("ij->", [(2, 3)], 6),  # a sum: additions alone
        ("ij->ji", [(2, 3)], 0),
        ("ii->i", [(3, 3)], 0),  # a diagonal is a view
        ("ii->", [(3, 3)], 3),
        ("ij,k->k", [(2, 3), (4,)], 6 + 4),  # the lone indices are summed out first
        ("bhqd,bhkd,bhkv->bhqv", [(2, 4, 32, 16)] * 3, 2 * (2 * 8 * 32 * 16 * 16)),  # kᵀ·v first: 16 widths for 32 keys
    ],
)
def test_einsum_equations_are_read_as_torch_reads_them(equation, shapes, flops):
    torch.einsum(equation, *(torch.rand(shape) for shape in shapes))  # torch accepts it
    got = einsum_flops(equation, *shapes)
    assert got == flops, f"einsum_flops={got}, but should be {flops} [{equation} {shapes}]"


# ---- attention ---------------------------------------------------------------------------------------------------


@few
@given(data=st.data(), causal=st.booleans(), convention=st.sampled_from(["math", "flash"]))
def test_attention_costs_what_its_loops_count(data, causal, convention):
    kv_heads, group, queries, width, value_dim = (data.draw(st.integers(1, 3)) for _ in range(5))
    keys = data.draw(st.integers(queries if causal else 1, 4))
    heads = kv_heads * group
    q, k, v = (
        torch.rand(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, value_dim))
    )
    do, tally = torch.rand(heads, queries, value_dim, dtype=torch.float64), Operations()
    arrays = [tally.array(x.detach()) for x in (q, k, v)]
    results, forward, backward = scalars.attention(*arrays, causal, do, flash=convention == "flash")

    mask = torch.ones(queries, keys).tril(keys - queries) > 0 if causal else torch.ones(queries, keys) > 0
    scores = (q @ k.repeat_interleave(group, 0).mT / math.sqrt(width)).masked_fill(~mask, -math.inf)
    output = scores.softmax(-1) @ v.repeat_interleave(group, 0)
    for got, reference in zip(results, (output, *torch.autograd.grad(output, (q, k, v), do)), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), reference.detach())

    sizes = {"key_length": keys, "kv_heads": kv_heads, "value_dim": value_dim, "pairs": "causal" if causal else "full"}
    step = attention_step(1, heads, queries, width, convention=convention, **sizes)
    formula = (
        attention_flops(1, heads, queries, width, **sizes),
        attention_backward_flops(1, heads, queries, width, convention=convention, **sizes),
    )
    assert formula == (forward.flops, backward.flops) == (step.forward, step.backward + step.recomputation), (
        f"forward and backward {formula}, step {step}, but should be {forward.flops} and {backward.flops} [{sizes}]"
    )


@few
@given(batch=st.integers(1, 3), heads=st.integers(1, 3), length=st.integers(2, 6), width=st.integers(2, 6))
def test_full_attention_costs_what_torch_dispatches_both_ways(batch, heads, length, width):
    q, k, v = (torch.rand(batch, heads, length, width, requires_grad=True) for _ in range(3))

    def both():
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    step = attention_step(batch, heads, length, width)
    assert step.hardware == product_flops(both), f"{step}, but torch dispatched {product_flops(both)}"


@pytest.mark.parametrize("length", [1, 2, 7, 100])
def test_causal_pairs_are_the_lower_triangle(length):
    assert attention_pairs(length, pairs="causal") == int(torch.ones(length, length).tril().sum())


# ---- convolution -------------------------------------------------------------------------------------------------


@few
@given(data=st.data(), groups=st.integers(1, 2), stride=st.integers(1, 2), padding=st.integers(0, 1))
def test_a_convolution_costs_what_its_inner_products_count(data, groups, stride, padding):
    channels, outputs, kernel = (data.draw(st.integers(1, 2)) for _ in range(3))
    size, dilation = data.draw(st.integers(3, 5)), data.draw(st.integers(1, 2))
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    x, weight = integers(1, groups * channels, size, size), integers(groups * outputs, channels, kernel, kernel)
    columns = torch.nn.functional.unfold(x, kernel, **options)[0].unflatten(0, (groups, -1))
    tally = Operations()
    y = scalars.matmul(tally.array(weight.reshape(groups, outputs, -1)), tally.array(columns))
    reference = torch.nn.functional.conv2d(x, weight, groups=groups, **options)
    assert torch.equal(scalars.tensor(y).flatten(), reference.flatten()), "the oracle's own convolution is wrong"
    sizes = (1, groups * channels, groups * outputs, (size, size), (kernel, kernel))
    formula = convolution_flops(*sizes, groups=groups, **options)
    assert formula == tally.flops, f"convolution_flops={formula}, but should be {tally.flops} [{sizes}, {options}]"
    with_bias = convolution_flops(*sizes, groups=groups, bias=True, **options)
    assert with_bias == formula + reference.numel(), "a bias adds once per output element"


@few
@given(data=st.data(), groups=st.integers(1, 3), needs_input=st.booleans())
def test_a_convolutions_gradients_cost_what_torch_dispatches_group_by_group(data, groups, needs_input):
    """One convolution a group: torch counts the gradients of a grouped one wrongly."""
    channels, outputs, kernel, size = (data.draw(st.integers(*bounds)) for bounds in ((1, 3), (1, 3), (1, 3), (3, 6)))
    x = torch.rand(1, channels, size, requires_grad=needs_input)
    weight = torch.rand(outputs, channels, kernel, requires_grad=True)
    y = torch.nn.functional.conv1d(x, weight)
    dispatched = groups * product_flops(lambda: y.backward(torch.ones_like(y)))
    sizes = (1, groups * channels, groups * outputs, (size,), (kernel,))
    formula = convolution_backward_flops(*sizes, groups=groups, input_gradient=needs_input)
    assert formula == dispatched, f"convolution_backward_flops={formula}, but should be {dispatched} [{sizes}]"


# ---- steps -------------------------------------------------------------------------------------------------------


def test_steps_add_up_by_purpose_and_recomputation_counts_for_the_hardware_alone():
    step = linear_step(2, 3, 4) + linear_step(2, 4, 5, input_gradient=False, recomputed=True)
    assert step == StepFlops(48 + 80, 96 + 80, 80), f"{step}"
    assert (step.model, step.hardware) == (304, 384), f"{step.model} and {step.hardware}"
    with pytest.raises(TypeError):
        step + 1


@few
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


def test_the_oracle_counts_what_it_did():
    """Every operator of the counting number, so that a claim cannot rest on one that forgot to count."""
    tally = Operations()
    a, b = tally.array(torch.tensor([2.0, 3.0]))
    results = [a * b, a * 2.0, 2.0 * a, a + b, 1.0 + a, a - b, a.through(math.exp)]
    assert [float(result) for result in results] == [6, 4, 4, 5, 3, -1, math.exp(2)]
    assert (tally.multiplications, tally.additions, tally.others, tally.flops) == (3, 3, 1, 7)


@pytest.mark.parametrize(
    ("quantity", "complaint"),
    [
        (Quantity("planning.peak_flops", "peak_flops", "float"), "is float, but a name in _flops is int"),
        (Quantity("roofline.peak_flop_per_s", "peak_flop_per_s", "int"), "is int, but a name in _flop_per_s is float"),
        (Quantity("memory.cache_bytes", "cache_bytes", "float | None"), "is float | None"),
        (Quantity("devices.peak", "peak", "float", "Peak in TFLOPS."), "says 'TFLOPS'"),
        (Quantity("devices.peak", "peak", "float", "Peak in FLOPs/s."), "says 'FLOPs/s'"),
        (Quantity("devices.peak_flops_per_s", "peak_flops_per_s", "float"), "says 'flops_per_s'"),
        (Quantity("devices.peak_tflops", "peak_tflops", "int"), "says 'tflops'"),
    ],
)
def test_a_name_that_mixes_amount_and_rate_is_found(quantity, complaint):
    assert any(complaint in problem for problem in violations(quantity)), f"{violations(quantity)}, not {complaint!r}"


def test_the_walker_sees_functions_arguments_fields_and_properties():
    seen = {quantity.where for member in (StepFlops, linear_step) for quantity in of_member(member.__name__, member)}
    assert seen >= {"StepFlops.forward", "StepFlops.hardware", "linear_step", "linear_step(in_features)"}, f"{seen}"


# ---- bad input ---------------------------------------------------------------------------------------------------

CHAIN = ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: matmul_flops(-1, 2, 3), ValueError, "m must be at least 0, got -1"),
        (lambda: matmul_flops(1, 2.0, 3), TypeError, "k must be an integer, got 2.0 of type float"),
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
        (lambda: einsum_flops("ij,jk->iz", (2, 3), (3, 4)), ValueError, "'z' of the output .* valid are i, j, k"),
        (lambda: einsum_flops("ij,jk->ik", (2, 3)), ValueError, "has 2 operands, got 1 shapes"),
        (lambda: einsum_flops("ij,jk->ik", (2, 3), (4, 4)), ValueError, "index 'j' .* has sizes 3 and 4"),
        (lambda: einsum_flops("...i,...i->...", (2, 3), (4, 3)), ValueError, "1 from the right of '...'"),
        (lambda: einsum_flops("ij->i", (2, 3, 4)), ValueError, "does not fit the 3 dimensions"),
        (lambda: einsum_flops("ii->i", (2, 3)), ValueError, "'i' is repeated in 'ii' with different sizes"),
        (lambda: einsum_flops("i1->i", (2, 3)), ValueError, "got 'i1'"),
        (lambda: einsum_flops("i->i->i", (2,)), ValueError, "one '->'"),
        (lambda: einsum_flops("ij->ii", (2, 3)), ValueError, "occurs twice in the output"),
        (lambda: einsum_flops(3, (2, 3)), TypeError, "equation must be a string, got 3"),
        (lambda: einsum_flops("i->i", 3), TypeError, r"shapes\[0\] must be a sequence of integers, got 3"),
        (lambda: einsum_flops("i->i", (-2,)), ValueError, r"shapes\[0\]\[0\] must be at least 0, got -2"),
        (lambda: einsum_flops(*CHAIN, order="fastest"), ValueError, "order must be one of best, left"),
        (lambda: einsum_flops(*CHAIN, order=[(0, 1)]), ValueError, "must have 2 pairs for 3 operands"),
        (lambda: einsum_flops(*CHAIN, order=[(0, 3), (0, 1)]), ValueError, r"positions 0..2, got \(0, 3\)"),
        (lambda: einsum_flops(*CHAIN, order=[(0, 1), (1, 1)]), ValueError, r"positions 0..1, got \(1, 1\)"),
        (lambda: einsum_flops(*CHAIN, order=[(0, 1, 2), (0, 1)]), ValueError, r"got \(0, 1, 2\)"),
        (lambda: einsum_flops("i" + ",i" * 12 + "->i", *[(2,)] * 13), ValueError, "at most 12 operands, got 13"),
        (lambda: einsum_backward_flops(*CHAIN, gradients=[3]), ValueError, "gradients must be one of 0, 1, 2, got 3"),
        (lambda: attention_pairs(3, pairs="triangle"), ValueError, "pairs must be one of full, causal"),
        (lambda: attention_pairs(3, 2, pairs="causal"), ValueError, "key_length must be at least query_length"),
        (lambda: attention_flops(1, 6, 3, 4, kv_heads=4), ValueError, "heads=6 and kv_heads=4"),
        (lambda: attention_flops(1, 6, 3, 4, kv_heads=0), ValueError, "heads=6 and kv_heads=0"),
        (lambda: attention_flops(1, 6, 3, -4), ValueError, "head_dim must be at least 0, got -4"),
        (lambda: attention_backward_flops(1, 6, 3, 4, convention="fast"), ValueError, "convention must be .* 'flash'"),
        (lambda: attention_step(1, 6, 3, 4, convention="forward"), ValueError, "convention must be one of math, flash"),
        (lambda: convolution_flops(1, 3, 4, (8,), (3,), groups=2), ValueError, "in_channels=3 and groups=2"),
        (lambda: convolution_flops(1, 4, 4, (8,), (3, 3)), ValueError, "kernel_size must have the 1 dimensions"),
        (lambda: convolution_flops(1, 4, 4, (2,), (3,)), ValueError, "must fit into the padded input"),
        (lambda: convolution_flops(1, 4, 4, (8,), (3,), stride=0), ValueError, "stride must be at least 1, got 0"),
        (lambda: convolution_flops(1, 4, 4, (8, 8), (3, 3), padding=(1,)), ValueError, "padding must be one number or"),
    ],
)
def test_bad_input_is_named_with_its_value_and_what_is_valid(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_ten_operands_are_ordered_within_seconds():
    letters = "abcdefghijk"
    equation = ",".join(map("".join, itertools.pairwise(letters))) + "->ak"
    shapes = [(2 + i % 5, 2 + (i + 1) % 5) for i in range(10)]
    assert einsum_flops(equation, *shapes) <= einsum_flops(equation, *shapes, order="left")
    assert len(einsum_order(equation, *shapes)) == 9
    assert contraction.BEST_ORDER_OPERANDS >= 10
