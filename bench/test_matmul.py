"""Throughput of matrix products per dtype: squares, and the shapes of a transformer's layers."""

import pytest
import torch

from accounting.models import GPT2_SMALL, LLAMA3_8B, Transformer
from bench.measuring import PACES, Ceilings, Measure
from bench.products import DTYPES, Unsupported, product

SIDES = (256, 512, 1024, 2048, 4096, 8192)
TOKENS = 1024


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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(dtype: str, shape: str, device: torch.device, pace: str, ceilings: Ceilings, measure: Measure) -> None:
    m, k, n = SHAPES[shape]
    try:
        expected_s = 2 * m * k * n / ceilings.flop_per_s(dtype)
        if expected_s > PACES[pace].longest_call_s:
            pytest.skip(f"one call would take about {expected_s:.2g} s, {PACES[pace].longest_call_s} s are allowed")
        case = product(dtype, m, k, n, device)
    except Unsupported as reason:
        pytest.skip(str(reason))
    case.check(case.multiply())
    measure.product(case.multiply, dtype, case.work, ceilings)
