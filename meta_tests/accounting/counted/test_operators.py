"""What one operator costs: the counter against definitions that count their own operations, and the page about it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from accounting.counted import operators, rules
from meta_tests.accounting.counted import operator_definitions as define
from meta_tests.accounting.counted.counting import flops_of
from meta_tests.accounting.counted.operator_definitions import multiply_adds
from meta_tests.accounting.counted.operator_table import HOW, PAGE, ROWS, VERSION, Row, page, stepped_once


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.operator}: {row.call}")
def test_an_operator_costs_what_its_definition_does(row: Row) -> None:
    try:
        count = row.count()
    except (AttributeError, RuntimeError) as error:
        if "has no attribute" in str(error) or "No available kernel" in str(error):
            pytest.skip(f"torch {torch.__version__}: {error}")
        raise
    right, got = row.flops(), count.total if row.products else count.elementwise
    assert got == right, f"counted {count}, but should be {right}"
    assert row.products or not count.total, f"{count.by_operator()} should be no products"
    assert not count.unknown, f"{count.unknown} should be known"


def test_the_page_of_operators_is_what_the_installed_torch_says() -> None:
    written, fresh = PAGE.read_text(encoding="utf-8"), "\n".join(page())
    if f"torch {VERSION}" not in written:
        pytest.skip(f"the page is of another torch than {VERSION}")
    differing = [line for line in fresh.splitlines() if line not in written.splitlines()]
    assert written == fresh, f"write '\\n'.join(operator_table.page()) to {PAGE}: it would change {differing}"


@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=["input", "weight"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_one_gradient_of_a_convolution_costs_what_its_forward_does(
    kind: type[nn.Conv1d], groups: int, wanted: tuple[bool, bool]
) -> None:
    layer, x = kind(4, 8, 3, stride=2, padding=1, groups=groups), torch.randn(2, 4, 5, requires_grad=wanted[0])
    layer.weight.requires_grad_(wanted[1])
    count = flops_of(lambda: layer(x).sum().backward())
    right = define.convolution(layer, x.detach(), wanted=1)
    assert (count.forward, count.backward) == right, f"counted {count}, but should be {right}"


# --- a formula of one's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_a_formula_is_one_decorated_function(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(operators, "OPERATORS", dict(operators.OPERATORS))
    monkeypatch.setattr(rules, "OPERATORS", operators.OPERATORS)

    @torch.library.custom_op("prooflops_meta_tests::gram", mutates_args=())
    def gram(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows @ rows.mH, rows.abs()

    rows = torch.ones(3, 4, dtype=dtype)
    before = flops_of(lambda: gram(rows))
    operators.operator("prooflops_meta_tests.gram")(lambda out, rows: 2 * operators.elements(out[0]) * rows.shape[-1])
    count = flops_of(lambda: gram(rows))
    assert (before.total, before.unknown) == (0, {"prooflops_meta_tests.gram": 1}), f"{before} without a formula"
    assert (count.total, count.unknown) == (multiply_adds(rows, rows.mH), {}), f"{count} with a formula"


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        (("mv",), "products", "names must have a namespace, as aten.mv has, got 'mv'"),
        (("mylib.mv", "aten.mv"), "products", "names must be new, but aten.mv has a formula"),
        (("mylib.mv",), "sums", "kind must be one of products, elementwise, got 'sums'"),
    ],
)
def test_a_formula_that_cannot_be_registered_is_refused(names: tuple[str, ...], kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        operators.operator(*names, kind=kind)
    assert "mylib.mv" not in operators.OPERATORS, "nothing should be registered"


# --- operators that a CPU does not run, by their shapes ---------------------------------------------------------------

lstm, rows = nn.LSTM(3, 5, num_layers=2), torch.empty(6, 10)
x, out, weight = torch.empty(2, 5, 3), torch.empty(2, 5, 4), torch.empty(4, 3)
of_gates = 3 * multiply_adds(torch.ones(8, 5), lstm.weight_hh_l0.T)
cudnn = multiply_adds(torch.ones(8, 3), lstm.weight_ih_l0.T) + of_gates  # the weights include biases
once = multiply_adds(torch.ones(10, 3), torch.ones(3, 4))
ELSEWHERE: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "cuDNN": ("_cudnn_rnn", (None, torch.empty(4, 2, 3), [*lstm.parameters()]), cudnn),
    "cuDNN backward": ("_cudnn_rnn_backward", (None, torch.empty(4, 2, 3), [*lstm.parameters()]), 2 * cudnn),
    "linear of MPS": ("linear", (out, x, weight, None), once),
    "its gradients": ("linear_backward", (None, x, out, weight, (True, True, True)), 2 * once),
    "one of them": ("linear_backward", (None, x, out, weight, (False, True, False)), once),
    "that of the bias": ("linear_backward", (None, x, out, weight, (False, False, True)), 0),
    "groups": ("_grouped_mm", (None, torch.empty(2, 5, 3), torch.empty(2, 3, 4)), once),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_operator_of_another_device_costs_what_its_definition_does(name: str) -> None:
    operator, arguments, right = ELSEWHERE[name]
    figure = operators.OPERATORS[f"aten.{operator}"].formula(*arguments)
    assert figure == right, f"{figure}, but should be {right}"


def test_a_fused_rms_norm_costs_what_it_fuses() -> None:
    grad, x, rstd, weight = (torch.ones(shape) for shape in ((6, 10), (6, 10), (6, 1), (10,)))
    tally = [0]
    define.rms_norm_backward(*(define.Numbers(each, tally) for each in (grad, x, rstd, weight)))
    formula = operators.OPERATORS["aten._fused_rms_norm_backward"].formula
    assert formula(None, grad, x, [10], rstd, weight, [True, True]) == tally[0]
    fused = operators.OPERATORS["aten._fused_rms_norm"].formula((x, rstd), x, [10], weight)
    unfused = flops_of(lambda: F.rms_norm(x, (10,), weight)).elementwise
    assert fused == unfused, f"{fused}, but one operator after the other {unfused}"


# --- more elementwise operations and reductions -----------------------------------------------------------------------

wide, classes, bag = torch.randn(6, 10), torch.tensor([0, 9, 3, 3, 0, 1]), torch.tensor([[0, 1, 5]])


def there_and_back(function: Callable[[Tensor], Tensor]) -> None:
    out = function(wide.clone().requires_grad_())
    out.backward(torch.ones_like(out))


ELEMENTWISE: dict[str, tuple[Callable[[], object], int]] = {
    "in place, untagged": (lambda: wide.clone().masked_fill_(wide > 0, 0), 60 + 60),
    "the result of a broadcast": (lambda: torch.ones(6, 1) + torch.ones(10), 60),
    "a maximum with places": (lambda: wide.max(1), 60),
    "a norm": (lambda: torch.linalg.vector_norm(wide), 60),
    "a running sum": (lambda: wide.cumsum(0), 60),
    "a list of tensors": (lambda: torch._foreach_mul([wide, wide], 2.0), 120),
    "rows of a bag": (lambda: F.embedding_bag(bag, wide, mode="sum"), 30),
    "gradient of a bag": (lambda: there_and_back(lambda x: F.embedding_bag(bag, x, mode="sum")), 30 + 30),
    "added at indices": (lambda: wide.clone().index_add_(0, torch.tensor([1, 1]), wide[:2]), 20),
    "added at places": (lambda: wide.scatter_add(0, torch.zeros(2, 3, dtype=torch.long), wide), 6),
    "put at indices": (lambda: wide.clone().index_put_((torch.tensor([1]),), wide[:1]), 0),
    "max pooling": (lambda: F.max_pool2d(wide[None, :, :], 2), 3 * 5 * 4),
    "average pooling and its gradient": (lambda: there_and_back(lambda x: F.avg_pool2d(x[None], (2, 5))), 60 + 60),
    "a window given by one size": (lambda: torch.ops.aten.avg_pool3d(wide.view(3, 2, 5, 2), [2]), 3 * 2 * 8),
    "batch norm of inference": (lambda: F.batch_norm(wide, wide[0], torch.ones(10), *wide[2:4]), 4 * 60),
    "gradient of a squared error": (lambda: torch.ops.aten.mse_loss_backward(wide[0, 0], wide, wide, 1), 3 * 60),
    "a likelihood and its gradient": (lambda: there_and_back(lambda x: F.nll_loss(x, classes)), 6 + 6),
    "dropout": (lambda: torch.native_dropout(wide, 0.5, True), 60 + 60),
    "whole numbers": (lambda: torch.arange(10) * 2 + 1, 0),
    "views": (lambda: wide.t().reshape(3, 20)[1:].unsqueeze(0).expand(4, -1, -1).clone().unsqueeze_(0), 0),
    "copies and casts": (lambda: torch.cat([wide, wide]).to(torch.bfloat16).contiguous(), 0),
    "random numbers": (lambda: torch.randn(10).uniform_(), 0),
    "a gather": (lambda: wide[torch.tensor([0, 2])], 0),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work_is_one_flop_per_element_and_no_product(name: str) -> None:
    act, right = ELEMENTWISE[name]
    count = flops_of(act)
    assert count.elementwise == right, f"{count.by_operator()}, but should be {right}"
    assert (count.total, count.unknown) == (0, {}), f"{count.by_operator()} should be no products"


def test_the_gradients_of_other_norms_cost_what_those_of_a_layer_norm_do() -> None:
    leaves = [each.clone().requires_grad_() for each in (wide, wide[0], wide[1])]
    outs = [
        F.layer_norm(leaves[0], (10,), *leaves[1:]),
        F.group_norm(leaves[0], 5, *leaves[1:]),
        F.batch_norm(leaves[0], None, None, *leaves[1:], training=True),
    ]
    layer, *others = (flops_of(lambda out=out: torch.autograd.grad(out, leaves, wide)).elementwise for out in outs)
    assert others == [layer] * 2, f"{others}, but for a layer norm {layer}"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_a_fused_optimizer_costs_what_its_loop_over_tensors_does(kind: Any, options: dict[str, Any]) -> None:
    fused, loop = (flops_of(stepped_once(kind, {**options, **HOW[how]})[0].step) for how in ("fused", "loop"))
    assert fused.elementwise == loop.elementwise >= 38, f"{fused}, but in a loop {loop}"
