"""Counts FLOPs and bytes from the operators that a program dispatches."""

from prooflops.counted.counter import flops
from prooflops.counted.result import CountedWork, Totals

__all__ = ["CountedWork", "Totals", "flops"]
