"""FLOPs and bytes counted from the operations that a program really dispatches."""

from prooflops.counted.counter import flops
from prooflops.counted.result import CountedWork, Totals

__all__ = ["CountedWork", "Totals", "flops"]
