"""One call of each product and its definition.

Among them are those that torch's own counter leaves out or gets wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from meta_tests.prooflops.counted import operator_definitions as define
from meta_tests.prooflops.counted.operator_definitions import multiply_adds
from prooflops import counted

Act = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """`prepare` returns the call to be counted; `flops` are those of the definition."""

    operator: str
    call: str
    prepare: Callable[[], Act]
    flops: Callable[[], int]

    def count(self):
        act = self.prepare()
        with counted.flops() as count:
            act()
        return count


ROWS = []
normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))


def product(of, call, act, flops):
    ROWS.append(Row(of, call, lambda: act, flops))


def both_passes(of, call, forward, flops):
    def backward():
        out = forward()
        return partial(out.backward, torch.ones_like(out))

    product(of, f"{call}, forward", forward, lambda: flops()[0])
    ROWS.append(Row(of, f"{call}, backward", backward, lambda: flops()[1]))


x = normal(4)
y = normal(4)
square = normal(4, 4)
a = normal(3, 4)
b = normal(4, 5)
batch_a = normal(2, 3, 4)
batch_b = normal(2, 4, 5)
byte_a = torch.ones(20, 16, dtype=torch.int8)
byte_b = torch.ones(16, 8, dtype=torch.int8)
complex_a = normal(3, 4, dtype=torch.complex64)
complex_b = normal(4, 5, dtype=torch.complex64)
half_a = torch.ones(4, 32, dtype=torch.bfloat16)
packed_b = torch.ones(8, 32, dtype=torch.int8)
# Shapes alone: a CPU multiplies fp8 only since 2.7.
fp8_a, fp8_b = (torch.empty(16, 32, dtype=torch.float8_e4m3fn, device="meta") for _ in range(2))
scales = {"scale_a": torch.ones((), device="meta"), "scale_b": torch.ones((), device="meta")}
wide_a = torch.ones(8, 16, dtype=torch.bfloat16)
wide_b = torch.ones(2, 16, 24, dtype=torch.bfloat16)
ends = torch.tensor([3, 8], dtype=torch.int32)
a_b = partial(multiply_adds, a, b)
a_x = partial(multiply_adds, a, x[:, None])
batched = partial(multiply_adds, batch_a, batch_b)
outer = partial(define.outer_multiply_adds, x, y, square)

product("mm", "(3, 4) @ (4, 5)", lambda: a @ b, a_b)
product("mv", "(3, 4) @ (4,)", lambda: a @ x, a_x)
product("dot", "(4,) @ (4,)", lambda: torch.dot(x, y), lambda: multiply_adds(x[None], y[:, None]))
row = complex_a[:1]
column = complex_a[1:2].mT
product(
    "dot",
    "vdot, complex",
    lambda: torch.vdot(row[0], column[:, 0]),
    lambda: multiply_adds(row, column),
)
product("addmv", "(3, 4)", lambda: torch.addmv(torch.ones(3), a, x), a_x)
product("addr", "(4, 4)", lambda: torch.addr(square, x, y), outer)
product("addmm", "in place", lambda: torch.ones(3, 5).addmm_(a, b), a_b)
product(
    "addmm",
    "with an activation",
    lambda: torch._addmm_activation(torch.ones(5), a, b, use_gelu=True),
    a_b,
)
product(
    "addbmm",
    "2 of (3, 4) @ (4, 5)",
    lambda: torch.addbmm(torch.ones(3, 5), batch_a, batch_b),
    batched,
)
product(
    "int8 mm",
    "_int_mm",
    lambda: torch._int_mm(byte_a, byte_b),
    lambda: multiply_adds(byte_a, byte_b),
)
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
product(
    "complex mm",
    "(3, 4) @ (4, 5)",
    lambda: complex_a @ complex_b,
    lambda: multiply_adds(complex_a, complex_b),
)
product(
    "complex mm",
    "mv",
    lambda: complex_a @ complex_b[:, 0],
    lambda: multiply_adds(complex_a, complex_b[:, :1]),
)
product(
    "complex mm",
    "bmm",
    lambda: complex_a.expand(2, 3, 4) @ complex_b.expand(2, 4, 5),
    lambda: 2 * multiply_adds(complex_a, complex_b),
)

bilinear = nn.Bilinear(3, 4, 5)
left = normal(2, 3, requires_grad=True)
right = normal(2, 4, requires_grad=True)
ones = torch.ones(2, 5)
both_passes(
    "bilinear",
    "3, 4 -> 5",
    lambda: bilinear(left, right),
    lambda: define.bilinear(left, bilinear.weight, right, ones),
)
tokens = normal(4, 2, 3, requires_grad=True)
lstm = nn.LSTM(3, 5)
gru = nn.GRU(3, 5)
# oneDNN's fused layer computes the gradient of the initial state whether or not it is wanted.
both_passes(
    "LSTM", "4 tokens", lambda: lstm(tokens)[0], lambda: define.recurrent(lstm, tokens, True)
)
both_passes("GRU", "4 tokens", lambda: gru(tokens)[0], lambda: define.recurrent(gru, tokens, False))


def fused_attention(*operands):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings():
        # The reasons why there is no kernel.
        warnings.simplefilter("ignore")
        return F.scaled_dot_product_attention(
            *operands, enable_gqa=operands[0].shape[1] != operands[1].shape[1]
        )


for heads, call in ((4, "4 heads"), (2, "4 heads, 2 key heads")):
    operands = [
        normal(1, *shape, requires_grad=True) for shape in ((4, 5, 4), (heads, 6, 4), (heads, 6, 4))
    ]
    flops = partial(define.attention, *(each[0] for each in operands))
    both_passes("attention (CPU)", call, partial(fused_attention, *operands), flops)

for kind, name in ((nn.Conv1d, "convolution"), (nn.ConvTranspose1d, "transposed convolution")):
    for groups in (1, 2, 4):
        layer = kind(4, 8, 3, stride=2, padding=1, groups=groups, bias=False)
        data = normal(2, 4, 5, requires_grad=True)
        call = f"{groups} group{'s' * (groups > 1)}"
        both_passes(name, call, partial(layer, data), partial(define.convolution, layer, data))


def layer_of(module, *arguments, **options):
    """The fast path of a module, which torch takes where no gradient is wanted."""

    def call():
        with torch.no_grad():
            module.eval()(*arguments, **options)

    return lambda: call


rows = normal(5, 16)
sequence = normal(2, 5, 16)
# Substitution: an element of row i takes i multiply-adds and a division, n/2 of them on average.
both_passes(
    "triangular solve",
    "(4, 4) and (4, 3)",
    lambda: torch.linalg.solve_triangular(square, normal(4, 3).requires_grad_(), upper=False),
    lambda: (4 * 4 * 3, 4 * 4 * 3),
)
thin = normal(6, 8).relu()
tall = normal(8, 5, requires_grad=True)
flat = normal(3, 6)
met = partial(define.stored_multiply_adds, thin, tall)
for form, options in {"coo": {}, "csr": {}, "csc": {}, "bsr": {"blocksize": (1, 1)}}.items():
    kept = partial(thin.to_sparse, layout=getattr(torch, f"sparse_{form}"), **options)
    product("sparse mm", f"of {form}", lambda kept=kept: kept() @ tall.detach(), met)
# The gradient of the dense factor is a product by the transposed one, that of the sparse one is
# sampled.
both_passes(
    "sparse mm",
    "two gradients",
    lambda: torch.sparse.mm(thin.to_sparse_csr().requires_grad_(), tall),
    lambda: (met(), 2 * met()),
)
product("sparse mm", "mv", lambda: thin.to_sparse() @ tall[:, 0].detach(), lambda: met() // 5)
product(
    "sparse mm",
    "dense @ sparse",
    lambda: flat @ thin.to_sparse(),
    lambda: define.stored_multiply_adds(thin.T, flat.T),
)
near = normal(30, 5)
far = normal(26, 5)
one = torch.ones
# |x|² - 2·x·y + |y|² is one product of rows that are two longer.
product(
    "cdist",
    "(30, 5) and (26, 5)",
    lambda: torch.cdist(near, far),
    lambda: multiply_adds(one(30, 7), one(7, 26)),
)
quantised = partial(
    torch._make_per_tensor_quantized_tensor, torch.ones(6, 8, dtype=torch.int8), 0.1, 0
)
ROWS.append(
    Row(
        "dynamically quantised linear",
        "(5, 8) and (8, 6)",
        lambda: partial(
            torch.ops.quantized.linear_dynamic,
            one(5, 8),
            torch.ops.quantized.linear_prepack(quantised()),
        ),
        lambda: multiply_adds(one(5, 8), one(8, 6)),
    )
)
WEIGHTS = 4 * 16 * 16
SCORED = 2 * multiply_adds(rows, rows.T)
ROWS.append(
    Row(
        "fast path of attention",
        "2 sequences of 5",
        layer_of(
            nn.MultiheadAttention(16, 2, batch_first=True),
            sequence,
            sequence,
            sequence,
            need_weights=False,
        ),
        lambda: 2 * (2 * 5 * WEIGHTS + SCORED),
    )
)
ROWS.append(
    Row(
        "fast path of an encoder layer",
        "2 sequences of 5",
        layer_of(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), sequence),
        lambda: 2 * (2 * 5 * (WEIGHTS + 2 * 16 * 32) + SCORED),
    )
)
