"""Bytes that a block of code or a training step will hold, found without running it.

Every tensor of the block is fake: torch dispatches each operation, shapes, dtypes, strides and aliasing are worked out
for the device that is meant, and no value is computed. A storage counts from the operation that brings it until nothing
refers to it any more, which Python's and autograd's own references decide, as they do in a real run. So a model of 70 B
parameters is predicted on a laptop. (The meta device would not do: there, attention takes another path.)

What fake tensors cannot see is what a kernel takes for itself. `accounting.predicted.scratch` knows the operators that
take nothing; that of all others is measured with `scratch=True`, one call of each on the device itself, and is a
line of its own: `PredictedMemory.scratch`. Without, `PredictedMemory.unknown` names them, and peaks are lower bounds.
"""

from accounting.predicted.ledger import PredictedBytes
from accounting.predicted.prediction import PREDICTED_DEVICES, PredictedMemory, memory
from accounting.predicted.training import CLASSES, TrainingStep, fake_copy

__all__ = [
    "CLASSES",
    "PREDICTED_DEVICES",
    "PredictedBytes",
    "PredictedMemory",
    "TrainingStep",
    "fake_copy",
    "memory",
]
