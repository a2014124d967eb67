"""What one operator costs: the counter against definitions that count their own operations, and the page about it."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from accounting import counted
from accounting.counted import operators, rules
from accounting.counted.result import UNKNOWN
from meta_tests.accounting.counted import operator_definitions as define
from meta_tests.accounting.counted.counting import flops_of
from meta_tests.accounting.counted.operator_cases import CASES, Case
from meta_tests.accounting.counted.operator_table import PAGE, count_of, page, version


def counted_if_there_is(case: Case) -> counted.CountedWork:
    """The count of a call, unless this torch has no such operator or no kernel for it."""
    try:
        return count_of(case)
    except (AttributeError, RuntimeError) as error:
        if "has no attribute" in str(error) or "No available kernel" in str(error):
            pytest.skip(f"torch {torch.__version__}: {error}")
        raise


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_costs_what_its_definition_does(case: Case) -> None:
    count, right = counted_if_there_is(case), case.definition()
    got = count.total if case.products else count.elementwise
    assert got == right, f"counted {count}, but should be {right} [{case.name}]"
    assert case.products or not count.total, f"{count.by_operator()} should be no products [{case.name}]"
    assert not count.unknown, f"{count.unknown} should be known [{case.name}]"


NAMED = """
mv, dot, addmv, int8 mm, bilinear, LSTM, GRU, embedding, elementwise, reduction, softmax, norm, optimizer,
attention (CPU), convolution, transposed convolution, complex mm, grouped mm
"""


def test_every_operator_that_torch_misses_or_gets_wrong_has_a_case() -> None:
    named = {name.strip() for name in NAMED.replace("\n", " ").split(",")}
    missing = named - {case.operator for case in CASES}
    assert not missing, f"no case for {missing}"


# --- a formula of one's own -------------------------------------------------------------------------------------------


@pytest.fixture
def own_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of operators to which a test may add, without a trace."""
    monkeypatch.setattr(operators, "OPERATORS", dict(operators.OPERATORS))
    monkeypatch.setattr(rules, "OPERATORS", operators.OPERATORS)
    monkeypatch.setattr(rules, "RULES", {})


@pytest.mark.usefixtures("own_formulas")
def test_a_formula_is_one_decorated_function() -> None:
    @torch.library.custom_op("prooflops_meta_tests::gram", mutates_args=())
    def gram(rows: Tensor) -> Tensor:
        return rows @ rows.mT

    @operators.operator("prooflops_meta_tests.gram")
    def gram_flops(out: Tensor, rows: Tensor) -> int:
        return 2 * operators.elements(out) * rows.shape[-1]

    rows = torch.ones(3, 4)
    count = flops_of(lambda: gram(rows))
    assert count.total == define.multiply_adds(rows, rows.mT), f"{count}, but the formula should be asked"
    assert not count.unknown, f"{count.unknown} should be known"


@pytest.mark.usefixtures("own_formulas")
def test_a_product_of_complex_numbers_may_have_a_real_result_besides() -> None:
    @torch.library.custom_op("prooflops_meta_tests::gram_and_lengths", mutates_args=())
    def gram_and_lengths(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows @ rows.mH, rows.abs()

    operators.operator("prooflops_meta_tests.gram_and_lengths")(lambda out, rows: 2 * len(rows) * rows.numel())
    rows = torch.ones(3, 4, dtype=torch.complex64)
    count = flops_of(lambda: gram_and_lengths(rows))
    assert count.total == define.multiply_adds(rows, rows.mH), f"{count}, but a complex product costs four real ones"


def test_the_form_of_an_operator_in_place_costs_what_the_other_does() -> None:
    for name in ("addmv", "addmm", "_fused_adam", "index_add"):
        plain, in_place = (rules.rule_of(getattr(torch.ops.aten, each).default) for each in (name, f"{name}_"))
        assert plain.kind == in_place.kind != UNKNOWN, f"{name} is counted as {plain}, in place as {in_place}"


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


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_of_operators_is_what_the_installed_torch_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    of = re.search(r"FlopCounterMode` of torch ([\d.]+) reports", written.replace("\n", " "))
    assert of, "the page should name the version of torch"
    if of[1] != version():
        pytest.skip(f"the page is of torch {of[1]}, this is {version()}")
    fresh = page()
    differing = [line for line in fresh.splitlines() if line not in written.splitlines()]
    assert written == fresh, f"python -m meta_tests.accounting.counted.operator_table --write would change {differing}"


def test_every_row_of_the_page_has_ours_right_and_torch_marked_where_it_is_wrong() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if len(row) == 5 and row[3].isdigit()]
    assert len(rows) == len(CASES), f"the page has {len(rows)} rows, but should have {len(CASES)}"
    for operator, call, theirs, ours, right in rows:
        assert ours == right, f"the page says {ours}, but should say {right} [{operator}: {call}]"
        assert ("✗" in theirs) == (theirs.split()[0] != right), f"{theirs} is marked wrongly [{operator}: {call}]"


# --- convolution ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=["both", "input", "weight"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_each_gradient_of_a_convolution_costs_what_its_forward_does(
    kind: type[nn.Conv1d], groups: int, wanted: tuple[bool, bool]
) -> None:
    layer = kind(4, 8, 3, stride=2, padding=1, groups=groups)
    nn.init.constant_(layer.weight, 2.0).requires_grad_(wanted[1])
    x = torch.randint(-3, 4, (2, 4, 5)).float().requires_grad_(wanted[0])
    grad = torch.randint_like(layer(x), -3, 4)
    count = flops_of(lambda: layer(x).backward(grad))
    out, forward = define.convolution(layer, x.detach())
    input_gradient, weight_gradient, right = define.convolution_gradients(layer, x.detach(), grad, wanted)
    plain = layer(x) - (0 if layer.bias is None else layer.bias[:, None])
    assert torch.allclose(plain, out, atol=1e-5), "the definition should give torch's result"
    assert x.grad is None or torch.equal(x.grad, input_gradient), "the definition should give torch's gradient"
    assert layer.weight.grad is None or torch.equal(layer.weight.grad, weight_gradient), "of the weight as well"
    assert count.forward == forward, f"{count}, but should be {forward} forward [{groups=}]"
    assert count.backward == right, f"counted {count}, but should be {right} [{groups=}]"


# --- recurrent layers on cuDNN ----------------------------------------------------------------------------------------


def test_the_biases_of_a_recurrent_layer_are_ignored() -> None:
    layer = nn.LSTM(3, 5, num_layers=2)
    weights = list(layer.parameters())  # cuDNN is handed all of them, biases included
    token, state = torch.randn(1, 3), torch.randn(1, 5)
    per_token = define.multiply_adds(token, layer.weight_ih_l0.T) + 3 * define.multiply_adds(
        state, layer.weight_hh_l0.T
    )
    figure = operators.OPERATORS["aten._cudnn_rnn"].formula(None, torch.empty(4, 2, 3), weights)
    assert figure == 8 * per_token, f"{figure}, but should be {8 * per_token}"
    backward = operators.OPERATORS["aten._cudnn_rnn_backward"].formula(None, torch.empty(4, 2, 3), weights)
    assert backward == 2 * figure, f"{backward}, but each matrix should have a product for its input and for itself"


def test_a_linear_layer_of_mps_costs_what_its_products_cost() -> None:
    x, weight, out = torch.empty(2, 5, 3), torch.empty(4, 3), torch.empty(2, 5, 4)
    forward = operators.OPERATORS["aten.linear"].formula(out, x, weight, None)
    backward = operators.OPERATORS["aten.linear_backward"].formula
    should = define.multiply_adds(torch.ones(10, 3), torch.ones(3, 4))
    assert forward == should, f"{forward}, but should be {should}"
    for mask, products in (((True, True, True), 2), ((False, True, False), 1), ((False, False, True), 0)):
        assert backward((x, weight, None), x, out, weight, mask) == products * should, f"{mask=}"


# --- elementwise operations and reductions, more of them --------------------------------------------------------------

wide, classes, bag = torch.randn(6, 10), torch.tensor([0, 9, 3, 3, 0, 1]), torch.tensor([[0, 1, 5]])


def there_and_back(function: Callable[[Tensor], Tensor]) -> None:
    out = function(wide.clone().requires_grad_())
    out.backward(torch.ones_like(out))


ELEMENTWISE: dict[str, tuple[Callable[[], object], int]] = {
    "in place, untagged": (lambda: wide.clone().masked_fill_(wide > 0, 0), 60 + 60),
    "the result of a broadcast": (lambda: torch.ones(6, 1) + torch.ones(10), 60),
    "a mean of everything": (lambda: torch.mean(wide), 60),
    "a maximum with places": (lambda: wide.max(1), 60),
    "a norm": (lambda: torch.linalg.vector_norm(wide), 60),
    "a running sum": (lambda: wide.cumsum(0), 60),
    "a list of tensors": (lambda: torch._foreach_mul([wide, wide], 2.0), 120),
    "an outer product": (lambda: torch.outer(wide[0], wide[1]), 100),
    "a bag of an embedding adds its rows": (lambda: F.embedding_bag(bag, wide, mode="sum"), 30),
    "its gradient adds them to a table": (
        lambda: there_and_back(lambda x: F.embedding_bag(bag, x, mode="sum")),
        30 + 30,
    ),
    "added at indices": (lambda: wide.clone().index_add_(0, torch.tensor([1, 1]), wide[:2]), 20),
    "added at places": (lambda: wide.scatter_add(0, torch.zeros(2, 3, dtype=torch.long), wide), 6),
    "put at indices": (lambda: wide.clone().index_put_((torch.tensor([1]),), wide[:1]), 0),
    "max pooling reads every window": (lambda: F.max_pool2d(wide[None, :, :], 2), 3 * 5 * 4),
    "average pooling reads every window": (lambda: F.avg_pool2d(wide[None, :, :], (2, 5)), 3 * 2 * 10),
    "its gradient adds to every window": (lambda: there_and_back(lambda x: F.avg_pool2d(x[None], (2, 5))), 60 + 60),
    "a window given by one size": (lambda: torch.ops.aten.avg_pool2d(wide[None, :, :], [2]), 3 * 5 * 4),
    "a window of three dimensions, too": (lambda: torch.ops.aten.avg_pool3d(wide.view(3, 2, 5, 2), [2]), 3 * 2 * 8),
    "a batch norm that has its statistics": (lambda: F.batch_norm(wide, wide[0], torch.ones(10)), 2 * 60),
    "one with weight and bias": (lambda: F.batch_norm(wide, wide[0], torch.ones(10), *wide[2:4]), 4 * 60),
    "the gradient of a squared error": (lambda: torch.ops.aten.mse_loss_backward(wide[0, 0], wide, wide, 1), 3 * 60),
    "a likelihood adds up one element a row": (lambda: F.nll_loss(wide, classes), 6),
    "its gradient writes one a row": (lambda: there_and_back(lambda x: F.nll_loss(x, classes)), 6 + 6),
    "dropout multiplies by its mask and by a number": (lambda: torch.native_dropout(wide, 0.5, True), 60 + 60),
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
    assert count.elementwise == right, f"{count.by_operator()}, but should be {right} [{name}]"
    assert count.total == 0, f"{count.by_operator()} should be no products [{name}]"
    assert not count.unknown, f"{count.unknown} should be known [{name}]"


def test_the_gradients_of_other_norms_cost_what_those_of_a_layer_norm_do() -> None:
    leaves = [each.clone().requires_grad_() for each in (wide, wide[0], wide[1])]
    outs = [
        F.layer_norm(leaves[0], (10,), *leaves[1:]),
        F.group_norm(leaves[0], 5, *leaves[1:]),
        F.batch_norm(leaves[0], None, None, *leaves[1:], training=True),
    ]
    layer, *others = (flops_of(lambda out=out: torch.autograd.grad(out, leaves, wide)).elementwise for out in outs)
    assert others == [layer] * 2, f"{others}, but for a layer norm {layer}"


def test_groups_of_equal_size_cost_what_each_costs_alone() -> None:
    figure = operators.OPERATORS["aten._grouped_mm"].formula(None, torch.empty(2, 3, 4), torch.empty(2, 4, 5))
    should = 2 * define.multiply_adds(torch.ones(3, 4), torch.ones(4, 5))
    assert figure == should, f"{figure}, but should be {should}"


def test_a_fused_rms_norm_costs_what_it_fuses() -> None:
    if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        pytest.skip(f"torch {torch.__version__} has no fused RMS norm")
    grad, x, rstd, weight = (torch.empty(shape, device="meta") for shape in ((6, 10), (6, 10), (6, 1), (10,)))
    count = flops_of(lambda: torch.ops.aten._fused_rms_norm_backward(grad, x, [10], rstd, weight, [True, True]))
    calls = define.Calls()
    define.rms_norm_backward(calls, *(torch.ones(each.shape).numpy() for each in (grad, x, rstd, weight)))
    assert count.elementwise == calls.flops, f"{count}, but should be {calls.flops}"
    fused = operators.OPERATORS["aten._fused_rms_norm"].formula((x, rstd), x, [10], weight)  # fused on CUDA alone
    unfused = flops_of(lambda: F.rms_norm(wide, (10,), wide[0])).elementwise
    assert fused == unfused, f"{fused}, but one operator after the other {unfused}"


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_a_fused_optimizer_costs_what_its_loop_over_tensors_does(
    optimizer: type[torch.optim.Optimizer], options: dict[str, float]
) -> None:
    figures = []
    for how in ({"fused": True}, {"foreach": False}):
        parameters = [torch.randn(5, 7, requires_grad=True), torch.randn(3, requires_grad=True)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        stepping = optimizer(parameters, lr=0.1, **options, **how)  # type: ignore[call-arg, arg-type]
        stepping.step()  # creates the state
        figures.append(flops_of(stepping.step).elementwise)
    assert len(set(figures)) == 1, f"fused and loop cost {figures}, but should agree [{optimizer}, {options}]"
    assert figures[0] >= 38, f"a step costs {figures[0]}, but should touch each of 38 elements"
