"""Figures from papers, vendors' customers and laws: training runs, measured products, models, thresholds.

Typed in from the sources, which are named by their keys in test_claims/registry. No machine can settle these figures;
the claims hold them against one another and against the formulas.
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

from accounting.models import Transformer


class Model(NamedTuple):
    """A row of table D.1 (gpt3-2020): parameters in millions, petaFLOP/s-days and FLOPs, all for 300 billion tokens."""

    name: str
    millions: int
    petaflop_s_days: str
    flops: str


GPT3_TOKENS = 300 * 10**9
GPT3_FAMILY = (
    Model("GPT-3 Small", 125, "2.60E+00", "2.25E+20"),
    Model("GPT-3 Medium", 356, "7.42E+00", "6.41E+20"),
    Model("GPT-3 Large", 760, "1.58E+01", "1.37E+21"),
    Model("GPT-3 XL", 1320, "2.75E+01", "2.38E+21"),
    Model("GPT-3 2.7B", 2650, "5.52E+01", "4.77E+21"),
    Model("GPT-3 6.7B", 6660, "1.39E+02", "1.20E+22"),
    Model("GPT-3 13B", 12850, "2.68E+02", "2.31E+22"),
    Model("GPT-3 175B", 174600, "3.64E+03", "3.14E+23"),
)
GPT3 = GPT3_FAMILY[-1]
# Table 2.1: 96 layers of width 12288, 96 heads of 128, context of 2048; GPT-2's vocabulary, biases and tied embedding.
GPT3_SHAPE = Transformer(
    vocab_size=50257,
    layers=96,
    dim=12288,
    heads=96,
    hidden=4 * 12288,
    learned_positions=2048,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_bias=True,
    tied_embedding=True,
)


class TrainingFlops(NamedTuple):
    """FLOPs of training a model, and whether its developer stated them."""

    flops: float
    estimated: bool
    source: str


TRAINING = {
    "GPT-3": TrainingFlops(3.14e23, False, "gpt3-2020"),
    "GPT-4": TrainingFlops(2.1e25, True, "epoch-ai"),
    "Llama 3.1 405B": TrainingFlops(3.8e25, False, "llama3-2024"),
}
# The reports that Epoch AI's estimate rests on: 25,000 A100s for 90 to 100 days at an MFU of 0.32 to 0.36.
GPT4_DEVICES, GPT4_DAYS, GPT4_MFU = 25_000, (90, 100), (0.32, 0.36)
LLAMA3_405B_PARAMETERS, LLAMA3_405B_TOKENS = 405 * 10**9, 15_600 * 10**9


class Threshold(NamedTuple):
    """Training operations from which a law asks for more; `until` is the day it was revoked."""

    operations: float
    counts_integers: bool
    applies: date
    until: date | None
    sources: tuple[str, ...]
    of_biological_data: float | None = None

    def in_force(self, day: date) -> bool:
        return self.applies <= day and (self.until is None or day < self.until)


THRESHOLDS = {
    "US order": Threshold(1e26, True, date(2023, 10, 30), date(2025, 1, 20), ("eo-14110", "eo-14148"), 1e23),
    # In force on 1 August 2024; the chapter on general-purpose models applies a year and a day later.
    "EU AI Act": Threshold(1e25, False, date(2025, 8, 2), None, ("eu-ai-act-2024",)),
    "California": Threshold(1e26, True, date(2026, 1, 1), None, ("california-sb-53",)),
}


class Products(NamedTuple):
    """TFLOP/s that torch's own products were measured at on a card (source: torch-product-measurements)."""

    card: str
    fp32: float
    fp16: float
    bf16: float


PRODUCTS = (
    Products("A100 SXM4 80GB", 19.18, 258.74, 264.53),
    Products("H100 SXM5 80GB", 52.11, 758.14, 783.66),
    Products("H200 SXM 141GB", 51.34, 759.40, 790.29),
    Products("H20", 31.95, 141.73, 141.86),
    Products("L40S", 46.88, 264.02, 269.15),
    Products("RTX 4090", 54.77, 171.06, 173.31),
    Products("RTX 5090", 67.57, 237.63, 242.18),
)
H100_FP32_WITH_TF32_ALLOWED = 403.74  # TFLOP/s, of another contributor's H100


class Run(NamedTuple):
    """A run of an MPT model (mpt-benchmarks): the figures behind its utilisation, and the percentages printed."""

    model: str
    parameters: int
    layers: int
    dim: int
    sequence: int
    card: str
    dtype: str
    devices: int
    tokens_per_s: int
    mfu: float
    hfu: float
    checkpointing: bool

    @property
    def flops_per_token(self) -> int:
        """6N plus attention: four products of width `dim` with every token, forward and twice backward."""
        return 6 * self.parameters + 3 * self.layers * 2 * 2 * self.dim * self.sequence


_H100, _A100 = "H100 SXM5 80GB", "A100 SXM4 80GB"
RUNS = (
    Run("70b", 64862437376, 80, 8192, 2048, _H100, "bf16", 64, 66523, 42.57, 56.76, True),
    Run("13b", 12848711680, 40, 5120, 1024, _H100, "bf16", 8, 44019, 44.27, 59.03, True),
    Run("7b", 6658859008, 32, 4096, 2048, _H100, "bf16", 8, 85144, 46.44, 46.44, False),
    Run("7b", 6918905856, 32, 4096, 65536, _H100, "bf16", 8, 15654, 28.59, 38.13, True),
    Run("3b", 2647905280, 32, 2560, 512, _H100, "bf16", 8, 223721, 46.32, 46.32, False),
    Run("3b", 2647905280, 32, 2560, 512, _H100, "fp8_e4m3", 8, 292217, 30.25, 30.25, False),
    Run("3b", 2730480640, 32, 2560, 32768, _H100, "fp8_e4m3", 8, 46853, 14.38, 19.18, True),
    Run("70b", 64862437376, 80, 8192, 2048, _A100, "bf16", 64, 26274, 53.33, 71.1, True),
    Run("30b", 29964204032, 48, 7168, 512, _A100, "bf16", 8, 7739, 56.4, 75.2, True),
    Run("13b", 12848711680, 40, 5120, 1024, _A100, "bf16", 8, 18647, 59.48, 79.3, True),
    Run("7b", 6658859008, 32, 4096, 2048, _A100, "bf16", 8, 37130, 64.23, 64.23, False),
    Run("125m", 124131840, 12, 768, 512, _A100, "bf16", 8, 1325455, 42.56, 42.56, False),
)

# MFU in percent of large runs, and where it was published.
LARGE_RUNS = {
    "GPT-3 175B": (21.3, "palm-2022"),
    "Gopher 280B": (32.5, "palm-2022"),
    "Megatron-Turing 530B": (30.2, "palm-2022"),
    "PaLM 540B": (46.2, "palm-2022"),
    "Megatron 175B": (51.4, "korthikanti-2022"),
    "Megatron 1T": (56.3, "korthikanti-2022"),
    "Llama 3 405B, 8,192 GPUs": (43, "llama3-2024"),
    "Llama 3 405B, 16,384 GPUs": (41, "llama3-2024"),
    "Llama 3 405B, sequences of 131,072": (38, "llama3-2024"),
}
