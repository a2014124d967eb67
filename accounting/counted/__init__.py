"""FLOPs and bytes counted from the operations that a program really dispatches."""

from accounting.counted.counter import flops
from accounting.counted.result import CountedWork, Totals

__all__ = ["CountedWork", "Totals", "flops"]
