"""The instruments under their public names: FLOPs counted, bytes measured, bytes predicted."""

from prooflops.counted import CountedWork
from prooflops.counted import flops as count
from prooflops.memory import MeasuredMemory, PredictedMemory
from prooflops.memory import measured_memory as measure
from prooflops.memory import predicted_memory as predict

__all__ = ["CountedWork", "MeasuredMemory", "PredictedMemory", "count", "measure", "predict"]
