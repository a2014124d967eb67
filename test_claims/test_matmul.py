"""Claims about products of tensors: batches that broadcast, einsum and its order, tensor cores."""

import itertools
import math
import re
from functools import partial

import einops
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from accounting.flops import einsum_flops, matmul_flops
from accounting.layout import broadcast_shape
from accounting.models import GPT2_SMALL, Transformer, forward_flops
from prooflops import counted
from prooflops.precision import Float32Products
from test_claims.oracles.dispatched import Recorded, counting, opt_einsum, product_flops
from test_claims.oracles.messages import agree, at_least, at_most, between, equal
from test_claims.oracles.scalars import integers
from test_claims.strategies import (
    TORCH_DTYPES,
    Case,
    covering,
    fewer,
    seldom,
    shapes,
    sizes,
    stretched,
    with_dtype,
)


def numpys_einsum(equation, *operands):
    """The einsum by numpy, which sums over the dimensions of an ellipsis only on request."""
    left, arrow, right = equation.partition("->")
    summed = arrow and "..." in left and "..." not in right
    if summed:
        equation = f"{left}->...{right}"
    result = np.einsum(equation, *(x.cpu().double().numpy() for x in operands))
    if summed:
        result = result.sum(axis=tuple(range(result.ndim - len(right))))
    return torch.tensor(result, dtype=torch.float32)


# A claim, the shapes of both operands, and the product's shape.
PRODUCTS = [
    ("matmul.2d", (16, 32), (32, 2), (16, 2)),
    ("matmul.2d", (16, 32), (32, 64), (16, 64)),
    ("matmul.4d-by-2d", (4, 8, 16, 32), (32, 2), (4, 8, 16, 2)),
    ("matmul.4d-by-4d", (4, 8, 16, 32), (4, 8, 32, 64), (4, 8, 16, 64)),
    ("matmul.broadcast", (4, 1, 16, 32), (8, 32, 64), (4, 8, 16, 64)),
    # More matrices than a grid of CUDA has blocks in its last dimension, 65,535.
    ("matmul.broadcast", (70_000, 1, 2), (70_000, 2, 1), (70_000, 1, 1)),
    ("matmul.bsm-mk", (2, 600, 64), (64, 32), (2, 600, 32)),
]
SHAPES = [pytest.param(*row, marks=pytest.mark.claim(claim)) for claim, *row in PRODUCTS]


@pytest.mark.parametrize(("a_shape", "b_shape", "shape"), SHAPES, ids=str)
def test_each_matrix_of_a_batch_is_multiplied_by_its_partner(device, a_shape, b_shape, shape):
    a, b = (fractions(*of, device=device) for of in (a_shape, b_shape))
    should = numpys_einsum("...mk,...kn->...mn", a, b)
    equal(should.shape, shape, "the shape by numpy")
    for name in ("__matmul__", "matmul"):
        assert_near(name, getattr(torch.Tensor, name)(a, b), should)


def summed(a, b):
    """The product, term by term in fp64."""
    return (a.double().unsqueeze(-2) * b.double().mT.unsqueeze(-3)).sum(-1)


def assert_products(case, a, ways, should):
    """That each way to multiply gives these sums of zeros and ones, rounded once."""
    __tracebackhide__ = True
    near = torch.finfo(a.dtype).eps if a.is_floating_point() else 0
    for way, got in ways.items():
        equal((got.dtype, got.shape), (a.dtype, should.shape), f"dtype and shape of {way}")
        off = (got.double() - should).abs().max().item() if got.numel() else 0
        most = near * should.max().item() if got.numel() else 0
        at_most(off, most, f"the error of {way}", case=case)


@pytest.mark.claim("matmul.2d", "matmul.einsum-equals-transpose", "storage.contiguous-for-speed")
def test_two_matrices_of_any_dtype_layout_and_size_multiply(device):
    for case in covering("matmul.2d"):
        left = case.tensor(device, values=(0, 0, 9 if "int" in case.dtype else 1))
        right = Case(case.dtype, "contiguous", case.size).tensor(device, values=(0, 1)).mT
        for a, b in ((left, right), (right[:2], left)):
            with Recorded() as recorded:
                ways = {
                    "@": a @ b,
                    "torch.matmul": torch.matmul(a, b),
                    "mm": a.mm(b),
                    "einsum": torch.einsum("mk,kn->mn", a, b),
                    "einsum that transposes": torch.einsum("mk,nk->mn", a, b.mT),
                    "einops": einops.einsum(a, b.mT, "query hidden, key hidden -> query key"),
                    "linear": functional.linear(a, b.mT),
                }
            equal(recorded.copies, [], "what is copied for a product", case=case)
            assert_products(case, a, ways, summed(a, b))


@pytest.mark.claim("matmul.broadcast", "matmul.bsm-mk", "matmul.einsum-ellipsis")
@pytest.mark.claim("matmul.4d-by-2d", "matmul.4d-by-4d")
def test_batches_of_any_dtype_layout_and_size_broadcast(device):
    for case in covering("matmul.broadcast"):
        a = case.tensor(device, values=(0, 0, 1))
        columns = Case(case.dtype, "contiguous", case.size).tensor(device, values=(0, 1)).mT[:, :2]
        each = (torch.arange(9, device=a.device) % 4).to(a.dtype).view(3, 3, 1, 1)
        batch = each * a
        few = each[:1] * columns
        one = summed(a, columns)
        for x, y, should in (
            (a, columns, one),
            (a.expand(3, *a.shape), columns, one.expand(3, *one.shape)),
            (batch, columns, each * one),
            (batch[0].transpose(0, 1), columns, (each[0] * one).transpose(0, 1)),
            (batch, few, each * each[:1] * one),
        ):
            ways = {
                "@": x @ y,
                "torch.matmul": torch.matmul(x, y),
                "einsum": torch.einsum("...mk,...kn->...mn", x, y),
            }
            if y is columns:
                ways["linear"] = functional.linear(x, y.mT)
            assert_products(case, x, ways, should)


@pytest.mark.claim("matmul.broadcast", "matmul.2d")
@given(
    batch=shapes((0, 3), (1, 3)),
    m=sizes(0, 3),
    k=sizes(most=3),
    n=sizes(0, 3),
    empty=seldom,
    data=st.data(),
)
def test_the_last_two_dimensions_multiply_and_all_before_broadcast(
    device, batch, m, k, n, empty, data
):
    k = 0 if empty else k
    a_shape = (*data.draw(stretched(batch)), m, k)
    b_shape = (*data.draw(stretched(batch)), k, n)
    a = integers(*a_shape, device=device)
    b = integers(*b_shape, device=device)

    should = numpys_einsum("...mk,...kn->...mn", a, b)
    for got in (a @ b, torch.einsum("...mk,...kn->...mn", a, b)):
        equal(got, should, "a @ b", a=a_shape, b=b_shape)

    numpys = np.matmul(a.cpu().numpy(), b.cpu().numpy()).shape
    formula = (*broadcast_shape(a_shape[:-2], b_shape[:-2]), m, n)
    agree("shapes", formula=formula, numpys=numpys, torchs=tuple((a @ b).shape))


def fractions(*shape, device):
    """Values from 0.5 to 1.5; a format of fewer bits keeps few of them."""
    return torch.rand(shape).add(0.5).to(device)


def assert_near(what, got, should):
    """That products of a few positive values differ by no more than rounding in fp32."""
    __tracebackhide__ = True
    equal(got.shape, should.shape, f"the shape of {what}")
    off = ((got.cpu() - should) / should).abs().sum().item()
    assert off < 1e-4 * max(got.numel(), 1), f"{what}: {got}, but should be {should}"


def loop_and_batch(device, number, m, k, n):
    """`number` products of (m, k) by (k, n), in a Python loop and as one batch."""
    x = integers(number, m, k, device=device)
    w = integers(number, k, n, device=device)
    looped, batched = (torch.empty(number, m, n, device=device) for _ in range(2))

    def loop():
        for i in range(number):
            torch.matmul(x[i], w[i], out=looped[i])

    def at_once():
        torch.matmul(x, w, out=batched)

    loop(), at_once()
    equal(batched, looped, "the batched product")
    return loop, at_once


@pytest.mark.claim("matmul.no-loops")
@pytest.mark.parametrize(("number", "shape"), [(64, (4, 4, 4)), (128, (1, 8, 8))], ids=str)
def test_small_products_with_matrices_of_their_own_are_faster_as_a_batch(
    device, speed, number, shape
):
    what = f"{number} products of {shape} in a Python loop against one batched product"
    speed.assert_slower(*loop_and_batch(device, number, *shape), what, at_least=5)


@pytest.mark.claim("matmul.no-loops")
def test_a_loop_over_large_products_takes_about_as_long_as_their_batch(device, speed):
    number, side = (2, 256) if device.type == "cpu" else (2, 4096)
    what = f"{number} products of side {side} in a Python loop against one batched product"
    loop, batch = loop_and_batch(device, number, side, side, side)
    speed.assert_slower(loop, batch, what, at_least=0.4, at_most=2, usual=(0.7, 1.4))


# Equations with the shapes of their operands; einops takes those without a diagonal or a size of 1
# that stretches, and with an output.
PLAIN = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,kj->", (2, 3), (4, 3)),
    ("ijk->kj", (2, 3, 4)),
    ("i,j,k->kij", (2,), (3,), (4,)),
    ("ij,jk,ki->j", (2, 3), (3, 4), (4, 2)),
    ("...ij,...jk->...ik", (3, 2, 2, 3), (2, 3, 4)),
    ("i...j,j...->...i", (3, 2, 2, 4), (4, 2)),
    ("...i,ij->j", (2, 3, 3), (3, 2)),
]
EINSUMS = [
    *PLAIN,
    ("ij,jk->ik", (2, 3), (1, 4)),
    ("ii->i", (3, 3)),
    ("iij,jk", (2, 2, 3), (3, 4)),
    ("j...i,i", (2, 3, 2, 4), (4,)),
    ("...ii,...i->...", (2, 1, 3, 3), (2, 3)),
    ("...i,i...,i->i...", (1, 2, 3), (3, 2, 1), (3,)),
    ("i...->", (2, 3, 2, 1, 2)),
]


@pytest.mark.claim("matmul.einsum-unnamed-summed", "matmul.einsum-ellipsis")
def test_an_einsum_sums_its_product_over_every_index_that_the_output_lacks(device):
    for equation, *shapes_ in EINSUMS:
        operands = [fractions(*shape, device=device) for shape in shapes_]
        reference = numpys_einsum(equation, *operands)
        got = torch.einsum(equation, *operands)
        assert_near(f"torch.einsum [{equation} of {shapes_}]", got, reference)
        if (equation, *shapes_) in PLAIN:
            spaced = " ".join(re.findall(r"\.\.\.|->|[a-z,]", equation))
            got = einops.einsum(*operands, spaced)
            assert_near(f"einops.einsum [{spaced!r} of {shapes_}]", got, reference)


@pytest.mark.claim("matmul.einsum-unnamed-summed", "matmul.reduce")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bfloat16, torch.float16])
def test_a_sum_over_unnamed_indices_is_longer_than_its_format_counts(device, dtype):
    """In 16 bits ones stop counting at 256 or 2048, or wrap at 2^15: the sum is kept wider."""
    for case in covering("matmul.einsum-unnamed-summed"):
        name = next(name for name, each in TORCH_DTYPES.items() if each == dtype)
        x = case._replace(dtype=name).tensor(device, values=[1])
        all_of_them = torch.tensor(x.numel()).to(dtype).item()
        ways = {
            "torch.einsum": torch.einsum("ij->", x),
            "torch.einsum of a row": torch.einsum("bij->b", x[None]),
            "einops.einsum": einops.einsum(x, "i j ->"),
            "einops.reduce": einops.reduce(x, "i j -> ", "sum"),
        }
        for way, got in ways.items():
            equal(got.item(), all_of_them, "the sum", way=way, case=case)
        if x.is_floating_point():
            for word in ("mean", "max", "min"):
                equal(einops.reduce(x, "i j -> j", word).unique().tolist(), [1.0], word, case=case)


@pytest.mark.claim("matmul.einsum-efficient")
@pytest.mark.parametrize(
    "equation",
    ["mk,kn->mn", "bmk,bkn->bmn", "bshd,bthd->bhst", "bij,kj->bik", "...ij,...jk->...ik"],
)
@fewer
@given(data=st.data())
def test_an_einsum_of_two_operands_is_one_product(device, equation, data):
    letters = sorted({*equation} - {*",->."})
    size = {letter: data.draw(sizes(2, 9), letter) for letter in letters}
    operands = []
    for term in equation.partition("->")[0].split(","):
        shape = [size[letter] for letter in term.lstrip(".")]
        operands.append(torch.rand(shape, device=device))
    dispatched = product_flops(torch.einsum, equation, *operands)

    equal(dispatched, 2 * math.prod(size.values()), "FLOPs")


@pytest.mark.claim("matmul.einsum-efficient")
@pytest.mark.parametrize("equation", ["bij,bjk->bik", "...ij,...jk->...ik"])
def test_an_einsum_takes_the_time_of_its_product(device, speed, equation):
    batch, side = (4, 96) if device.type == "cpu" else (64, 512)
    a, b = (torch.randn(batch, side, side, device=device) for _ in range(2))
    what = f"einsum {equation} against bmm, in time"
    einsum = partial(torch.einsum, equation, a, b)
    bmm = partial(torch.bmm, a, b)
    speed.assert_slower(einsum, bmm, what, at_least=0.5, at_most=2)


@pytest.mark.claim("matmul.einsum-efficient")
@fewer
@given(widths=st.lists(sizes(2, 9), min_size=4, max_size=6), batch=shapes((0, 1), (2, 3)))
def test_a_chain_runs_from_the_left_or_with_opt_einsum_as_is_cheapest(device, widths, batch):
    letters = "abcdef"[: len(widths)]
    before = "z" * len(batch)
    terms = ",".join(f"{before}{row}{column}" for row, column in itertools.pairwise(letters))
    equation = f"{terms}->{before}{letters[0]}{letters[-1]}"
    operands = [torch.rand(*batch, *shape, device=device) for shape in itertools.pairwise(widths)]
    with torch.backends.opt_einsum.flags(enabled=False):
        dispatched = product_flops(torch.einsum, equation, *operands)
    loops = sum(matmul_flops(widths[0], *shape, *batch) for shape in itertools.pairwise(widths[1:]))
    shapes = [x.shape for x in operands]
    formula = einsum_flops(equation, *shapes, order="left")
    best = einsum_flops(equation, *shapes, order="best")

    agree("FLOPs from the left", dispatched=dispatched, loops=loops, formula=formula)

    with opt_einsum():
        dispatched = product_flops(torch.einsum, equation, *operands)
    equal(dispatched, best, "FLOPs in the best order")


@pytest.mark.claim("matmul.tensor-cores-default")
def test_a_fresh_torch_allows_tf32_in_convolutions_and_not_in_products(fresh_process):
    settings, *_ = fresh_process
    equal(settings, "highest False True", "precision, TF32 in products, in cuDNN")


@pytest.mark.claim("matmul.tensor-cores-default", "dtype.fp32-full-precision", "matmul.broadcast")
@pytest.mark.claim("matmul.2d", "matmul.bsm-mk", "matmul.4d-by-2d", "matmul.4d-by-4d")
@given(bit=st.integers(1, 52), rows=st.sampled_from([16, 64, 128]), batch=shapes((0, 2), (1, 3)))
def test_a_product_of_fp32_or_fp64_keeps_every_bit(device, bit, rows, batch):
    """Times a permutation each product has one term.

    TF32, with 10 bits of fraction, would round 1 + 2^-11 to 1.
    """
    dtype = torch.float32 if bit < 24 else torch.float64
    device = with_dtype(device, dtype)
    x = torch.full((*batch, rows, rows), 1 + 2.0**-bit, device=device, dtype=dtype)
    order = torch.eye(rows, device=device, dtype=dtype)[torch.randperm(rows, device=device)]
    products = {
        "x @ y": x @ order.expand(x.shape),
        "x @ matrix": x @ order,
        "a layer": functional.linear(x, order, torch.zeros_like(order[0])),
    }
    for name, product in products.items():
        equal(product.unique().tolist(), [1 + 2.0**-bit], f"values of {name}")


@pytest.mark.claim("matmul.tensor-cores-default")
@pytest.mark.needs("sm>=8.0")
@pytest.mark.parametrize(
    "fast", ["bf16", "fp16"] if torch.version.hip else ["bf16", "fp16", "tf32"]
)
def test_tensor_cores_multiply_faster_than_fp32_by_default(device, speed, fast, peak_flop_per_s):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}[fast]
    a, b = (torch.randn(4096, 4096, device=device) for _ in range(2))
    low_a = a.to(dtype)
    low_b = b.to(dtype)

    def with_tensor_cores():
        with Float32Products(fast):
            low_a @ low_b

    # A GeForce's tensor cores multiply tf32 no faster than its other units multiply fp32.
    high = peak_flop_per_s(fast)
    low = peak_flop_per_s("fp32")
    at_least = min(1.5, 0.75 * high / low) if high and low else 1.5

    speed.assert_slower(
        lambda: a @ b, with_tensor_cores, f"fp32 by default against {fast}", at_least=at_least
    )


# FLOPs per element: GELU by tanh; maximum, subtract, exp, sum, divide; mean, subtract, square,
# mean, divide.
BY_HAND = {
    "add": 1,
    "mul": 1,
    "where": 1,
    "gelu": 9,
    "_softmax": 5,
    "_safe_softmax": 5,
    "native_layer_norm": 5,
}


def forward_share(workloads, model, sequence):
    """The share of the forward FLOPs that products have, counted on the meta device."""
    net = workloads.build(model, device="meta")
    x = workloads.inputs(model, 1, sequence, device="meta")
    with counted.flops() as count, counting() as torchs, Recorded() as recorded:
        net(x)
    formula = forward_flops(model, 1, sequence)
    products = torchs.get_total_flops()
    others = 0
    for operation, read, made in recorded.calls:
        name = str(operation).partition(".")[2]
        others += BY_HAND.get(name, 0) * made[0].numel()
        if name == "native_layer_norm":
            # Times the weight, plus the bias; the inverse root of a row's variance plus ε.
            others += len(read[1:]) * made[0].numel() + 2 * made[1].numel()
    agree("FLOPs of products", counted=count.total, formula=formula, torchs=products)
    equal(count.elementwise, others, "FLOPs beside products")
    return count.total / (count.total + count.elementwise)


@pytest.mark.claim("matmul.bread-and-butter", "flops.dominates")
def test_products_are_nearly_all_of_gpt2s_flops(workloads, record_figure):
    share = forward_share(workloads, GPT2_SMALL, 1024)
    at_least(share, 0.99, "the share of products in GPT-2 small's forward FLOPs")
    record_figure(f"products are {share:.1%} of the forward FLOPs of GPT-2 small at 1024 tokens")


@pytest.mark.claim("matmul.bread-and-butter", "flops.dominates", "mfu.higher-if-matmul")
def test_the_share_of_products_grows_with_the_width(workloads, record_figure):
    decoder = partial(Transformer, vocab_size=64, layers=2, learned_positions=256)
    shares = []
    for width in (1, 4, 64):
        model = decoder(dim=8 * width, heads=8, hidden=32 * width)
        shares.append(forward_share(workloads, model, 256))
    said = ", ".join(f"{share:.0%}" for share in shares)

    equal(shares, sorted(shares), "shares at heads 1, 4, 64 wide")
    assert shares[0] < 1 / 2 < 0.9 < shares[-1], f"the shares are {said}"

    share = forward_share(workloads, decoder(dim=512, heads=512, hidden=2048), 256)
    between(share, 1 / 2, 0.95, "the share with 512 heads 1 wide")

    record_figure(f"products are {said} of the forward FLOPs with heads 1, 4, 64 wide")
