"""What a count answers: its figures per operator and phase, their sums and their intensity."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from accounting import counted, roofline
from accounting.counted.result import CountedWork
from meta_tests.accounting.counted.counting import a, b, flops_of, net
from test_claims.oracles import scalars


def test_the_figures_of_the_operators_add_up_in_each_phase() -> None:
    count = flops_of(lambda: checkpoint(net(), torch.randn(2, 3), use_reentrant=False).sum().backward())
    for phase in ("all", "forward", "backward", "recomputed"):
        operator_sums = [sum(column) for column in zip(*count.by_operator(phase).values(), strict=True)]
        assert operator_sums == [*count.totals(phase)], f"operators add up to {operator_sums} [{phase}]"
    both = [sum(pair) for pair in zip(count.totals("forward"), count.totals("backward"), strict=True)]
    assert both == [*count.totals()], f"forward and backward add up to {both}, but should be {count.totals()}"
    assert count.model == count.total - count.recomputed, f"{count.model=} of {count}"
    assert (count.step.model, count.step.hardware) == (count.model, count.total), f"{count.step} of {count}"


def test_an_unknown_phase_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="phase must be one of all, forward, backward, recomputed, got 'back'"):
        flops_of(lambda: a @ b).by_operator("back")


def test_a_count_can_be_read_while_it_grows() -> None:
    with counted.flops() as count:
        a @ b
        first = count.total
        a @ b
    assert (first, count.total) == (120, 240), f"{(first, count.total)}, but should be 120, then 240"


def test_intensity_is_flops_over_bytes_per_operator_and_in_total() -> None:
    def act() -> Tensor:
        return (a @ b).exp()

    count, operations = flops_of(act), scalars.Operations()
    scalars.matmul(operations.array(a), operations.array(b))
    product_bytes, exp_bytes = (12 + 20 + 15) * 4, (15 + 15) * 4
    by_operator = {name: each.intensity for name, each in count.by_operator().items()}
    assert by_operator == {"aten.mm": operations.flops / product_bytes, "aten.exp": 15 / exp_bytes}, f"{by_operator}"
    together = (operations.flops + 15) / (product_bytes + exp_bytes)
    assert count.intensity == together, f"{count.intensity=}, but should be {together}"


def test_the_intensity_of_one_product_is_that_of_the_formula() -> None:
    for m, k, n in ((1, 64, 64), (64, 64, 64), (5, 7, 11)):
        x, w = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((m, k), (k, n)))
        got, formula = flops_of(lambda x=x, w=w: x @ w).intensity, roofline.matmul_work(m, k, n, "bf16").intensity
        assert got == formula, f"counted {got}, but the formula says {formula} [{m=}, {k=}, {n=}]"


def test_what_moves_nothing_has_no_intensity() -> None:
    with pytest.raises(ValueError, match="moved_bytes must be at least 1, got 0"):
        _ = flops_of(lambda: a.t()).intensity


def test_its_text_says_what_was_recomputed_and_what_has_no_formula() -> None:
    assert str(CountedWork({}, [1, 2, 0])) == "CountedWork(forward=1, backward=2, elementwise=0)"
    table = {frozenset({"Global"}): {("my.op", 0): [0, 5, 3, 0, 0], ("aten.mm", 1): [9, 0, 0, 0, 0]}}
    text = "CountedWork(forward=1, backward=6 (4 of it recomputed), elementwise=5, unknown={'my.op': 3})"
    assert str(CountedWork(table, [1, 2, 4])) == text


def test_nothing_counted_is_nothing() -> None:
    count = CountedWork({}, [0, 0, 0])
    assert count.totals() == (0, 0, 0, 0)
    assert (count.read_bytes, count.written_bytes, count.moved_bytes, count.unknown) == (0, 0, 0, {})
