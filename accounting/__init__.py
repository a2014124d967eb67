"""The arithmetic of training neural networks: bytes, FLOPs, precision, utilisation.

The formulas need nothing but the standard library. `accounting.counted` and `accounting.measured` are the two
instruments that check them; they need torch, and are imported only when asked for (`from accounting import counted`).
"""

from accounting import (
    activations,
    allocator,
    contraction,
    convolution,
    devices,
    flops,
    formats,
    layout,
    memory,
    models,
    peaks,
    planning,
    roofline,
)

__all__ = [
    "activations",
    "allocator",
    "contraction",
    "convolution",
    "devices",
    "flops",
    "formats",
    "layout",
    "memory",
    "models",
    "peaks",
    "planning",
    "roofline",
]
