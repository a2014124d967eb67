"""One call of each operator that torch's own counter leaves out or gets wrong, and the page docs/operators.md of them.

Each row has a call, and the operator's definition, which counts the operations it carries out.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accounting import counted
from meta_tests.accounting.counted import operator_definitions as define
from meta_tests.accounting.counted.operator_definitions import Numbers, multiply_adds

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"
Act = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """`prepare` returns the call to be counted; `flops` are those of the definition."""

    operator: str
    call: str
    prepare: Callable[[], Act]
    flops: Callable[[], int]
    products: bool = True  # or elementwise

    def count(self) -> counted.CountedWork:
        act = self.prepare()
        with counted.flops() as count:
            act()
        return count

    def __str__(self) -> str:
        count, act, right = self.count(), self.prepare(), self.flops()
        with FlopCounterMode(display=False) as torchs:
            act()
        theirs = int(torchs.get_total_flops())
        mark = "" if theirs == right else " **✗**"
        ours = count.total if self.products else count.elementwise
        return f"| {self.operator} | {self.call} | {theirs}{mark} | {ours} | {right} |"


ROWS: list[Row] = []
aten = torch.ops.aten
normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))

# --- products ---------------------------------------------------------------------------------------------------------


def product(of: str, call: str, act: Act, flops: Callable[[], int]) -> None:
    ROWS.append(Row(of, call, lambda: act, flops))


def both_passes(of: str, call: str, forward: Callable[[], Tensor], flops: Callable[[], tuple[int, int]]) -> None:
    def backward() -> Act:
        out = forward()
        return partial(out.backward, torch.ones_like(out))

    product(of, f"{call}, forward", forward, lambda: flops()[0])
    ROWS.append(Row(of, f"{call}, backward", backward, lambda: flops()[1]))


x, y, square = normal(4), normal(4), normal(4, 4)
a, b, batch_a, batch_b = normal(3, 4), normal(4, 5), normal(2, 3, 4), normal(2, 4, 5)
byte_a, byte_b = torch.ones(20, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
complex_a, complex_b = normal(3, 4, dtype=torch.complex64), normal(4, 5, dtype=torch.complex64)
half_a, packed_b = torch.ones(4, 32, dtype=torch.bfloat16), torch.ones(8, 32, dtype=torch.int8)
# Shapes alone: a CPU multiplies fp8 only since 2.7.
fp8_a, fp8_b = (torch.empty(16, 32, dtype=torch.float8_e4m3fn, device="meta") for _ in range(2))
scales = {"scale_a": torch.ones((), device="meta"), "scale_b": torch.ones((), device="meta")}
wide_a, wide_b = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(2, 16, 24, dtype=torch.bfloat16)
ends = torch.tensor([3, 8], dtype=torch.int32)
a_b, a_x = partial(multiply_adds, a, b), partial(multiply_adds, a, x[:, None])
batched = partial(multiply_adds, batch_a, batch_b)
outer = partial(define.outer_multiply_adds, x, y, square)

product("mm", "(3, 4) @ (4, 5)", lambda: a @ b, a_b)
product("mv", "(3, 4) @ (4,)", lambda: a @ x, a_x)
product("mv", "out=", lambda: torch.mv(a, x, out=torch.empty(3)), a_x)
product("dot", "(4,) @ (4,)", lambda: torch.dot(x, y), lambda: multiply_adds(x[None], y[:, None]))
row, column = complex_a[:1], complex_a[1:2].mT
product("dot", "vdot, complex", lambda: torch.vdot(row[0], column[:, 0]), lambda: multiply_adds(row, column))
product("addmv", "(3, 4)", lambda: torch.addmv(torch.ones(3), a, x), a_x)
product("addmv", "in place", lambda: torch.ones(3).addmv_(a, x), a_x)
product("addr", "(4, 4)", lambda: torch.addr(square, x, y), outer)
product("addr", "in place", lambda: square.clone().addr_(x, y), outer)
product("addmm", "in place", lambda: torch.ones(3, 5).addmm_(a, b), a_b)
product("addmm", "with an activation", lambda: torch._addmm_activation(torch.ones(5), a, b, use_gelu=True), a_b)
product("baddbmm", "in place", lambda: torch.ones(2, 3, 5).baddbmm_(batch_a, batch_b), batched)
product("addbmm", "2 of (3, 4) @ (4, 5)", lambda: torch.addbmm(torch.ones(3, 5), batch_a, batch_b), batched)
product("addbmm", "in place", lambda: torch.ones(3, 5).addbmm_(batch_a, batch_b), batched)
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
    lambda: torch._scaled_mm(fp8_a, fp8_b.t(), **scales, out_dtype=torch.bfloat16),
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

bilinear, left, right = nn.Bilinear(3, 4, 5), normal(2, 3, requires_grad=True), normal(2, 4, requires_grad=True)
ones = torch.ones(2, 5)
both_passes(
    "bilinear",
    "3, 4 -> 5",
    lambda: bilinear(left, right),
    lambda: define.bilinear(left, bilinear.weight, right, ones),
)
tokens, lstm, gru = normal(4, 2, 3, requires_grad=True), nn.LSTM(3, 5), nn.GRU(3, 5)
# oneDNN's fused layer computes the gradient of the initial state whether or not it is wanted.
both_passes("LSTM", "4 tokens", lambda: lstm(tokens)[0], lambda: define.recurrent(lstm, tokens, True))
both_passes("GRU", "4 tokens", lambda: gru(tokens)[0], lambda: define.recurrent(gru, tokens, False))


def fused_attention(*operands: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reasons why there is no kernel
        return F.scaled_dot_product_attention(*operands, enable_gqa=operands[0].shape[1] != operands[1].shape[1])


for heads, call in ((4, "4 heads"), (2, "4 heads, 2 key heads")):
    operands = [normal(1, *shape, requires_grad=True) for shape in ((4, 5, 4), (heads, 6, 4), (heads, 6, 4))]
    flops = partial(define.attention, *(each[0] for each in operands))
    both_passes("attention (CPU)", call, partial(fused_attention, *operands), flops)

for kind, name in ((nn.Conv1d, "convolution"), (nn.ConvTranspose1d, "transposed convolution")):
    for groups in (1, 2, 4):
        layer, data = kind(4, 8, 3, stride=2, padding=1, groups=groups, bias=False), normal(2, 4, 5, requires_grad=True)
        call = f"{groups} group{'s' * (groups > 1)}"
        both_passes(name, call, partial(layer, data), partial(define.convolution, layer, data))

# --- elementwise ------------------------------------------------------------------------------------------------------


def elementwise(of: str, call: str, act: Act, definition: Callable[..., Any], *given: Tensor) -> None:
    """`definition` of the tensors `given` returns the values, which must be those of the call."""

    def flops() -> int:
        tally = [0]
        returned, results = definition(*(Numbers(each.detach(), tally) for each in given)), act()
        for ours, theirs in (
            zip(returned, results, strict=True) if isinstance(returned, list) else [(returned, results)]
        ):
            values = ours.values.reshape(theirs.shape)
            np.testing.assert_allclose(values, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
        return tally[0]

    ROWS.append(Row(of, call, lambda: act, flops, products=False))


wide, grad, weight, bias, mean = normal(6, 10), normal(6, 10), normal(10), normal(10), normal(6, 1)
rstd = torch.rand(6, 1, generator=torch.Generator().manual_seed(1))
soft, log_soft = torch.softmax(wide, 1), torch.log_softmax(wide, 1)
pairs, of_pair = wide.view(6, 5, 2), (weight.view(5, 2), bias.view(5, 2))  # groups of two channels
rows = torch.tensor([0, 0, 2, 5])


def added_rows(added: Numbers) -> Numbers:
    """Each row of a gradient onto its row of a table."""
    table = np.zeros((6, 10))
    for place, values in zip(rows, added.values, strict=True):
        table[place] = Numbers(table[place], added.tally).each(operator.add, values).values
    return Numbers(table, added.tally)


elementwise("elementwise", "add", lambda: wide + grad, operator.add, wide, grad)
elementwise("elementwise", "exp", lambda: wide.exp(), Numbers.exp, wide)
elementwise("elementwise", "relu", lambda: wide.relu(), lambda n: n.each(np.maximum, 0.0), wide)
elementwise("elementwise", "in place", lambda: wide.clone().mul_(2), lambda n: n * 2, wide)
elementwise("elementwise", "broadcast", lambda: wide[:, :1] + weight, operator.add, wide[:, :1], weight)
elementwise("reduction", "sum", lambda: wide.sum(1), Numbers.sum, wide)
elementwise("reduction", "mean", lambda: wide.mean(1), Numbers.mean, wide)
elementwise("reduction", "max", lambda: wide.amax(1), lambda n: n.over(np.maximum), wide)
elementwise("softmax", "forward", lambda: torch.softmax(wide, 1), define.softmax, wide)
softmax_backward = lambda: aten._softmax_backward_data(grad, soft, 1, torch.float32)  # noqa: E731
elementwise("softmax", "backward", softmax_backward, define.softmax_backward, grad, soft)
elementwise("log softmax", "forward", lambda: torch.log_softmax(wide, 1), define.log_softmax, wide)
log_softmax_backward = lambda: aten._log_softmax_backward_data(grad, log_soft, 1, torch.float32)  # noqa: E731
elementwise("log softmax", "backward", log_softmax_backward, define.log_softmax_backward, grad, log_soft)
elementwise("norm", "layer norm", lambda: F.layer_norm(wide, (10,), weight, bias), define.norm, wide, weight, bias)
elementwise("norm", "layer norm, plain", lambda: F.layer_norm(wide, (10,)), define.norm, wide)
elementwise(
    "norm",
    "layer norm, backward",
    lambda: list(aten.native_layer_norm_backward(grad, wide, [10], mean, rstd, weight, bias, [True] * 3)),
    define.norm_backward,
    *(grad, wide, mean, rstd, weight),
)
along = partial(define.norm, axis=2), partial(define.norm, axis=0)
elementwise("norm", "group norm", lambda: F.group_norm(wide, 5, weight, bias), along[0], pairs, *of_pair)
batch_norm = partial(F.batch_norm, wide, None, None, weight, bias, training=True)
elementwise("norm", "batch norm", batch_norm, along[1], wide, weight, bias)
elementwise("GELU", "forward", lambda: F.gelu(wide), define.gelu, wide)
elementwise("GELU", "backward", lambda: aten.gelu_backward(grad, wide), define.gelu_backward, grad, wide)
elementwise("GELU", "by tanh", lambda: F.gelu(wide, approximate="tanh"), define.gelu_tanh, wide)
tanh_backward = partial(aten.gelu_backward, grad, wide, approximate="tanh")
elementwise("GELU", "by tanh, backward", tanh_backward, define.gelu_tanh_backward, grad, wide)
elementwise("SiLU", "forward", lambda: F.silu(wide), define.silu, wide)
elementwise("SiLU", "backward", lambda: aten.silu_backward(grad, wide), define.silu_backward, grad, wide)
elementwise("loss", "mean squared error", lambda: F.mse_loss(wide, grad), define.mean_squared_error, wide, grad)
elementwise("embedding", "forward", lambda: F.embedding(rows, wide), lambda n: Numbers(n.values[rows], n.tally), wide)
embedding_backward = partial(aten.embedding_dense_backward, grad[:4], rows, 6, -1, False)
elementwise("embedding", "backward", embedding_backward, added_rows, grad[:4])

# --- optimizers -------------------------------------------------------------------------------------------------------

HOW: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
START, GRADIENTS = [normal(5, 7), normal(3)], [normal(5, 7), normal(3)]


def stepped_once(kind: Any, options: dict[str, Any]) -> tuple[torch.optim.Optimizer, list[Tensor]]:
    """An optimizer of two parameters, 38 elements together, whose state exists."""
    parameters = [each.clone().requires_grad_() for each in START]
    for parameter, gradient in zip(parameters, GRADIENTS, strict=True):
        parameter.grad = gradient.clone()
    optimizer = kind(parameters, lr=0.1, **options)
    optimizer.step()
    return optimizer, parameters


def optimizer(name: str, kind: Any, options: dict[str, float], update: Callable[..., Numbers]) -> None:
    """The second step of an optimizer, in each of its three implementations."""

    def flops(how: dict[str, bool]) -> int:
        optimizer, parameters = stepped_once(kind, {**options, **how})
        optimizer.step()
        total = 0
        for p, g, theirs in zip(START, GRADIENTS, parameters, strict=True):
            tally = [0]
            ours = update(Numbers(p, tally), Numbers(g, tally), lr=0.1)
            np.testing.assert_allclose(ours.values, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
            total += tally[0]
        return total

    for call, how in HOW.items():
        prepare = partial(lambda given: stepped_once(kind, given)[0].step, {**options, **how})
        ROWS.append(Row("optimizer", f"{name}, {call}", prepare, partial(flops, how), products=False))


Adam, SGD = torch.optim.Adam, torch.optim.SGD
decay = partial(define.adam, decoupled=False)
optimizer("AdamW", torch.optim.AdamW, {"weight_decay": 0.01}, partial(define.adam, weight_decay=0.01, decoupled=True))
optimizer("Adam", Adam, {}, partial(decay, weight_decay=0.0))
optimizer("Adam with decay", Adam, {"weight_decay": 0.1}, partial(decay, weight_decay=0.1))
optimizer("SGD", SGD, {}, partial(define.sgd, momentum=0.0, weight_decay=0.0))
decayed = {"momentum": 0.9, "weight_decay": 0.1}
optimizer("SGD with momentum", SGD, decayed, partial(define.sgd, **decayed))

# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = """\
# FLOPs by operator: torch's counter, ours, and number by number

`accounting.counted.flops()` applies a formula to each operator that a program dispatches. Here each formula is held
against the operator's definition, which counts every multiplication, addition and call of a function that it carries
out (`meta_tests/accounting/counted/operator_definitions.py`), on the small call in the second column. Beside it stands
the figure of `torch.utils.flop_counter.FlopCounterMode` of torch {version}. **✗** marks where that is wrong: 0 where
the operator is not known to it, or another figure.

Products are counted in FLOPs, a multiply-add as 2. Elementwise work and reductions, in the second table, are counted as
one FLOP per element and function; torch's counter leaves them out on purpose, and we report them apart. An optimizer's
step updates 38 parameters in two tensors.

The rows are those of `meta_tests/accounting/counted/operator_table.py`; a test compares the page with the installed
torch, and says how to write it anew.
"""
VERSION = torch.__version__.partition("+")[0]


def page() -> Iterator[str]:
    """The lines of the page as the installed torch makes them."""
    yield HEAD.format(version=VERSION)
    for title, products in (("Products", True), ("Elementwise work and reductions", False)):
        yield f"## {title}\n"
        yield "| operator | call | torch's counter | ours | number by number |"
        yield "|---|---|---:|---:|---:|"
        yield from (str(row) for row in ROWS if row.products == products)
        yield ""
