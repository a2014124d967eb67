"""The staging buffers of a reduction on CUDA: what several thread blocks write for one output.

Few outputs of many inputs each leave most of a card idle, so several blocks share an output. Each
writes its part into a buffer, counts itself in a semaphore, and the last one adds the parts up.
Source: setReduceConfig and gpu_reduce_kernel in aten/src/ATen/native/cuda/Reduce.cuh (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

MAX_THREADS = 512
WARP = 32
VECTOR = 4
FEWEST_VALUES_PER_THREAD = 16
MOST_VALUES_PER_THREAD = 256
THREADS_PER_MULTIPROCESSOR = 2048


@dataclass(frozen=True)
class Dimension:
    size: int
    # Strides are in elements; the output's is 0 where the dimension is reduced.
    stride: int
    is_reduced: bool
    out_stride: int


def staging_bytes(
    tensor: Tensor, dims: Sequence[int], accumulator_bytes: int, multiprocessors: int
) -> tuple[int, ...]:
    """Bytes of the buffer and of the semaphores for `tensor` reduced over `dims`; () for none.

    The first two of these were seen on one H200, which has 132 multiprocessors. By the source, the
    third has 32 blocks an output, of 16 threads with 4 columns each: 4 · 100 · 32 · 64 bytes.

    >>> import torch
    >>> staging_bytes(torch.empty(256, 2048), (0, 1), 4, 132)
    (256, 4)
    >>> staging_bytes(torch.empty(2048, 256), (0,), 4, 132)
    (4194304, 8)
    >>> staging_bytes(torch.empty(4096, 100), (0,), 4, 132)
    (819200, 8)
    """
    if tensor.numel() == 0:
        return ()
    dimensions = _coalesced(_ordered(tensor, dims))
    reduced = [each for each in dimensions if each.is_reduced]
    kept = [each for each in dimensions if not each.is_reduced]
    inputs, outputs = prod(each.size for each in reduced), prod(each.size for each in kept)
    along_input = not kept or (bool(reduced) and reduced[0].stride < kept[0].stride)
    fastest = (reduced if along_input else kept)[:1]
    is_contiguous = not fastest or fastest[0].stride == 1
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    output_vector = 1
    if is_contiguous and along_input and width >= 128 and len(reduced) == 1:
        width //= VECTOR
    elif is_contiguous and not along_input:
        output_vector = _output_vector(kept, reduced)
        width //= output_vector
    block_width, block_height = _block(width, height, MAX_THREADS // output_vector)
    values = _ceil(inputs, block_width if along_input else 1)
    if values < min(block_height * FEWEST_VALUES_PER_THREAD, MOST_VALUES_PER_THREAD):
        return ()
    values = _ceil(inputs, (block_width if along_input else 1) * block_height)
    grid = _ceil(outputs // output_vector, 1 if along_input else block_width)
    blocks = THREADS_PER_MULTIPROCESSOR // (block_width * block_height) * multiprocessors
    if values < MOST_VALUES_PER_THREAD or grid > blocks:
        return ()
    sharing = min(_ceil(blocks, grid), _ceil(values, FEWEST_VALUES_PER_THREAD))
    sharing = max(sharing, _ceil(values, MOST_VALUES_PER_THREAD))
    if sharing <= 1:
        return ()
    lanes = 1 if along_input else block_width * output_vector
    return accumulator_bytes * outputs * sharing * lanes, 4 * grid


def _ordered(tensor: Tensor, dims: Sequence[int]) -> list[Dimension]:
    """The dimensions as TensorIterator orders them: reduced ones first, then by stride."""
    reduced = {dim % tensor.dim() for dim in dims} if tensor.dim() else set()
    out_stride, dimensions = 1, []
    for dim in reversed(range(tensor.dim())):
        is_reduced = dim in reduced
        stride = 0 if is_reduced else out_stride
        dimensions.append(Dimension(tensor.shape[dim], tensor.stride(dim), is_reduced, stride))
        out_stride *= 1 if is_reduced else tensor.shape[dim]
    dimensions = [each for each in dimensions if each.size > 1]
    return sorted(dimensions, key=lambda each: (not each.is_reduced, each.stride))


def _coalesced(dimensions: Sequence[Dimension]) -> list[Dimension]:
    """Neighbours that can be walked in one go are one dimension."""
    joined: list[Dimension] = []
    for each in dimensions:
        before = joined[-1] if joined else None
        if before is not None and before.is_reduced == each.is_reduced:
            follows = before.size * before.stride == each.stride
            if follows and before.size * before.out_stride == each.out_stride:
                size = before.size * each.size
                joined[-1] = Dimension(size, before.stride, each.is_reduced, before.out_stride)
                continue
        joined.append(each)
    return joined


def _output_vector(kept: Sequence[Dimension], reduced: Sequence[Dimension]) -> int:
    """The number of neighbouring outputs that a thread reduces at once: 1, 2 or 4."""
    vector = VECTOR
    for number in (kept[0].size, *(each.stride for each in (*kept[1:], *reduced))):
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    most_wide, most_high = _power_of_two(width, threads), _power_of_two(height, threads)
    block_width = min(most_wide, WARP)
    block_height = min(most_high, threads // block_width)
    return min(most_wide, threads // block_height), block_height


def _power_of_two(number: int, most: int) -> int:
    """The largest power of two up to `number`, at least 1, at most `most`."""
    return most if number >= most else 1 << max(0, number.bit_length() - 1)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
