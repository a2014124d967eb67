"""Throughput of matrix products per dtype: squares, a transformer's layers, and the ceilings."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from accounting.models import GPT2_SMALL, LLAMA3_8B, Transformer
from accounting.units import with_unit
from bench.products import (
    DTYPES,
    SCALES_BYTES,
    Unsupported,
    multiplication,
    product,
    product_bytes,
)
from bench.streams import assert_bytes
from prooflops.precision import Float32Products

SIDES = (256, 512, 1024, 2048, 4096, 8192)
TOKENS = 1024
# The option of a product on CUDA: torch's default. `test_fast_accumulation` has the other value.
LABELS = {"fp8_e4m3": "use_fast_accum off"}
# The side whose rate is held against the floor of fp8 with use_fast_accum.
FAST_SIDE = 8192
# The shapes of a short run, which measures each as well as a long one does: a launch, a kernel that
# fills a card, the largest square, and a layer.
QUICK_SHAPES = ("square-256", "square-1024", "square-8192", "llama3-8b-mlp-down")
FEW_SHAPES = (*QUICK_SHAPES, "square-2048", "gpt2-small-mlp-up")


def layers_of(model: Transformer) -> dict[str, tuple[int, int]]:
    """The (k, n) of each kind of matrix in a block."""
    queries = model.heads * model.head_dim
    keys = model.kv_heads * model.head_dim
    return {
        "qkv": (model.dim, queries + 2 * keys),
        "attention-out": (queries, model.dim),
        "mlp-up": (model.dim, model.hidden * (2 if model.gated else 1)),
        "mlp-down": (model.hidden, model.dim),
    }


SHAPES = {f"square-{side}": (side, side, side) for side in SIDES}
for _name, _model in (("gpt2-small", GPT2_SMALL), ("llama3-8b", LLAMA3_8B)):
    SHAPES |= {f"{_name}-{layer}": (TOKENS, k, n) for layer, (k, n) in layers_of(_model).items()}


def labelled(dtype: str, device: torch.device) -> dict[str, str]:
    """The label of a dtype's row."""
    return {"label": LABELS[dtype]} if dtype in LABELS and device.type == "cuda" else {}


def shapes_of(device: torch.device, pace: str) -> Iterable[str]:
    """The shapes for which the run has the time."""
    if pace == "quick":
        return QUICK_SHAPES
    return FEW_SHAPES if pace == "default" and device.type == "cpu" else SHAPES


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(dtype, shape, device, pace, sizing, ceilings, measure):
    measured = shapes_of(device, pace)
    if shape not in measured:
        pytest.skip(f"this run measures only {', '.join(measured)}; --thorough measures all")
    m, k, n = SHAPES[shape]
    sizing.require(product_bytes(dtype, m, k, n))
    try:
        measure.skip_if_longer(2 * m * k * n, dtype, ceilings)
        case = product(dtype, m, k, n, device)
    except Unsupported as reason:
        pytest.skip(str(reason))

    def examine() -> None:
        __tracebackhide__ = True
        with Float32Products(dtype):
            case.check(case.multiply())
            # A kernel may be much slower at this shape than at the ceiling's.
            measure.skip_if_slow(case.multiply)
        assert_bytes(case.work, case.multiply, uncounted=SCALES_BYTES.get(dtype, 0))

    measure.once(examine)
    measure.product(case, ceilings, **labelled(dtype, device))


@pytest.mark.needs("sm>=8.9")
@pytest.mark.parametrize("side", [1024, 4096, 8192])
def test_fast_accumulation(side, device, sizing, ceilings, measure, delivery):
    """The squares above in fp8, but with use_fast_accum.

    A Hopper is faster with it, and accumulates in 14 bits.
    """
    sizing.require(product_bytes("fp8_e4m3", side, side, side))
    try:
        case = product("fp8_e4m3", side, side, side, device)
        case = replace(case, multiply=multiplication("fp8_e4m3", case.a, case.b, None, fast=True))
        case.check(case.multiply())
    except (Unsupported, RuntimeError) as reason:
        pytest.skip(str(reason))
    measure.product(case, ceilings, own_kind=True, label="use_fast_accum on")
    if side == FAST_SIDE:
        delivery.product("fp8_e4m3", case, figure="fp8_e4m3 fast")


# Not compared by the gate: each run searches anew, and finds another shape.
@pytest.mark.gate(ignore=True)
@pytest.mark.parametrize("regime", ["sustainable", "achievable"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ceiling(dtype, regime, device, pace, ceilings, measure, delivery):
    bursts = regime == "achievable"
    if measure.brief:
        pytest.skip("the gate does not search: times of different shapes do not compare")
    if bursts and device.type == "cpu":
        pytest.skip("a CPU is not measured in bursts")
    if bursts and pace == "quick":
        pytest.skip("--quick measures no bursts")
    try:
        found = ceilings.best(dtype)
        m, k, n = found.shape
        case = product(dtype, m, k, n, device)
    except Unsupported as reason:
        pytest.skip(str(reason))
    rate, steady, rest = found.flop_per_s, ceilings.flop_per_s(dtype), None
    if bursts:
        rate = case.work.flops / ceilings.burst_s(dtype, case.multiply)
        rest = ceilings.rest_before(case.multiply)
    if bursts and rate <= steady:
        pytest.skip(
            "bursts are not faster than steady work here: "
            f"{with_unit(rate, 'FLOP/s')} against {with_unit(steady, 'FLOP/s')}"
        )
    assert_bytes(case.work, case.multiply, uncounted=SCALES_BYTES.get(dtype, 0))
    measure.product(case, ceilings, own_kind=bursts, setup=rest, **labelled(dtype, device))
    measure.declare(regime=regime, shape=list(found.shape))
    if not bursts:
        delivery.product(dtype, case)
