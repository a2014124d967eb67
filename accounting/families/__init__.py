"""Decoders: builders of their layers, whole networks, and readers of a `config.json`."""

from accounting.families.config import from_config
from accounting.families.layers import (
    attention,
    embedding,
    head,
    latent_attention,
    linear,
    mixture,
    mlp,
    other,
)
from accounting.families.networks import (
    GPT2_SMALL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    NORMS,
    Built,
    DeepLinear,
    Transformer,
)

__all__ = [
    "GPT2_SMALL",
    "LLAMA3_8B",
    "LLAMA3_70B",
    "MIXTRAL_8X7B",
    "NORMS",
    "Built",
    "DeepLinear",
    "Transformer",
    "attention",
    "embedding",
    "from_config",
    "head",
    "latent_attention",
    "linear",
    "mixture",
    "mlp",
    "other",
]
