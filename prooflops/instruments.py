"""The instruments under their public names: FLOPs counted, bytes measured, bytes predicted."""

from prooflops.counted import CountedWork
from prooflops.counted import flops as count
from prooflops.measured import MeasuredMemory
from prooflops.measured import memory as measure
from prooflops.predicted import PredictedMemory
from prooflops.predicted import memory as predict

__all__ = ["CountedWork", "MeasuredMemory", "PredictedMemory", "count", "measure", "predict"]
