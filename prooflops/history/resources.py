"""What a benchmark's calls take besides time, before and after: a change that no process of either side contradicts."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from prooflops.history.comparison import Sides
from prooflops.history.rows import RESOURCES, Row

# Processes of a side that decide. Some figures have two values from process to process: all five of each side agree on
# one, and not on the same, with a chance of 1 in 1024 at most. Instructions are only shown.
FEWEST = {"memory": 5, "CUDA memory": 5, "instructions": 3}
LEAST = {"memory": 4096, "CUDA memory": 4096, "instructions": 10_000}  # changes below are never reported
WORDS = {"instructions": ("MORE INSTRUCTIONS", "FEWER INSTRUCTIONS")}


def resource_rows(both: Mapping[str, Sides], min_memory_effect: float, min_effect: float) -> list[Row]:
    """A row for each benchmark and resource that grew or shrank by the smallest effect at least.

    So it did only where every process of one side lies that far above every process of the other: a figure that is the
    same in all of them decides, one that varies doesn't before it changes by more than that.
    """
    rows = []
    for name, (before, after) in both.items():
        for key in RESOURCES:
            old, new = ([timed.resources[key] for timed in side if key in timed.resources] for side in (before, after))
            if min(len(old), len(new)) >= FEWEST[key]:
                more, less = WORDS.get(key, ("MORE MEMORY", "LESS MEMORY"))
                effect = min_effect if key == "instructions" else min_memory_effect
                for verdict, low, high in ((more, old, new), (less, new, old)):
                    if min(high) - max(low) >= max(LEAST[key], effect * max(low)):
                        rows.append(Row(name, key, median(old), median(new), verdict))
    return rows
