"""Nets run in checkpointed segments, and the bytes that they hold at their peak, counted moment by moment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accounting import measured


def sizes_of_segments(layers: int, segments: int) -> list[int]:
    """`layers` divided as evenly as possible."""
    ends = [layers * (segment + 1) // segments for segment in range(segments)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def in_segments(layers: Sequence[nn.Module], x: Tensor, segments: int, **options: Any) -> Tensor:
    """`x` after all `layers`, of which only the input of each segment is kept; with 0 segments everything is."""
    if not segments:
        return nn.Sequential(*layers)(x)
    start = 0
    for size in sizes_of_segments(len(layers), segments):
        part = nn.Sequential(*layers[start : start + size])
        x = checkpoint(part, x, **{"use_reentrant": False, **options})
        start += size
    return x


def measured_peaks(layers: Sequence[nn.Module], x: Tensor, counts: Sequence[int]) -> dict[int, int]:
    """The peak bytes of forward and backward for each number of segments, parameters and `x` not included.

    The random state is not kept, which would take as much as a small activation; nothing here is random.
    """
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    above = torch.ones_like(x)
    with measured.memory(x.device) as held:
        for segments in counts:
            y = in_segments(layers, x, segments, preserve_rng_state=False)
            y.backward(above)
            del y
            for tensor in (x, *parameters):
                tensor.grad = None
            held.mark(str(segments))
    return {segments: held.phases[str(segments)].peak_bytes for segments in counts}


def peak_bytes(layers: int, segments: int, activation: int, weight: int = 0) -> int:
    """What `measured_peaks` must find for layers that keep their input, of these bytes of activation and weight.

    Backward runs from the last segment to the first. While the last layer of segment s (from 0) of k layers is
    differentiated there are the output of the net, the inputs of segments 1 to s, k − 1 recomputed inputs within it,
    the gradients of its output (that of the net came from outside) and of its input, and the gradients of the weights
    from it on. One layer further down there is one activation less and one weight's gradient more.
    """
    moments = []
    sizes = sizes_of_segments(layers, segments)
    for segment, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        behind = layers - end
        activations = 1 + segment + size - 1 + (2 if behind else 1)
        moments.append(activations * activation + (behind + 1) * weight)
        if size > 1 and not behind:
            moments.append(activations * activation + 2 * weight)
        elif size > 1:
            moments.append((activations - 1) * activation + (behind + 2) * weight)
    return max(moments)
