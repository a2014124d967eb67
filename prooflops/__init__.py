"""prooflops: what makes a verification suite of the accounting formulas, the claims and the benchmarks."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "model_report":
        raise AttributeError(f"module 'prooflops' has no attribute {name!r}")
    return import_module(
        "prooflops.model.report"
    ).model_report  # only here, as the installed gate has no torch
