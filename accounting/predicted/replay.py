"""The bytes of each phase of a block, at its end and at its peak, from the order of allocations and frees."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from accounting.allocator import charge_bounds
from accounting.measured.phases import PhaseBytes
from accounting.predicted.ledger import Ledger


@dataclass(frozen=True)
class PredictedBytes(PhaseBytes):
    """The predicted bytes of one phase; levels are relative to the start of the block, as in `accounting.measured`.

    A storage that outlives the phase that allocated it belongs to the class of that phase (a training step's: see
    `CLASSES`). The others are "recomputed", if a checkpointed segment allocates them
    as it runs again, or "temporaries".
    `charged_…` are the least and the most that CUDA's caching allocator may set aside for the live storages
    (`accounting.allocator.charge_bounds`); None on the CPU. `peak_bytes` is without kernels' scratch.
    """

    peak_bytes_with_scratch: int | None  # None where an operator's scratch is not known
    live_by_class: dict[str, int]
    peak_by_class: dict[str, int]
    charged_live_bytes: tuple[int, int] | None
    charged_peak_bytes: tuple[int, int] | None


def replay(ledger: Ledger, classes: Mapping[str, str]) -> list[PredictedBytes]:
    """The bytes of each phase, from the order in which storages were allocated and freed."""
    class_of = classes_of(ledger, classes)
    is_cuda = ledger.device == "cuda"
    live = low = high = start = 0
    by_class: Counter[str] = Counter()
    phases = []
    for phase, end in enumerate(ledger.ends):
        allocated = freed = 0
        peak = peak_with_scratch = live
        peak_by_class, peak_low, peak_high = dict(by_class), low, high
        for position in range(start, end + 1):
            peak_with_scratch = max(peak_with_scratch, live + ledger.scratch_at(phase, position))
            event = ledger.events[position] if position < end else None
            if event is None:
                continue
            size = ledger.storages[event.storage].size
            sign = 1 if event.allocated else -1
            live += sign * size
            by_class[class_of[event.storage]] += sign * size
            if is_cuda:
                charges = charge_bounds(size)
                low, high = low + sign * charges[0], high + sign * charges[1]
                peak_low, peak_high = max(peak_low, low), max(peak_high, high)
            if event.allocated:
                allocated += size
            else:
                freed += size
            if live > peak:
                peak, peak_by_class = live, dict(by_class)
        phases.append(
            PredictedBytes(
                allocated_bytes=allocated,
                freed_bytes=freed,
                live_bytes=live,
                peak_bytes=peak,
                peak_bytes_with_scratch=max(peak, peak_with_scratch) if ledger.knows_scratch else None,
                live_by_class={name: size for name, size in by_class.items() if size},
                peak_by_class={name: size for name, size in peak_by_class.items() if size},
                charged_live_bytes=(low, high) if is_cuda else None,
                charged_peak_bytes=(peak_low, peak_high) if is_cuda else None,
            )
        )
        start = end
    return phases


def classes_of(ledger: Ledger, classes: Mapping[str, str]) -> dict[int, str]:
    """The class of each storage by its number."""
    found: dict[int, str] = {}
    phases: dict[int, int] = {}  # that allocated each storage which is still held
    for position, event in enumerate(ledger.events[: ledger.ends[-1]]):
        if event is None:
            continue
        storage = ledger.storages[event.storage]
        if event.allocated:
            phase = phases[event.storage] = bisect_right(ledger.ends, position)
            name = ledger.names[phase] if phase < len(ledger.names) else "rest"
            found[event.storage] = storage.name or classes.get(name, name)
        elif position < ledger.ends[phases[event.storage]] and storage.name is None:
            found[event.storage] = "recomputed" if storage.recomputed else "temporaries"
    return found
