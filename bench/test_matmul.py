"""Throughput of matrix products per dtype: this machine's ceilings, squares, the shapes of a transformer's layers."""

import time
from dataclasses import replace

import pytest
import torch

from accounting.models import GPT2_SMALL, LLAMA3_8B, Transformer
from bench.ceilings import REST_S
from bench.products import (
    DTYPES,
    SCALES_BYTES,
    Float32Products,
    Unsupported,
    multiplication,
    product,
    product_bytes,
)
from bench.streams import assert_bytes

SIDES = (256, 512, 1024, 2048, 4096, 8192)
TOKENS = 1024
BURSTS_ON_CPU = ("fp32", "bf16")  # one whose units are the vector's, one whose may be the matrix's
# Of fp8 on CUDA: torch's default; `test_fast_accumulation` has the other.
LABELS = {"fp8_e4m3": "use_fast_accum off"}
# The share of a ceiling's floor that the large squares must reach: their sides are not those that a search found.
LARGE = {"square-4096": 0.8, "square-8192": 0.95}
SEARCHED = {"quick": 0.9}  # likewise of a search too short to find the best shape
PAIRS = {"quick": 9, "default": 9, "thorough": 31}


def layers_of(model: Transformer) -> dict[str, tuple[int, int]]:
    """The (k, n) of each kind of matrix in a block."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(dtype, shape, device, sizing, ceilings, measure, delivery):
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
            measure.skip_if_slow(
                case.multiply
            )  # a kernel may be much slower at this shape than at the ceiling's
        assert_bytes(case.work, case.multiply, uncounted=SCALES_BYTES.get(dtype, 0))

    measure.once(examine)
    measure.product(
        case.multiply, dtype, case.work, ceilings, check=case.check, **labelled(dtype, device)
    )
    if shape in LARGE:
        delivery.product(dtype, case, allowance=LARGE[shape])


@pytest.mark.needs("sm>=8.9")
@pytest.mark.parametrize("side", [1024, 4096, 8192])
def test_fast_accumulation(side, device, sizing, ceilings, measure, delivery):
    """fp8 as the squares above, but with use_fast_accum: a Hopper is faster with it, at 14 bits of accumulator."""
    sizing.require(product_bytes("fp8_e4m3", side, side, side))
    try:
        case = product("fp8_e4m3", side, side, side, device)
        case = replace(case, multiply=multiplication("fp8_e4m3", case.a, case.b, None, fast=True))
        case.check(case.multiply())
    except (Unsupported, RuntimeError) as reason:
        pytest.skip(str(reason))
    measure.product(
        case.multiply, "fp8_e4m3", case.work, ceilings, check=case.check, label="use_fast_accum on"
    )
    if f"square-{side}" in LARGE:
        delivery.product(
            "fp8_e4m3", case, figure="fp8_e4m3 fast", allowance=LARGE[f"square-{side}"]
        )


@pytest.mark.gate(
    ignore=True
)  # each run searches anew, and finds another shape; the products above are compared
@pytest.mark.parametrize("regime", ["sustainable", "achievable"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ceiling(dtype, regime, device, pace, ceilings, measure, delivery):
    bursts = regime == "achievable"
    if measure.brief:
        pytest.skip(
            "no process of the gate searches: another shape each time, which is not compared"
        )
    if bursts and device.type == "cpu" and dtype not in BURSTS_ON_CPU:
        pytest.skip(
            f"whether bursts differ from steady work is tried for {' and '.join(BURSTS_ON_CPU)} on a CPU"
        )
    try:
        if bursts and device.type == "cpu":
            ratio, low, high = ceilings.burst_ratio(dtype, PAIRS[pace])
            if low <= 1:
                pytest.skip(
                    f"bursts are not faster than steady work here: {ratio:.3f} times [{low:.3f}, {high:.3f}]"
                )
            measure.declare(burst_ratio=[ratio, low, high])
        found = ceilings.found(dtype, regime)
        case = product(dtype, *found.shape, device)
    except Unsupported as reason:
        pytest.skip(str(reason))
    rest = (lambda: time.sleep(REST_S)) if bursts else None
    assert_bytes(case.work, case.multiply, uncounted=SCALES_BYTES.get(dtype, 0))
    options = {"check": case.check, "regime": regime, "setup": rest, **labelled(dtype, device)}
    measure.product(case.multiply, dtype, case.work, ceilings, **options)
    measure.declare(
        regime=regime,
        shape=list(found.shape),
        found_flop_per_s=found.flop_per_s,
        search_s=found.seconds,
    )
    if device.type == "cuda" and not bursts and dtype != "int8":
        measure.declare(zeros_ratio=ceilings.zeros_ratio(dtype, PAIRS[pace]))
    delivery.product(dtype, case, allowance=SEARCHED.get(pace, 1.0))
