"""Throughput of matrix products per dtype: this machine's ceilings, squares, the shapes of a
transformer's layers.
"""

from dataclasses import replace

import pytest
import torch

from accounting.models import GPT2_SMALL, LLAMA3_8B, Transformer
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
# Whose bursts a CPU is tried for: fp32 has the vector's units, bf16 may have the matrix's.
BURSTS_ON_CPU = {"quick": ("fp32",), "default": ("fp32",), "thorough": ("fp32", "bf16")}
# Of fp8 on CUDA: torch's default; `test_fast_accumulation` has the other.
LABELS = {"fp8_e4m3": "use_fast_accum off"}
# The side whose rate is held against the floor of fp8 with use_fast_accum.
FAST_SIDE = 8192
# A short run measures fewer shapes, each as well as a long one; a CPU takes the time of a long one.
FEW_SHAPES = (
    "square-256",
    "square-1024",
    "square-2048",
    "square-8192",
    "gpt2-small-mlp-up",
    "llama3-8b-mlp-down",
)
# A short run looks for bursts in the dtype that the published rates are of.
QUICK_BURSTS = ("bf16",)
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


def is_short(device: torch.device, pace: str) -> bool:
    """Whether the run has the time for a few shapes alone."""
    return pace == "quick" or (pace == "default" and device.type == "cpu")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(dtype, shape, device, pace, sizing, ceilings, measure):
    if is_short(device, pace) and shape not in FEW_SHAPES:
        pytest.skip(f"a short run measures {', '.join(FEW_SHAPES)}; --thorough all")
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
    """fp8 as the squares above, but with use_fast_accum: a Hopper is faster with it, at 14 bits of
    accumulator.
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


# Each run searches anew, and finds another shape: not compared. The products above are.
@pytest.mark.gate(ignore=True)
@pytest.mark.parametrize("regime", ["sustainable", "achievable"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ceiling(dtype, regime, device, pace, ceilings, measure, delivery):
    bursts = regime == "achievable"
    if measure.brief:
        pytest.skip(
            "no process of the gate searches: another shape each time, which is not compared"
        )
    if bursts and device.type == "cpu" and dtype not in BURSTS_ON_CPU[pace]:
        pytest.skip(f"on a CPU bursts are tried in {', '.join(BURSTS_ON_CPU[pace])}")
    if bursts and device.type != "cpu" and pace == "quick" and dtype not in QUICK_BURSTS:
        pytest.skip(f"--quick looks for bursts in {', '.join(QUICK_BURSTS)}")
    try:
        if bursts and device.type == "cpu":
            ratio, low, high = ceilings.burst_ratio(dtype, PAIRS[pace])
            if low <= 1:
                pytest.skip(
                    f"bursts are not faster than steady work here: {ratio:.3f} times [{low:.3f}, "
                    f"{high:.3f}]"
                )
            measure.declare(burst_ratio=[ratio, low, high])
        found = ceilings.best(dtype, regime)
        case = product(dtype, *found.shape, device)
    except Unsupported as reason:
        pytest.skip(str(reason))
    steady = ceilings.flop_per_s(dtype)
    if bursts and found.flop_per_s <= steady:
        pytest.skip(
            "bursts are not faster than steady work here: "
            f"{found.flop_per_s / 1e12:.4g} and {steady / 1e12:.4g} TFLOP/s"
        )
    rest = ceilings.rest_before(case.multiply) if bursts else None
    assert_bytes(case.work, case.multiply, uncounted=SCALES_BYTES.get(dtype, 0))
    measure.product(case, ceilings, regime=regime, setup=rest, **labelled(dtype, device))
    measure.declare(
        regime=regime,
        shape=list(found.shape),
        found_flop_per_s=found.flop_per_s,
        search_s=found.seconds,
    )
    if not bursts:
        delivery.product(dtype, case, seconds=case.work.flops / ceilings.flop_per_s(dtype))
