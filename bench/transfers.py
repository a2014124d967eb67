"""Copies between the host and an accelerator: their bytes, cost, and the share hidden.

Bytes are those of the payload, once, as they cross the link. The reads and writes of the memories
at its two ends, and the staging buffer through which a pageable copy goes, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accounting.roofline import Work

DIRECTIONS = ("to-device", "to-host")


def overlap_share(first_s: float, second_s: float, together_s: float) -> float:
    """The share of the shorter of two activities that was hidden behind the longer one.

    It is 0 where they ran one after the other, and below 0 where they slowed each other down. Above
    1 the times do not belong together. Nothing is clipped.

    >>> overlap_share(2.0, 1.0, 2.0), overlap_share(2.0, 1.0, 3.0), overlap_share(2.0, 1.0, 2.5)
    (1.0, 0.0, 0.5)
    """
    return (first_s + second_s - together_s) / min(first_s, second_s)


@dataclass(frozen=True)
class Transfer:
    """One copy of random numbers over the link: the call, its source and its target."""

    run: Callable[[], Tensor]
    source: Tensor
    target: Tensor

    @property
    def work(self) -> Work:
        return Work(0, self.source.nbytes)

    def check(self, got: Tensor) -> None:
        """Raises AssertionError if the target differs from the source, after the copy."""
        __tracebackhide__ = True
        wrong = int((got.cpu() != self.source.cpu()).sum())
        assert wrong == 0, f"the copy changed {wrong} of {got.numel()} elements"


def transfer(
    direction: str, elements: int, device: torch.device, *, pinned: bool, blocking: bool
) -> Transfer:
    """A copy in one of the DIRECTIONS.

    A copy between pageable memory and a device blocks in any case.
    """
    source_options: dict[str, Any] = {"pin_memory": pinned}
    target_options: dict[str, Any] = {"device": device}
    if direction == "to-host":
        source_options, target_options = target_options, source_options
    # Two distributions make source and target differ before the copy.
    source = torch.randn(elements, **source_options)
    target = torch.rand(elements, **target_options)
    return Transfer(lambda: target.copy_(source, non_blocking=not blocking), source, target)


def in_parts(whole: Transfer, parts: int) -> Transfer:
    """A transfer of the same bytes, one part after the other."""
    pairs = list(zip(whole.target.chunk(parts), whole.source.chunk(parts), strict=True))

    def run() -> Tensor:
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
        return whole.target

    return Transfer(run, whole.source, whole.target)


def beside(
    device: torch.device, main: Callable[[], object], aside: Callable[[], object]
) -> Callable[[], None]:
    """A function that runs `aside` in a stream of its own beside `main` in the current one."""
    module: Any = getattr(torch, device.type)
    stream = module.Stream(device)

    def run() -> None:
        current = module.current_stream(device)
        stream.wait_stream(current)
        with module.stream(stream):
            aside()
        main()
        current.wait_stream(stream)

    return run
