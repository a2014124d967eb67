"""Counts, measures and predicts what training a neural network costs, and verifies it by pytest.

`count`, `measure` and `predict` are for `with` blocks; `model_report` examines a training step.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "CountedWork",
    "MeasuredMemory",
    "ModelReport",
    "PredictedMemory",
    "count",
    "measure",
    "model_report",
    "predict",
]

if TYPE_CHECKING:
    from prooflops.instruments import (
        CountedWork,
        MeasuredMemory,
        PredictedMemory,
        count,
        measure,
        predict,
    )
    from prooflops.model.report import ModelReport, model_report


def __getattr__(name: str) -> Any:
    """Imports torch only when an instrument is used: each run of pytest imports this file."""
    if name not in __all__:
        raise AttributeError(f"module 'prooflops' has no attribute {name!r}")
    from prooflops.copies import refuse_another_accounting

    refuse_another_accounting()
    if name in ("ModelReport", "model_report"):
        from prooflops.model import report

        return getattr(report, name)
    from prooflops import instruments

    return getattr(instruments, name)
