"""One call of each operator that torch's own counter leaves out or gets wrong, and what it costs number by number."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from meta_tests.accounting.counted import operator_definitions as define
from meta_tests.accounting.counted.operator_definitions import Calls, multiply_adds

Act = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """`prepare` returns the call to be counted; `definition` carries it out number by number and returns the FLOPs."""

    operator: str
    call: str
    prepare: Callable[[], Act]
    definition: Callable[[], int]
    products: bool = True  # or elementwise

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.call}"


CASES: list[Case] = []


def product(of: str, call: str, act: Act, definition: Callable[[], int]) -> None:
    CASES.append(Case(of, call, lambda: act, definition))


def elementwise(of: str, call: str, act: Act, definition: Callable[[Calls], Any]) -> None:
    """`definition` returns the values, which must be those of the call."""

    def flops() -> int:
        calls = Calls()
        values, results = definition(calls), act()
        pairs = zip(values, results, strict=True) if isinstance(values, list) else [(values, results)]  # type: ignore[call-overload]
        for ours, theirs in pairs:
            np.testing.assert_allclose(np.squeeze(ours), np.squeeze(theirs.detach().numpy()), rtol=1e-4, atol=1e-5)
        return calls.flops

    CASES.append(Case(of, call, lambda: act, flops, products=False))


aten = torch.ops.aten
generator = torch.Generator().manual_seed(0)
normal = partial(torch.randn, generator=generator)


# --- products ---------------------------------------------------------------------------------------------------------

x, y, square = normal(4), normal(4), normal(4, 4)
a, b = normal(3, 4), normal(4, 5)
batch_a, batch_b = normal(2, 3, 4), normal(2, 4, 5)
byte_a, byte_b = torch.ones(20, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
complex_a, complex_b = normal(3, 4, dtype=torch.complex64), normal(4, 5, dtype=torch.complex64)
half_a, packed_b = torch.ones(4, 32, dtype=torch.bfloat16), torch.ones(8, 32, dtype=torch.int8)
# Shapes alone: a CPU multiplies fp8 only since 2.7.
fp8_a, fp8_b = (torch.empty(16, 32, dtype=torch.float8_e4m3fn, device="meta") for _ in range(2))
one = torch.ones((), device="meta")
wide_a, wide_b = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(2, 16, 24, dtype=torch.bfloat16)
ends = torch.tensor([3, 8], dtype=torch.int32)

product("mm", "(3, 4) @ (4, 5)", lambda: a @ b, lambda: multiply_adds(a, b))
product("mv", "(3, 4) @ (4,)", lambda: a @ x, lambda: multiply_adds(a, x[:, None]))
product("mv", "out=", lambda: torch.mv(a, x, out=torch.empty(3)), lambda: multiply_adds(a, x[:, None]))
product("dot", "(4,) @ (4,)", lambda: torch.dot(x, y), lambda: multiply_adds(x[None], y[:, None]))
product(
    "dot",
    "vdot, complex",
    lambda: torch.vdot(complex_a[0], complex_a[1]),
    lambda: multiply_adds(complex_a[:1], complex_a[1:2].mT),
)
product("addmv", "(3, 4)", lambda: torch.addmv(torch.ones(3), a, x), lambda: multiply_adds(a, x[:, None]))
product("addmv", "in place", lambda: torch.ones(3).addmv_(a, x), lambda: multiply_adds(a, x[:, None]))
product("addr", "(4, 4)", lambda: torch.addr(square, x, y), lambda: define.outer_multiply_adds(x, y, square))
product("addr", "in place", lambda: square.clone().addr_(x, y), lambda: define.outer_multiply_adds(x, y, square))
product("addmm", "in place", lambda: torch.ones(3, 5).addmm_(a, b), lambda: multiply_adds(a, b))
product(
    "addmm",
    "with an activation",
    lambda: torch._addmm_activation(torch.ones(5), a, b, use_gelu=True),
    lambda: multiply_adds(a, b),
)
product(
    "baddbmm",
    "in place",
    lambda: torch.ones(2, 3, 5).baddbmm_(batch_a, batch_b),
    lambda: multiply_adds(batch_a, batch_b),
)
product(
    "addbmm",
    "2 of (3, 4) @ (4, 5)",
    lambda: torch.addbmm(torch.ones(3, 5), batch_a, batch_b),
    lambda: multiply_adds(batch_a, batch_b),
)
product(
    "addbmm", "in place", lambda: torch.ones(3, 5).addbmm_(batch_a, batch_b), lambda: multiply_adds(batch_a, batch_b)
)
product("int8 mm", "_int_mm", lambda: torch._int_mm(byte_a, byte_b), lambda: multiply_adds(byte_a, byte_b))
product(
    "int8 mm",
    "_weight_int8pack_mm",
    lambda: torch._weight_int8pack_mm(half_a, packed_b, torch.ones(8, dtype=torch.bfloat16)),
    lambda: multiply_adds(half_a, packed_b.T),
)
product(
    "fp8 mm",
    "_scaled_mm",
    lambda: torch._scaled_mm(fp8_a, fp8_b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
    lambda: multiply_adds(torch.ones(16, 32), torch.ones(32, 16)),
)
product(
    "grouped mm",
    "_grouped_mm",
    lambda: torch._grouped_mm(wide_a, wide_b, offs=ends),
    lambda: multiply_adds(wide_a[:3], wide_b[0]) + multiply_adds(wide_a[3:], wide_b[1]),
)
product("complex mm", "(3, 4) @ (4, 5)", lambda: complex_a @ complex_b, lambda: multiply_adds(complex_a, complex_b))
product("complex mm", "mv", lambda: complex_a @ complex_b[:, 0], lambda: multiply_adds(complex_a, complex_b[:, :1]))
product(
    "complex mm",
    "bmm",
    lambda: complex_a.expand(2, 3, 4) @ complex_b.expand(2, 4, 5),
    lambda: 2 * multiply_adds(complex_a, complex_b),
)


def both_passes(of: str, call: str, forward: Act, right: Callable[[], tuple[int, int]]) -> None:
    """A forward pass and its backward pass, counted one by one."""

    def backward() -> Act:
        out = forward()
        assert isinstance(out, Tensor)
        return partial(out.backward, torch.ones_like(out))

    CASES.append(Case(of, f"{call}, forward", lambda: forward, lambda: right()[0]))
    CASES.append(Case(of, f"{call}, backward", backward, lambda: right()[1]))


bilinear, left, right = nn.Bilinear(3, 4, 5), normal(2, 3, requires_grad=True), normal(2, 4, requires_grad=True)
both_passes(
    "bilinear",
    "3, 4 -> 5",
    lambda: bilinear(left, right),
    lambda: define.bilinear(left, bilinear.weight, right, torch.ones(2, 5)),
)

tokens = normal(4, 2, 3, requires_grad=True)
lstm, gru = nn.LSTM(3, 5), nn.GRU(3, 5)
# oneDNN's fused layer computes the gradient of the initial state whether or not it is wanted.
both_passes("LSTM", "4 tokens", lambda: lstm(tokens)[0], lambda: define.recurrent(lstm, tokens, True))
both_passes("GRU", "4 tokens", lambda: gru(tokens)[0], lambda: define.recurrent(gru, tokens, False))


def fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reasons why there is no kernel
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=query.shape[1] != key.shape[1])


def attention_cases() -> Iterator[tuple[str, list[Tensor]]]:
    for heads, call in ((4, "4 heads"), (2, "4 heads, 2 key heads")):
        shapes = ((1, 4, 5, 4), (1, heads, 6, 4), (1, heads, 6, 4))
        yield call, [normal(*shape, requires_grad=True) for shape in shapes]


for call, operands in attention_cases():
    both_passes(
        "attention (CPU)",
        call,
        partial(fused_attention, *operands),
        partial(lambda q, k, v: define.attention(q[0], k[0], v[0]), *operands),
    )


def convolved(kind: type[nn.Conv1d], groups: int) -> None:
    layer = kind(4, 8, 3, stride=2, padding=1, groups=groups, bias=False)
    data = normal(2, 4, 5, requires_grad=True)

    def right() -> tuple[int, int]:
        grad = torch.ones_like(layer(data))
        *_, backward = define.convolution_gradients(layer, data.detach(), grad, (True, True))
        return define.convolution(layer, data.detach())[1], backward

    kind_of = "transposed convolution" if issubclass(kind, nn.ConvTranspose1d) else "convolution"
    both_passes(kind_of, f"{groups} group{'s' * (groups > 1)}", lambda: layer(data), right)


for kind in (nn.Conv1d, nn.ConvTranspose1d):
    for groups in (1, 2, 4):
        convolved(kind, groups)  # type: ignore[arg-type]

# --- elementwise ------------------------------------------------------------------------------------------------------

wide, grad = normal(6, 10), normal(6, 10)
weight, bias, mean, rstd = normal(10), normal(10), normal(6, 1), torch.rand(6, 1, generator=generator)
soft, log_soft = torch.softmax(wide, 1), torch.log_softmax(wide, 1)
W, G, M, R, WEIGHT, BIAS = (each.double().numpy() for each in (wide, grad, mean, rstd, weight, bias))

elementwise("elementwise", "add", lambda: wide + grad, lambda c: c.each(operator.add, W, G))
elementwise("elementwise", "exp", lambda: wide.exp(), lambda c: c.each(math.exp, W))
elementwise("elementwise", "relu", lambda: wide.relu(), lambda c: c.each(lambda v: max(v, 0.0), W))
elementwise("elementwise", "in place", lambda: wide.clone().mul_(2), lambda c: c.each(lambda v: 2 * v, W))
elementwise("elementwise", "broadcast", lambda: wide[:, :1] + weight, lambda c: c.each(operator.add, W[:, :1], WEIGHT))
elementwise("reduction", "sum", lambda: wide.sum(1), lambda c: c.total(W))
elementwise("reduction", "mean", lambda: wide.mean(1), lambda c: c.mean(W))
elementwise("reduction", "max", lambda: wide.amax(1), lambda c: c.over(1, max, W, -math.inf))
elementwise("softmax", "forward", lambda: torch.softmax(wide, 1), lambda c: define.softmax(c, W))
elementwise(
    "softmax",
    "backward",
    lambda: torch.ops.aten._softmax_backward_data(grad, soft, 1, torch.float32),
    lambda c: define.softmax_backward(c, G, soft.double().numpy()),
)
elementwise("log softmax", "forward", lambda: torch.log_softmax(wide, 1), lambda c: define.log_softmax(c, W))
elementwise(
    "log softmax",
    "backward",
    lambda: torch.ops.aten._log_softmax_backward_data(grad, log_soft, 1, torch.float32),
    lambda c: define.log_softmax_backward(c, G, log_soft.double().numpy()),
)
elementwise(
    "norm", "layer norm", lambda: F.layer_norm(wide, (10,), weight, bias), lambda c: define.norm(c, W, WEIGHT, BIAS)
)
elementwise("norm", "layer norm, plain", lambda: F.layer_norm(wide, (10,)), lambda c: define.norm(c, W))
elementwise(
    "norm",
    "layer norm, backward",
    lambda: list(torch.ops.aten.native_layer_norm_backward(grad, wide, [10], mean, rstd, weight, bias, [True] * 3)),
    lambda c: define.norm_backward(c, G, W, M, R, WEIGHT),
)
elementwise(
    "norm",
    "group norm",
    lambda: F.group_norm(wide, 5, weight, bias),
    lambda c: define.norm(c, W.reshape(6, 5, 2), WEIGHT.reshape(5, 2), BIAS.reshape(5, 2), axis=2).reshape(6, 10),
)
elementwise(
    "norm",
    "batch norm",
    lambda: F.batch_norm(wide, None, None, weight, bias, training=True),
    lambda c: define.norm(c, W, WEIGHT, BIAS, axis=0),
)
elementwise("GELU", "forward", lambda: F.gelu(wide), lambda c: define.gelu(c, W))
elementwise("GELU", "backward", lambda: aten.gelu_backward(grad, wide), lambda c: define.gelu_backward(c, G, W))
elementwise("GELU", "by tanh", lambda: F.gelu(wide, approximate="tanh"), lambda c: define.gelu_tanh(c, W))
elementwise(
    "GELU",
    "by tanh, backward",
    lambda: aten.gelu_backward(grad, wide, approximate="tanh"),
    lambda c: define.gelu_tanh_backward(c, G, W),
)
elementwise("SiLU", "forward", lambda: F.silu(wide), lambda c: define.silu(c, W))
elementwise("SiLU", "backward", lambda: aten.silu_backward(grad, wide), lambda c: define.silu_backward(c, G, W))
elementwise("loss", "mean squared error", lambda: F.mse_loss(wide, grad), lambda c: define.mean_squared_error(c, W, G))
elementwise("embedding", "forward", lambda: F.embedding(torch.tensor([0, 2]), wide), lambda c: W[[0, 2]])
elementwise(
    "embedding",
    "backward",
    lambda: torch.ops.aten.embedding_dense_backward(grad[:4], torch.tensor([0, 0, 2, 5]), 6, -1, False),
    lambda c: define.added_rows(c, np.zeros((6, 10)), (0, 0, 2, 5), G[:4]),
)

# --- optimizers -------------------------------------------------------------------------------------------------------

HOW: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def optimizer(
    name: str, kind: type[torch.optim.Optimizer], options: dict[str, float], update: Callable[..., Any]
) -> None:
    """The second step of an optimizer with two parameters, in each of its three implementations."""
    start = [normal(5, 7), normal(3)]
    gradients = [normal(5, 7), normal(3)]

    def stepping(how: dict[str, bool]) -> tuple[torch.optim.Optimizer, list[Tensor]]:
        parameters = [each.clone().requires_grad_() for each in start]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        result = kind(parameters, lr=0.1, **options, **how)  # type: ignore[call-arg, arg-type]
        result.step()
        return result, parameters

    def definition(how: dict[str, bool]) -> int:
        calls = Calls()
        stepper, parameters = stepping(how)
        stepper.step()
        for p, g, theirs in zip(start, gradients, parameters, strict=True):
            ours = update(calls, p.double().numpy(), g.double().numpy(), lr=0.1)
            np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
        return calls.flops

    for call, how in HOW.items():
        CASES.append(
            Case("optimizer", f"{name}, {call}", lambda how=how: stepping(how)[0].step, partial(definition, how), False)
        )


optimizer("AdamW", torch.optim.AdamW, {"weight_decay": 0.01}, partial(define.adam, weight_decay=0.01, decoupled=True))
optimizer("Adam", torch.optim.Adam, {}, partial(define.adam, weight_decay=0.0, decoupled=False))
optimizer(
    "Adam with decay", torch.optim.Adam, {"weight_decay": 0.1}, partial(define.adam, weight_decay=0.1, decoupled=False)
)
optimizer("SGD", torch.optim.SGD, {}, partial(define.sgd, momentum=0.0, weight_decay=0.0))
optimizer(
    "SGD with momentum",
    torch.optim.SGD,
    {"momentum": 0.9, "weight_decay": 0.1},
    partial(define.sgd, momentum=0.9, weight_decay=0.1),
)
