"""The shapes of the benchmarks of products."""

from __future__ import annotations

from bench.test_matmul import SHAPES


def test_the_layers_of_llama3_8b_are_those_of_its_published_checkpoint() -> None:
    layers = {name.removeprefix("llama3-8b-"): shape[1:] for name, shape in SHAPES.items() if "llama3" in name}
    assert layers == {
        "qkv": (4096, 4096 + 2 * 1024),
        "attention-out": (4096, 4096),
        "mlp-up": (4096, 2 * 14336),
        "mlp-down": (14336, 4096),
    }
