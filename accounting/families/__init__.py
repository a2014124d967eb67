"""Published model families: builders of their layers, whole networks, and readers of `config.json`."""

from accounting.families.config import from_config
from accounting.families.layers import (
    attention,
    delta_rule,
    embedding,
    head,
    latent_attention,
    linear,
    mixture,
    mlp,
    other,
    selective_scan,
    state_space,
)
from accounting.families.networks import (
    GPT2_SMALL,
    GPT2_XL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    NORMS,
    Built,
    DeepLinear,
    Transformer,
    multi_token,
    with_adapters,
)

__all__ = [
    "GPT2_SMALL", "GPT2_XL", "LLAMA3_8B", "LLAMA3_70B", "MIXTRAL_8X7B", "NORMS", "Built", "DeepLinear", "Transformer",
    "attention", "delta_rule", "embedding", "from_config",
    "head", "latent_attention", "linear", "mixture", "mlp", "multi_token", "other", "selective_scan", "state_space",
    "with_adapters",
]  # fmt: skip
