"""Einsum: what an equation costs in any order, which order is cheapest, what its gradients cost."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import contraction
from accounting.flops import einsum_backward_flops, einsum_flops, einsum_order
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.scalars import Operations, integers


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


@given(einsum=einsums())
def test_the_best_order_is_the_cheapest_of_all(einsum):
    equation, shapes = einsum
    cheapest = min(einsum_flops(equation, *shapes, order=order) for order in orders(len(shapes)))
    best, found = einsum_flops(equation, *shapes), einsum_order(equation, *shapes)
    assert best == cheapest, f"best={best}, but an order costs {cheapest} [{equation} {shapes}]"
    assert einsum_flops(equation, *shapes, order=found) == best, f"einsum_order {found} does not cost {best}"


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


def test_ten_operands_are_ordered_within_seconds():
    letters = "abcdefghijk"
    equation = ",".join(map("".join, itertools.pairwise(letters))) + "->ak"
    shapes = [(2 + i % 5, 2 + (i + 1) % 5) for i in range(10)]
    assert einsum_flops(equation, *shapes) <= einsum_flops(equation, *shapes, order="left")
    assert len(einsum_order(equation, *shapes)) == 9
    assert contraction.BEST_ORDER_OPERANDS >= 10


CHAIN = ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5))


test_bad_input_is_named_with_its_value_and_what_is_valid = refuses(
    (lambda: einsum_flops("ij,jk->iz", (2, 3), (3, 4)), ValueError, "'z' of the output .* valid are i, j, k"),
    (lambda: einsum_flops("ij,jk->ik", (2, 3)), ValueError, "has 2 operands, got 1 shapes"),
    (lambda: einsum_flops("ij,jk->ik", (2, 3), (4, 4)), ValueError, "index 'j' .* has sizes 3 and 4"),
    (lambda: einsum_flops("...i,...i->...", (2, 3), (4, 3)), ValueError, "1 from the right of '...'"),
    (lambda: einsum_flops("ij->i", (2, 3, 4)), ValueError, "does not fit the 3 dimensions"),
    (lambda: einsum_flops("ii->i", (2, 3)), ValueError, "'i' is repeated in 'ii' with different sizes"),
    (lambda: einsum_flops("i1->i", (2, 3)), ValueError, "got 'i1'"),
    (lambda: einsum_flops("i->i->i", (2,)), ValueError, "one '->'"),
    (lambda: einsum_flops("ij->ii", (2, 3)), ValueError, "occurs twice in the output"),
    (lambda: einsum_flops(3, (2, 3)), TypeError, "equation must be a str, got 3"),
    (lambda: einsum_flops("i->i", 3), TypeError, r"shapes\[0\] must be a sequence of integers, got 3"),
    (lambda: einsum_flops("i->i", (-2,)), ValueError, r"shapes\[0\]\[0\] must be at least 0, got -2"),
    (lambda: einsum_flops(*CHAIN, order="fastest"), ValueError, "order must be one of best, left"),
    (lambda: einsum_flops(*CHAIN, order=[(0, 1)]), ValueError, "must have 2 pairs for 3 operands"),
    (lambda: einsum_flops(*CHAIN, order=[(0, 3), (0, 1)]), ValueError, r"positions 0..2, got \(0, 3\)"),
    (lambda: einsum_flops(*CHAIN, order=[(0, 1), (1, 1)]), ValueError, r"positions 0..1, got \(1, 1\)"),
    (lambda: einsum_flops(*CHAIN, order=[(0, 1, 2), (0, 1)]), ValueError, r"got \(0, 1, 2\)"),
    (lambda: einsum_flops("i" + ",i" * 12 + "->i", *[(2,)] * 13), ValueError, "at most 12 operands, got 13"),
    (lambda: einsum_backward_flops(*CHAIN, gradients=[3]), ValueError, "gradients must be one of 0, 1, 2, got 3"),
)
