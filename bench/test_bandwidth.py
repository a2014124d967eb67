"""Bandwidth of the memory and of each level of cache, by the kernels of STREAM and BabelStream.

In a memory benchmark each array has 4 times the size of the last-level cache (16 times on an
accelerator). A label marks shorter arrays; arrays that fit into the cache are skipped. A cache
benchmark measures one core with one thread: more threads would mostly wait for one another.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import partial

import pytest

from bench.streams import MEMORY, STREAMS, Arrays, Stream, assert_bytes, cache_size
from prooflops.timing import one_thread

ROWS = [(MEMORY, kernel) for kernel in STREAMS]
ROWS += [(level, kernel) for level in ("L1", "L2", "L3") for kernel in ("copy", "triad", "dot")]


@pytest.fixture(scope="module")
def arrays(device) -> dict[int, Arrays]:
    """Arrays by length; kernels of the same size share them."""
    return {}


def assert_counted(stream: Stream, kernel: str) -> None:
    """The bytes and FLOPs that a call dispatches are those of its formula."""
    __tracebackhide__ = True
    _, written, _ = STREAMS[kernel]
    # A reduction writes one scalar of 4 bytes.
    seen = assert_bytes(stream.work, stream.run, uncounted=0 if written else 4)
    # The counter takes a + s·b for one FLOP.
    counted = stream.work.flops // (2 if kernel == "triad" else 1)
    assert seen.total + seen.elementwise == counted, (
        f"{stream.work.flops} FLOPs are declared, but {seen.total + seen.elementwise} were counted"
    )


@pytest.mark.parametrize(("level", "kernel"), ROWS, ids=lambda part: part)
def test_stream(
    level,
    kernel,
    device,
    memory_arrays,
    caches,
    arrays,
    bound_bytes_per_s,
    measure,
    delivery,
    request,
):
    read, written, _ = STREAMS[kernel]
    size = (
        memory_arrays()
        if level == MEMORY
        else cache_size(level, read + written, caches.core_levels)
    )
    if size is None:
        pytest.skip(f"{device} reports no {level} distinct from the smaller caches")
    if size.elements not in arrays:
        arrays.clear()
        gc.collect()
        arrays[size.elements] = Arrays(size.elements, device)
    stream = arrays[size.elements].stream(kernel)

    measure.once(partial(assert_counted, stream, kernel))
    exceeds = level == MEMORY and size.multiple is not None
    with nullcontext() if level == MEMORY else one_thread():
        seconds = measure.work(
            stream.run,
            stream.work,
            dtype="fp32",
            check=stream.check,
            # `assert_counted` has checked them; of these kernels only dot is a matrix product.
            counted=False,
            bytes_bound=bound_bytes_per_s if exceeds else None,
            cache="as-is" if level == MEMORY else "hot",
            memory_level=size.level,
            array_bytes=4 * size.elements,
            cache_multiple=size.multiple,
            read_share=stream.read_share,
            **({"label": size.label} if size.label else {}),
        )
    if level == MEMORY:
        request.getfixturevalue("bandwidths").note(stream, seconds)
    if exceeds and bound_bytes_per_s is not None:
        measure.declare(mbu=stream.work.bytes / seconds / bound_bytes_per_s)
    if exceeds:
        delivery.check(kernel, stream.work.bytes, "B/s", stream.run)
