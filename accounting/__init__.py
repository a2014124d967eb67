"""The arithmetic of training neural networks: bytes, FLOPs, precision, utilisation.

The formulas need nothing but the standard library. `accounting.counted` and `accounting.measured` are the two
instruments that check them; they need torch. Every module is loaded when it is first used.
"""

from importlib import import_module
from types import ModuleType

FORMULAS = (
    "activations",
    "allocator",
    "contraction",
    "convolution",
    "counts",
    "devices",
    "flops",
    "formats",
    "layout",
    "memory",
    "models",
    "operators",
    "peaks",
    "phases",
    "planning",
    "roofline",
)
INSTRUMENTS = ("counted", "fake_cuda", "ledger", "measured", "predicted", "scratch")


def __getattr__(name: str) -> ModuleType:
    if name in FORMULAS or name in INSTRUMENTS:
        return import_module(f"accounting.{name}")
    raise AttributeError(f"module 'accounting' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *FORMULAS, *INSTRUMENTS])
