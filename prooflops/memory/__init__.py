"""Bytes that a block of code or a training step holds: measured, or predicted without running it.

`measured_memory` reads torch's allocator. `predicted_memory` and `TrainingStep` find the same on
fake tensors. torch dispatches each operation and works out shapes, dtypes, strides and aliasing for
the given device, but computes no value. A storage counts from the operation that allocates it until
nothing refers to it any more. Python's and autograd's own references decide that, as in a real run.
So a model of 70 B parameters is predicted on a laptop. (The meta device would not do: attention is
composed of products there.)

Fake tensors do not show the temporary workspace ("scratch") of kernels. So on the CPU peaks are
lower bounds. On CUDA scratch follows from formulas (`prooflops.memory.cuda.scratch`), and peaks are
lower bounds where `PredictedMemory.unknown` names an operator without one.
"""

from prooflops.memory.allocations import (
    MEASURED_DEVICES,
    MeasuredBytes,
    MeasuredMemory,
    measured_memory,
    why_uncounted,
)
from prooflops.memory.copies import copy_of, fake_copy
from prooflops.memory.fits import Fit
from prooflops.memory.prediction import PREDICTED_DEVICES, PredictedMemory, predicted_memory
from prooflops.memory.replay import PredictedBytes
from prooflops.memory.training import CLASSES, TrainingStep

__all__ = [
    "CLASSES", "MEASURED_DEVICES", "PREDICTED_DEVICES", "Fit", "MeasuredBytes",
    "MeasuredMemory", "PredictedBytes", "PredictedMemory", "TrainingStep", "copy_of", "fake_copy",
    "measured_memory", "predicted_memory", "why_uncounted",
]  # fmt: skip
