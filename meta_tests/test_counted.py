"""The FLOP counter: each operator it knows against numbers that count their own operations, and where it ends.

Torch's own figure stands beside ours where it is wrong today; a later torch may report the right one.
"""

import itertools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from accounting import counted, operators
from test_claims.oracles import scalars


def flops_of(act: Callable[[], object]) -> counted.Count:
    with counted.flops() as count:
        act()
    return count


def torch_flops_of(act: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        act()
    return int(counter.get_total_flops())


def multiply_adds(a: Tensor, b: Tensor) -> int:
    """FLOPs of a @ b, number by number; a complex number is two of them."""
    if a.is_complex():
        return complex_multiply_adds(a, b)
    operations = scalars.Operations()
    scalars.matmul(operations.array(a.double()), operations.array(b.double()))
    return operations.flops


def complex_multiply_adds(a: Tensor, b: Tensor) -> int:
    operations = scalars.Operations()
    pairs = [operations.array(torch.view_as_real(x).double()) for x in (a, b)]
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        real, imaginary = operations.zero(), operations.zero()
        for k in range(a.shape[1]):
            (x, y), (u, v) = pairs[0][i, k], pairs[1][k, j]
            real = real + (x * u - y * v)
            imaginary = imaginary + (x * v + y * u)
    return operations.flops


def outer_multiply_adds(u: Tensor, v: Tensor, onto: Tensor) -> int:
    operations = scalars.Operations()
    rows, columns, sums = operations.array(u), operations.array(v), operations.array(onto)
    for i, j in np.ndindex(sums.shape):
        sums[i, j] = sums[i, j] + rows[i] * columns[j]
    return operations.flops


x, y, square = torch.randn(4), torch.randn(4), torch.randn(4, 4)
a, b = torch.randn(3, 4), torch.randn(4, 5)
batch_a, batch_b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
byte_a, byte_b = torch.ones(20, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
complex_a, complex_b = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 5, dtype=torch.complex64)
half_a, packed_b = torch.ones(4, 32, dtype=torch.bfloat16), torch.ones(8, 32, dtype=torch.int8)
# Shapes alone: a CPU multiplies fp8 only since 2.7.
fp8_a, fp8_b = (torch.empty(16, 32, dtype=torch.float8_e4m3fn, device="meta") for _ in range(2))
one = torch.ones((), device="meta")
wide_a, wide_b = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(2, 16, 24, dtype=torch.bfloat16)
ends = torch.tensor([3, 8], dtype=torch.int32)

# What is called, what it costs number by number, and what torch's counter says of it in 2.13.
PRODUCTS: dict[str, tuple[Callable[[], object], Callable[[], int], int]] = {
    "mv": (lambda: a @ x, lambda: multiply_adds(a, x[:, None]), 0),
    "dot": (lambda: torch.dot(x, y), lambda: multiply_adds(x[None], y[:, None]), 0),
    "vdot": (
        lambda: torch.vdot(complex_a[0], complex_a[1]),
        lambda: multiply_adds(complex_a[:1], complex_a[1:2].mT),
        0,
    ),
    "addmv": (lambda: torch.addmv(torch.ones(3), a, x), lambda: multiply_adds(a, x[:, None]), 0),
    "addmv_": (lambda: torch.ones(3).addmv_(a, x), lambda: multiply_adds(a, x[:, None]), 0),
    "mv out=": (lambda: torch.mv(a, x, out=torch.empty(3)), lambda: multiply_adds(a, x[:, None]), 0),
    "addr": (lambda: torch.addr(square, x, y), lambda: outer_multiply_adds(x, y, square), 0),
    "addr_": (lambda: square.clone().addr_(x, y), lambda: outer_multiply_adds(x, y, square), 0),
    "addmm_": (lambda: torch.ones(3, 5).addmm_(a, b), lambda: multiply_adds(a, b), 0),
    "baddbmm_": (lambda: torch.ones(2, 3, 5).baddbmm_(batch_a, batch_b), lambda: multiply_adds(batch_a, batch_b), 0),
    "addbmm": (lambda: torch.addbmm(torch.ones(3, 5), batch_a, batch_b), lambda: multiply_adds(batch_a, batch_b), 0),
    "addbmm_": (lambda: torch.ones(3, 5).addbmm_(batch_a, batch_b), lambda: multiply_adds(batch_a, batch_b), 0),
    "_addmm_activation": (
        lambda: torch._addmm_activation(torch.ones(5), a, b, use_gelu=True),
        lambda: multiply_adds(a, b),
        0,
    ),
    "_int_mm": (lambda: torch._int_mm(byte_a, byte_b), lambda: multiply_adds(byte_a, byte_b), 0),
    "_weight_int8pack_mm": (
        lambda: torch._weight_int8pack_mm(half_a, packed_b, torch.ones(8, dtype=torch.bfloat16)),
        lambda: multiply_adds(half_a, packed_b.T),
        0,
    ),
    "_scaled_mm": (
        lambda: torch._scaled_mm(fp8_a, fp8_b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
        lambda: multiply_adds(torch.ones(16, 32), torch.ones(32, 16)),
        0,  # before 2.7
    ),
    "_grouped_mm": (
        lambda: torch._grouped_mm(wide_a, wide_b, offs=ends),
        lambda: multiply_adds(wide_a[:3], wide_b[0]) + multiply_adds(wide_a[3:], wide_b[1]),
        0,
    ),
    "complex mm": (lambda: complex_a @ complex_b, lambda: multiply_adds(complex_a, complex_b), 2 * 3 * 4 * 5),
    "complex mv": (lambda: complex_a @ complex_b[:, 0], lambda: multiply_adds(complex_a, complex_b[:, :1]), 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_costs_the_multiplications_and_additions_of_its_definition(name: str) -> None:
    act, definition, torch_says = PRODUCTS[name]
    if name.startswith("_") and not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    count, right = flops_of(act), definition()
    assert count.total == right, f"counted {count}, but should be {right} [{name}]"
    assert not count.unknown, f"{count.unknown} should be known [{name}]"
    theirs = torch_flops_of(act)
    assert theirs in (torch_says, right), f"torch reports {theirs}, but was known for {torch_says} [{name}]"


def convolution_gradients(
    layer: nn.Conv1d | nn.ConvTranspose1d, x: Tensor, grad: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor, int]:
    """Gradients of the input and the weight, term by term, and the FLOPs of those that are wanted.

    A window slides over the padded `wide` side and meets one `narrow` element at each place: the input is the wide
    side of a plain convolution, the narrow one of a transposed one.
    """
    transposed, (padding,) = isinstance(layer, nn.ConvTranspose1d), layer.padding
    operations = scalars.Operations()
    wide, narrow = (grad, x) if transposed else (x, grad)
    wide, narrow = operations.array(F.pad(wide, (padding, padding))), operations.array(narrow)
    weight = operations.array(layer.weight.detach())
    input_gradient = operations.array(torch.zeros((narrow if transposed else wide).shape))
    weight_gradient = operations.array(torch.zeros(weight.shape))
    narrow_channels, wide_channels = narrow.shape[1] // layer.groups, wide.shape[1] // layer.groups
    for n, c, place in np.ndindex(narrow.shape):
        for i, tap in np.ndindex(wide_channels, weight.shape[2]):
            point = (n, c, place)
            seen = (n, c // narrow_channels * wide_channels + i, place * layer.stride[0] + tap)
            if wanted[0]:
                to, output_gradient = (point, wide[seen]) if transposed else (seen, narrow[point])
                input_gradient[to] = input_gradient[to] + weight[c, i, tap] * output_gradient
            if wanted[1]:
                weight_gradient[c, i, tap] = weight_gradient[c, i, tap] + wide[seen] * narrow[point]
    inside = slice(None) if transposed else slice(padding, padding + x.shape[2])
    return scalars.tensor(input_gradient)[..., inside], scalars.tensor(weight_gradient), operations.flops


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
    input_gradient, weight_gradient, right = convolution_gradients(layer, x.detach(), grad, wanted)
    assert x.grad is None or torch.equal(x.grad, input_gradient), "the definition should give torch's gradient"
    assert layer.weight.grad is None or torch.equal(layer.weight.grad, weight_gradient), "of the weight as well"
    assert count.backward == right, f"counted {count}, but should be {right} [{groups=}]"
    assert count.forward * sum(wanted) == right, f"{count.forward=}, but each gradient costs {right // sum(wanted)}"


def test_torch_counts_the_backward_of_a_grouped_convolution_too_high() -> None:
    layer = nn.Conv1d(4, 4, 3, groups=2)

    def step() -> None:
        layer(torch.randn(1, 4, 6, requires_grad=True)).sum().backward()

    count, theirs = flops_of(step), torch_flops_of(step)
    assert (count.forward, count.backward) == (192, 384), f"{count}, but should be 192 forward, 384 backward"
    assert theirs - 192 in (576, 960, 384), f"torch reports {theirs - 192} backward, but was known for too much"


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_fused_attention_of_the_cpu_costs_two_products_forward_and_five_backward(key_heads: int) -> None:
    query, key, value = (torch.randn(1, heads, n, 4) for heads, n in ((4, 5), (key_heads, 6), (key_heads, 6)))
    leaves = [each.requires_grad_() for each in (query, key, value)]

    def step() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reasons why there is no kernel
            F.scaled_dot_product_attention(*leaves, enable_gqa=key_heads != 4).sum().backward()

    operations = scalars.Operations()
    numbers = [operations.array(each[0].detach()) for each in leaves]
    _, forward, backward = scalars.attention(*numbers, causal=False, output_gradient=torch.ones(4, 5, 4), flash=True)
    try:
        count = flops_of(step)
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__} has no fused attention for this: {error}")
    assert (count.forward, count.backward) == (forward.flops, backward.flops), (
        f"{count}, but should be {forward.flops} forward, {backward.flops} backward"
    )
    theirs = torch_flops_of(step)
    assert theirs in (0, count.total), f"torch reports {theirs}, but was known for 0"


def test_causal_attention_is_counted_in_full_and_the_unfused_path_has_four_products_backward() -> None:
    leaf = torch.randn(1, 2, 8, 4, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        count = flops_of(lambda: F.scaled_dot_product_attention(leaf, leaf, leaf, is_causal=True).sum().backward())
    one = multiply_adds(leaf[0], leaf[0].mT)
    assert (count.forward, count.backward) == (2 * one, 4 * one), f"{count}, but one full product costs {one}"


def test_a_recurrent_layer_costs_its_matrices_once_per_token_and_twice_that_backward() -> None:
    layer = nn.LSTM(3, 5)
    tokens = torch.randn(4, 2, 3, requires_grad=True)
    count = flops_of(lambda: layer(tokens)[0].sum().backward())
    token, state = torch.randn(1, 3), torch.randn(1, 5)
    per_token = multiply_adds(token, layer.weight_ih_l0.T) + multiply_adds(state, layer.weight_hh_l0.T)
    assert count.forward == 8 * per_token, f"{count}, but should be {8 * per_token} forward"
    assert count.backward == 2 * count.forward, f"{count}, but should be {2 * count.forward} backward"


def test_the_biases_of_a_recurrent_layer_are_ignored() -> None:
    layer = nn.LSTM(3, 5, num_layers=2)
    weights = list(layer.parameters())  # cuDNN is handed all of them, biases included
    token, state = torch.randn(1, 3), torch.randn(1, 5)
    per_token = multiply_adds(token, layer.weight_ih_l0.T) + 3 * multiply_adds(state, layer.weight_hh_l0.T)
    figure = operators.PRODUCTS["_cudnn_rnn"](None, torch.empty(4, 2, 3), weights)
    assert figure == 8 * per_token, f"{figure}, but should be {8 * per_token}"


def test_a_whole_step_of_a_net_costs_what_its_numbers_do() -> None:
    matrices = [torch.randint(-3, 4, shape).float() for shape in ((3, 4), (4, 5), (5, 2))]
    net = scalars.Net.of(matrices)
    data = torch.randint(-3, 4, (6, 3)).float()
    net.run([[net.node(value, needs_gradient=False) for value in row] for row in data.tolist()], torch.ones(6, 2))
    layers = [matrix.clone().requires_grad_() for matrix in matrices]
    count = flops_of(lambda: (data @ layers[0] @ layers[1] @ layers[2]).sum().backward())
    backward = net.weight_gradient.flops + net.input_gradient.flops
    assert count.forward == net.forward.flops, f"{count}, but should be {net.forward.flops} forward"
    assert count.backward == backward, f"{count}, but should be {backward} backward"


# --- elementwise operations and reductions ----------------------------------------------------------------------------

wide = torch.randn(6, 10)
ELEMENTWISE: dict[str, tuple[Callable[[], object], int]] = {
    "a function of each element": (lambda: torch.exp(wide), 60),
    "in place": (lambda: wide.clone().mul_(2), 60),
    "in place, untagged": (lambda: wide.clone().masked_fill_(wide > 0, 0), 60 + 60),
    "the result of a broadcast": (lambda: torch.ones(6, 1) + torch.ones(10), 60),
    "a sum reads its input": (lambda: wide.sum(0), 60),
    "a mean reads its input": (lambda: torch.mean(wide), 60),
    "a maximum with places": (lambda: wide.max(1), 60),
    "a norm": (lambda: torch.linalg.vector_norm(wide), 60),
    "a running sum": (lambda: wide.cumsum(0), 60),
    "a list of tensors": (lambda: torch._foreach_mul([wide, wide], 2.0), 120),
    "an outer product": (lambda: torch.outer(wide[0], wide[1]), 100),
    "an embedding's gradient adds every row it is given": (
        lambda: F.embedding(torch.zeros(4, dtype=torch.long), wide.clone().requires_grad_()).backward(wide[:4]),
        40,
    ),
    "added at indices": (lambda: wide.clone().index_add_(0, torch.tensor([1, 1]), wide[:2]), 20),
    "put at indices": (lambda: wide.clone().index_put_((torch.tensor([1]),), wide[:1]), 0),
    "max pooling reads every window": (lambda: F.max_pool2d(wide[None, :, :], 2), 3 * 5 * 4),
    "average pooling reads every window": (lambda: F.avg_pool2d(wide[None, :, :], (2, 5)), 3 * 2 * 10),
    "a window given by one size": (lambda: torch.ops.aten.avg_pool2d(wide[None, :, :], [2]), 3 * 5 * 4),
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
    assert count.elementwise == right, f"{count.elementwise_by_operator}, but should be {right} [{name}]"
    assert count.total == 0, f"{count.by_operator} should be no products [{name}]"
    assert not count.unknown, f"{count.unknown} should be known [{name}]"


def unfused_softmax(x: Tensor) -> Tensor:
    grown = (x - x.amax(1, keepdim=True)).exp()
    return grown / grown.sum(1, keepdim=True)


def unfused_log_softmax(x: Tensor) -> Tensor:
    shifted = x - x.amax(1, keepdim=True)
    return shifted - shifted.exp().sum(1, keepdim=True).log()


def unfused_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Any = 1) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    result = centred * ((centred * centred).mean(dims, keepdim=True) + 1e-5).rsqrt()
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def unfused_norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    normal = (x - mean) * rstd
    inner = grad * weight
    along = normal * (inner * normal).mean(1, keepdim=True)
    return (inner - inner.mean(1, keepdim=True) - along) * rstd, (grad * normal).sum(0), grad.sum(0)


def unfused_rms_norm_backward(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    normal, inner = x * rstd, grad * weight
    return (inner - normal * (inner * normal).mean(1, keepdim=True)) * rstd, (grad * normal).sum(0)


weight, bias, mean, rstd = torch.randn(10), torch.randn(10), torch.randn(6, 1), torch.rand(6, 1)
soft = torch.softmax(wide, 1)
grad = torch.randn(6, 10)
FUSED: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "softmax": (lambda: torch.softmax(wide, 1), lambda: unfused_softmax(wide)),
    "softmax backward": (
        lambda: torch.ops.aten._softmax_backward_data(grad, soft, 1, torch.float32),
        lambda: soft * (grad - (grad * soft).sum(1, keepdim=True)),
    ),
    "log softmax": (lambda: torch.log_softmax(wide, 1), lambda: unfused_log_softmax(wide)),
    "log softmax backward": (
        lambda: torch.ops.aten._log_softmax_backward_data(grad, soft, 1, torch.float32),
        lambda: grad - soft.exp() * grad.sum(1, keepdim=True),
    ),
    "layer norm": (lambda: F.layer_norm(wide, (10,), weight, bias), lambda: unfused_norm(wide, weight, bias)),
    "layer norm without a weight": (lambda: F.layer_norm(wide, (10,)), lambda: unfused_norm(wide, None, None)),
    "layer norm backward": (
        lambda: torch.ops.aten.native_layer_norm_backward(grad, wide, [10], mean, rstd, weight, bias, [True] * 3),
        lambda: unfused_norm_backward(grad, wide, mean, rstd, weight),
    ),
    "group norm": (
        lambda: F.group_norm(wide, 5, weight, bias),
        lambda: unfused_norm(wide.view(6, 5, 2), weight.view(5, 2), bias.view(5, 2), dims=2),
    ),
    "batch norm": (
        lambda: F.batch_norm(wide, None, None, weight, bias, training=True),
        lambda: unfused_norm(wide, weight, bias, dims=0),
    ),
    "mean squared error": (lambda: F.mse_loss(wide, grad), lambda: torch.sum((wide - grad).square())),
}
if hasattr(torch.ops.aten, "_fused_rms_norm_backward"):  # since 2.9, for accelerators
    FUSED["RMS norm backward"] = (
        lambda: torch.ops.aten._fused_rms_norm_backward(
            *(each.to("meta") for each in (grad, wide)), [10], rstd.to("meta"), weight.to("meta"), [True, True]
        ),
        lambda: unfused_rms_norm_backward(grad, wide, rstd, weight),
    )


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_operation_costs_what_it_fuses(name: str) -> None:
    fused, unfused = (flops_of(act) for act in FUSED[name])
    assert len(unfused.elementwise_by_operator) > 1, "the unfused form should be made of several operations"
    assert fused.elementwise == unfused.elementwise, f"{fused}, but unfused it costs {unfused} [{name}]"


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_a_fused_optimizer_costs_what_its_loop_over_tensors_does(optimizer: Any, options: dict[str, Any]) -> None:
    figures = []
    for how in ({"fused": True}, {"foreach": False}):
        parameters = [torch.randn(5, 7, requires_grad=True), torch.randn(3, requires_grad=True)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        stepping = optimizer(parameters, lr=0.1, **options, **how)
        stepping.step()  # creates the state
        figures.append(flops_of(stepping.step).elementwise)
    assert len(set(figures)) == 1, f"fused and loop cost {figures}, but should agree [{optimizer}, {options}]"
    assert figures[0] >= 38, f"a step costs {figures[0]}, but should touch each of 38 elements"


# --- bytes moved ------------------------------------------------------------------------------------------------------


def fused_optimizer_step() -> None:
    parameter = torch.empty(38, requires_grad=True)
    parameter.grad = torch.empty(38)
    torch.optim.AdamW([parameter], fused=True).step()


column, half, rows = wide[:, :1], wide.to(torch.bfloat16), torch.tensor([0, 0, 5, 2])
MOVED: dict[str, tuple[Callable[[], object], int]] = {
    "a product": (lambda: a @ b, 4 * (12 + 20 + 15)),
    "a product in bf16": (lambda: half @ half.T, 2 * (60 + 60 + 36)),
    "two read, one written": (lambda: wide + wide, 3 * 240),
    "an argument that is broadcast": (lambda: wide + column, 2 * 240 + 24),
    "an update in place": (lambda: wide.clone().relu_(), 2 * 240 + 2 * 240),
    "an update of a list": (lambda: torch._foreach_mul_([wide.clone(), wide.clone()], 1.0), 4 * 240 + 4 * 240),
    "a result given": (lambda: torch.add(wide, wide, out=torch.empty(6, 10)), 3 * 240),
    "a copy": (lambda: torch.empty(6, 10).copy_(half), 240 + 120),
    "a fill": (lambda: torch.empty(6, 10).fill_(1.0), 240),
    "a likeness": (lambda: torch.zeros_like(wide), 240),
    "a reduction": (lambda: wide.sum(0), 240 + 40),
    "a view": (lambda: wide.t()[1:].unsqueeze(0).expand(4, -1, -1), 0),
    "nothing but allocated": (lambda: torch.empty_like(wide), 0),
    "rows of a table": (lambda: F.embedding(rows, wide), 2 * 160 + 32),
    # The state is created by two zeros_like and a scalar; the count of steps is read, and updated beforehand.
    "a fused optimizer's first step": (fused_optimizer_step, 152 * (2 + 4 + 3) + 4 * (1 + 1 + 2)),
}


@pytest.mark.parametrize("name", MOVED)
def test_bytes_moved_are_those_of_every_tensor_read_and_written_once(name: str) -> None:
    act, right = MOVED[name]
    count = flops_of(act)
    assert count.moved_bytes == right, f"{count.moved_bytes_by_operator}, but should be {right} [{name}]"


# --- what a figure belongs to -----------------------------------------------------------------------------------------


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 5, bias=False)))


def test_flops_are_told_apart_by_module_pass_and_operator() -> None:
    count = flops_of(lambda: net()(torch.randn(2, 3)).sum().backward())
    assert count.by_operator == {"aten.addmm": 48, "aten.mm": 80 + 160 + 48}, f"{count.by_operator}"
    assert count.forward_by_operator == {"aten.addmm": 48, "aten.mm": 80}, f"{count.forward_by_operator}"
    assert count.backward_by_operator == {"aten.mm": 160 + 48}, f"{count.backward_by_operator}"
    forward, backward = count.forward_by_module, count.backward_by_module
    assert forward["Sequential.0"] == 48, f"{forward}"
    assert forward["Sequential.2"] == forward["Sequential.2.0"] == 80, f"{forward}"
    assert backward["Sequential.2.0"] == 160, f"{backward}"
    assert backward["Sequential.0"] == 48, f"{backward}"
    assert count.by_module["Global"] == count.total == count.forward + count.backward, f"{count.by_module}"
    assert count.elementwise_by_module["Sequential.1"] == 8 + 8, f"{count.elementwise_by_module}"


def test_recomputation_by_checkpointing_is_counted_within_the_backward_pass() -> None:
    layers, data = net(), torch.randn(2, 3, requires_grad=True)
    plain = flops_of(lambda: layers(data).sum().backward())
    recomputed = flops_of(lambda: checkpoint(layers, data, use_reentrant=True).sum().backward())
    assert recomputed.forward == plain.forward, f"{recomputed}, but should be {plain.forward} forward"
    assert recomputed.backward == plain.backward + plain.forward, f"{recomputed}, but plain is {plain}"


def test_a_count_can_be_read_while_it_grows() -> None:
    with counted.flops() as count:
        a @ b
        first = count.total
        a @ b
    assert (first, count.total) == (120, 240), f"{(first, count.total)}, but should be 120, then 240"


def test_nested_counts_each_count_all_that_happens_within() -> None:
    with counted.flops() as outer:
        a @ b
        with counted.flops() as inner:
            net()(torch.randn(2, 3)).sum().backward()
    alone = flops_of(lambda: net()(torch.randn(2, 3)).sum().backward())
    assert inner.by_module == alone.by_module, f"{inner.by_module}, but alone it is {alone.by_module}"
    assert inner.elementwise == alone.elementwise, f"{inner}, but alone it is {alone}"
    assert outer.total == 120 + alone.total, f"{outer}, but should be {120 + alone.total}"


def test_the_meta_device_costs_the_same_and_holds_nothing() -> None:
    def step(device: str) -> Callable[[], None]:
        layers = nn.Sequential(nn.Conv1d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)).to(device)
        return lambda: layers(torch.empty(2, 4, 6, device=device)).sum().backward()

    on_cpu, on_meta = flops_of(step("cpu")), flops_of(step("meta"))
    assert on_meta.by_operator == on_cpu.by_operator, f"{on_meta.by_operator}, but on the CPU {on_cpu.by_operator}"
    assert on_meta.elementwise == on_cpu.elementwise, f"{on_meta}, but on the CPU {on_cpu}"


# --- where it ends ----------------------------------------------------------------------------------------------------


def test_a_whole_transformer_layer_leaves_no_operator_unknown() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    optimizer = torch.optim.AdamW(layer.parameters())

    def step() -> None:
        F.cross_entropy(layer(torch.randn(2, 5, 16)).flatten(0, 1), torch.arange(10)).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    count = flops_of(step)
    assert not count.unknown, f"unknown: {count.unknown}"


def test_an_operator_without_a_formula_is_listed_with_its_calls() -> None:
    layer = nn.Bilinear(3, 4, 5)
    count = flops_of(lambda: [layer(torch.randn(2, 3), torch.randn(2, 4)) for _ in range(2)])
    assert count.unknown == {"aten._trilinear": 2}, f"{count.unknown}, but should be two calls of aten._trilinear"
    assert "aten._trilinear" in repr(count), f"{count!r} should name what is missing"


def test_a_fused_layer_of_inference_is_listed_and_not_taken_apart() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        count = flops_of(lambda: layer(torch.randn(2, 5, 16)))
    assert count.unknown == {"aten._transformer_encoder_layer_fwd": 1}, f"{count.unknown}"
    assert count.total == 0, f"{count}, but what it does inside should not be seen"


def test_a_kernel_of_somebody_else_is_listed() -> None:
    @torch.library.custom_op("proofline_meta_tests::square", mutates_args=())
    def square_of(matrix: Tensor) -> Tensor:
        return matrix @ matrix

    count = flops_of(lambda: square_of(square))
    assert count.unknown == {"proofline_meta_tests.square": 1}, f"{count.unknown}"


def test_what_other_threads_and_numpy_do_is_not_seen() -> None:
    def act() -> None:
        thread = threading.Thread(target=lambda: a @ b)
        thread.start()
        thread.join()
        a.numpy() @ b.numpy()

    count = flops_of(act)
    assert count.total == 0, f"{count}, but neither should be seen"


def test_a_wrong_operator_formula_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operators.PRODUCTS, "mv", lambda out, a, x: 7)
    counted._products.cache_clear()
    try:
        count = flops_of(lambda: a @ x)
    finally:
        counted._products.cache_clear()
    assert count.total == 7, f"{count}, but the formula of an operator is not checked by counting"
