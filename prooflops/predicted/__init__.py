"""Bytes that a block of code or a training step will hold, found without running it.

Every tensor of the block is fake: torch dispatches each operation and works out shapes, dtypes,
strides and aliasing for the given device, but computes no value. A storage counts from the
operation that allocates it until nothing refers to it any more, which Python's and autograd's own
references decide, as they do in a real run. So a model of 70 B parameters is predicted on a laptop.
(The meta device would not do: there, attention takes another path.)

Fake tensors do not show the temporary workspace ("scratch") of kernels.
`prooflops.predicted.scratch` lists operators that have none; that of all others is measured with
`scratch=True`, one call of each on the device itself, and reported as `PredictedMemory.scratch`.
Otherwise `PredictedMemory.unknown` names them, and peaks are lower bounds.
"""

from prooflops.predicted.copies import copy_of, fake_copy
from prooflops.predicted.fits import Fit, fits, known_cards
from prooflops.predicted.prediction import PREDICTED_DEVICES, PredictedMemory, memory
from prooflops.predicted.replay import HeldTensor, PredictedBytes
from prooflops.predicted.training import CLASSES, TrainingStep

__all__ = [
    "CLASSES",
    "PREDICTED_DEVICES",
    "Fit",
    "HeldTensor",
    "PredictedBytes",
    "PredictedMemory",
    "TrainingStep",
    "copy_of",
    "fake_copy",
    "fits",
    "known_cards",
    "memory",
]
