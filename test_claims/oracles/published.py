"""Figures from papers, vendors' customers and laws.

They are training runs, measured products, models and thresholds. Tables are in published.toml,
typed in from the sources, which are named by their keys in test_claims/registry. No machine can
settle these figures; the claims compare them with one another and with the formulas.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

from accounting.models import Transformer
from test_claims.tables import read_tables

TABLES = read_tables(Path(__file__).with_suffix(".toml"))
COMPUTE_OPTIMAL = TABLES["compute_optimal"]
LOSSES = TABLES["loss"]
LARGE_RUNS = TABLES["large_runs"]


class Model(NamedTuple):
    """A row of table D.1 (gpt3-2020), all for 300 billion tokens.

    Parameters are in millions, training in petaFLOP/s-days and FLOPs.
    """

    name: str
    millions: int
    petaflop_s_days: str
    flops: str


GPT3_TOKENS = 300 * 10**9
GPT3_FAMILY = [Model(*row) for row in TABLES["gpt3_family"]]
GPT3 = GPT3_FAMILY[-1]
GPT3_SHAPE = Transformer(**TABLES["gpt3_shape"])


class TrainingFlops(NamedTuple):
    """FLOPs of training a model, and whether its developer stated them."""

    flops: float
    estimated: bool
    source: str


TRAINING = {name: TrainingFlops(*row) for name, row in TABLES["training"].items()}
# The reports that Epoch AI's estimate rests on: 25,000 A100s for 90 to 100 days at an MFU of 0.32
# to 0.36.
GPT4_DEVICES = 25_000
GPT4_DAYS = (90, 100)
GPT4_MFU = (0.32, 0.36)
LLAMA3_405B_PARAMETERS = 405 * 10**9
LLAMA3_405B_TOKENS = 15_600 * 10**9
# Hours of all its H100s, and the watts of each at most (llama3.1-card).
LLAMA3_405B_HOURS_AND_WATTS = 30_840_000, 700


class Threshold(NamedTuple):
    """Training operations from which a law asks for more; `until` is the day it was revoked."""

    operations: float
    counts_integers: bool
    applies: date
    sources: list[str]
    until: date | None = None
    of_biological_data: float | None = None

    def in_force(self, day):
        return self.applies <= day and (self.until is None or day < self.until)


THRESHOLDS = {law: Threshold(**row) for law, row in TABLES["thresholds"].items()}


class Products(NamedTuple):
    """TFLOP/s of torch's own products on a card (torch-product-measurements)."""

    card: str
    fp32: float
    fp16: float
    bf16: float


PRODUCTS = [Products(*row) for row in TABLES["products"]]
# Another contributor's H100, in TFLOP/s.
H100_FP32_WITH_TF32_ALLOWED = 403.74


class Run(NamedTuple):
    """A run of an MPT model (mpt-benchmarks): its figures, and the percentages printed."""

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
    def flops_per_token(self):
        """6N plus attention, forward and twice backward.

        Attention is four products of width `dim` with every token.
        """
        return 6 * self.parameters + 3 * self.layers * 2 * 2 * self.dim * self.sequence


RUNS = [Run(*row) for row in TABLES["runs"]]
