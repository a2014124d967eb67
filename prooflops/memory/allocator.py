"""The CUDA caching allocator of torch: what one request costs, and the workspaces of cuBLAS.

`torch.cuda.memory_allocated` sums blocks, not tensors. Each request is rounded up to 512 bytes, and
a large one may get a whole block that it does not fill. `torch.cuda.memory_reserved` sums the
segments that these blocks are cut from: what a card must have free for a run not to die.
`memory_stats()["requested_bytes.all.current"]` is the exact sum of the tensors. The CPU allocator
charges exactly the request.

A sequence of requests and frees: `prooflops.memory.caching_allocator`. A negative request raises
ValueError.

On one NVIDIA H200 (torch 2.11, 26 November 2026, default configuration), the charged and reserved
bytes of 21 fresh requests are exact.
Source: kMinBlockSize and its neighbours in c10/core/AllocatorConfig.h; round_size, get_pool,
get_allocation_size and should_split in c10/cuda/CUDACachingAllocator.cpp (torch 2.13).
"""

from __future__ import annotations

from accounting.checks import checked, validated_ints

# Every block is a multiple of this (kMinBlockSize).
BLOCK_BYTES = 512
# Up to here a request is served by the small pool (kSmallSize).
SMALL_REQUEST_BYTES = 2**20
# The small pool requests so much from the driver (kSmallBuffer).
SMALL_SEGMENT_BYTES = 2 * 2**20
# The large pool requests so much for less than LARGE_REQUEST_BYTES (kLargeBuffer).
LARGE_SEGMENT_BYTES = 20 * 2**20
# A request of this size or more gets a segment of its own (kMinLargeAlloc).
LARGE_REQUEST_BYTES = 10 * 2**20
# Such a segment is a multiple of this (kRoundLarge).
SEGMENT_ROUNDING_BYTES = 2 * 2**20

# torch's defaults for cuBLAS, in the KiB · count of CUBLAS_WORKSPACE_CONFIG: 4096 · 2 + 16 · 8, and
# 4096 · 8.
CUBLAS_WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
CUBLAS_WORKSPACE_BYTES_HOPPER_ON = 4096 * 1024 * 8
# cuBLASLt adds the bias of a linear layer; this is the 1024 KiB of CUBLASLT_WORKSPACE_SIZE.
CUBLASLT_WORKSPACE_BYTES = 1024 * 1024


@checked("request")
def rounded_bytes(request: int) -> int:
    """Bytes of the smallest block for a request: ⌈request / 512⌉ · 512.

    The least charge, and the exact one up to 1 MiB. A 4-byte step count on the device costs 512.

    >>> rounded_bytes(4), rounded_bytes(512), rounded_bytes(513), rounded_bytes(0)
    (512, 512, 1024, 0)
    """
    return -(-request // BLOCK_BYTES) * BLOCK_BYTES


def segment_bytes(request: int) -> int:
    """Bytes requested from the driver if no free block fits.

    `memory_reserved` grows by this. Requests up to 1 MiB share segments of 2 MiB, and those below
    10 MiB segments of 20 MiB. A larger one gets its own, rounded up to 2 MiB. Expandable segments
    map pages of 2 or 20 MiB instead (not modelled).

    >>> [segment_bytes(mib * 2**20) // 2**20 for mib in (0, 1, 2, 10, 11)]
    [0, 2, 20, 10, 12]
    """
    rounded = rounded_bytes(request)
    if rounded == 0:
        return 0
    if rounded <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


def charged_bytes(request: int) -> int:
    """Growth of `memory_allocated` for a request that is served from a fresh segment.

    The segment is split, and the rounded request charged, if enough remains. Enough is 512 bytes in
    the small pool, and more than 1 MiB in the large one. Otherwise the whole segment is charged:
    11 MiB from one of 12 cost 12. With expandable segments every block is split (not modelled
    here).

    >>> charged_bytes(11 * 2**20) // 2**20
    12
    """
    rounded, segment = rounded_bytes(request), segment_bytes(request)
    remainder = segment - rounded
    is_large = rounded > SMALL_REQUEST_BYTES
    is_split = remainder > SMALL_REQUEST_BYTES if is_large else remainder >= BLOCK_BYTES
    return rounded if is_split else segment


def charge_bounds(request: int) -> tuple[int, int]:
    """Least and greatest charge for a request, whatever was allocated and freed before.

    Both are the rounded request up to 1 MiB. Above, a reused block that exceeds the request by up
    to 1 MiB is handed out whole. Bounds of several tensors add up; a difference of two
    `memory_allocated` readings lies between the sums.

    >>> charge_bounds(1000)
    (1024, 1024)
    """
    rounded = rounded_bytes(request)
    is_large = rounded > SMALL_REQUEST_BYTES
    return rounded, rounded + SMALL_REQUEST_BYTES * is_large


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of cuBLAS's workspace: 32 MiB on Hopper and Blackwell, 8,519,680 before.

    It is allocated at the first matmul of each handle and stream, and kept (per call from torch
    2.15). It counts in `memory_allocated`, so warm up before taking a difference. A training step
    has two handles, the forward pass's and that of autograd's thread, so it has this twice (one
    H200: 33,554,432 each). The first linear layer with a bias adds CUBLASLT_WORKSPACE_BYTES. Not
    modelled: CUBLAS_WORKSPACE_CONFIG, ROCm (32 MiB, 128 on MI300 and MI350), and older torch, which
    allocates 32 MiB only on compute capability 9.0. Raises ValueError for a capability that is not
    a pair of integers. Source: aten/src/ATen/cuda/CublasHandlePool.cpp of torch 2.13.

    >>> [cublas_workspace_bytes((major, 0)) // 2**20 for major in range(8, 14)]
    [8, 32, 32, 8, 32, 8]
    """
    capability = validated_ints("compute_capability", compute_capability)
    if len(capability) != 2:
        raise ValueError(
            f"compute_capability must be a pair of integers such as (9, 0), got {capability}"
        )
    is_hopper_on = capability[0] in (9, 10, 12)
    return CUBLAS_WORKSPACE_BYTES_HOPPER_ON if is_hopper_on else CUBLAS_WORKSPACE_BYTES
