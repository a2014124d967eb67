"""The arithmetic of training neural networks: bytes, FLOPs, precision, utilisation.

The formulas need only the standard library. Each module is loaded when it is first used: `import accounting`
takes a millisecond.
"""

TYPE_CHECKING = (
    False  # type checkers know the name; importing it from typing would dominate the import time
)

__all__ = [
    "activations", "allocator", "attention", "contraction", "convolution", "devices", "families", "flops", "formats",
    "layout", "memory", "models", "optimizers", "parallel", "parts", "planning", "roofline", "units",
]  # fmt: skip

if TYPE_CHECKING:
    from accounting import (  # noqa: I001
        activations, allocator, attention, contraction, convolution, devices, families, flops, formats, layout, memory,
        models, optimizers, parallel, parts, planning, roofline, units,
    )  # fmt: skip
else:  # a type checker would accept any name that __getattr__ might find

    def __getattr__(name):
        if name in __all__:
            from importlib import import_module

            return import_module(f"accounting.{name}")
        raise AttributeError(f"module 'accounting' has no attribute {name!r}")

    def __dir__():
        return __all__
