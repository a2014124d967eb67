"""The arithmetic of training neural networks: bytes, FLOPs, precision, utilisation.

The formulas need nothing but the standard library; the instruments that check them (`counted`, `measured`,
`predicted`) need torch. Each module is loaded when it is first used: `import accounting` takes a millisecond.
"""

TYPE_CHECKING = False  # known to type checkers by its name; importing it would take most of this module's time

__all__ = [
    "activations",
    "allocator",
    "attention",
    "contraction",
    "convolution",
    "counted",
    "devices",
    "families",
    "flops",
    "formats",
    "layout",
    "measured",
    "memory",
    "models",
    "optimizers",
    "parallel",
    "parts",
    "planning",
    "predicted",
    "roofline",
    "units",
]

if TYPE_CHECKING:
    from accounting import (
        activations,
        allocator,
        attention,
        contraction,
        convolution,
        counted,
        devices,
        families,
        flops,
        formats,
        layout,
        measured,
        memory,
        models,
        optimizers,
        parallel,
        parts,
        planning,
        predicted,
        roofline,
        units,
    )
else:  # a type checker would take every name for an attribute that __getattr__ finds

    def __getattr__(name):
        if name in __all__:
            from importlib import import_module

            return import_module(f"accounting.{name}")
        raise AttributeError(f"module 'accounting' has no attribute {name!r}")

    def __dir__():
        return __all__
