"""Optimizers as data: a row each, looked up by name."""

from accounting.optimizers.rows import (
    IMPLEMENTATIONS,
    LEAST_IN_8_BITS,
    OPTIMIZERS,
    SCRATCH,
    STEP_BYTES,
    TABLE_BYTES,
    Optimizer,
    Scratch,
    optimizer_of,
)

__all__ = [
    "IMPLEMENTATIONS",
    "LEAST_IN_8_BITS",
    "OPTIMIZERS",
    "SCRATCH",
    "STEP_BYTES",
    "TABLE_BYTES",
    "Optimizer",
    "Scratch",
    "optimizer_of",
]
