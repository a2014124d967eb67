"""Times listing and comparing a long history.

python -m meta_tests.prooflops.history.long_history [RECORDS [BENCHMARKS]]
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prooflops.history import records
from prooflops.history.comparison import compare

EXACT = ("flops",)
ROUNDS = 20  # of each benchmark, all of which a record holds


def large_history(folder: Path, count: int, benchmarks: int, rounds: int) -> None:
    """So many records of one machine, written the short way: what is timed is the reading."""
    data = [1.0 + 0.001 * index for index in range(rounds)]
    rows: list[dict[str, Any]] = [
        {"fullname": f"test_it.py::test_{index}", "stats": {"min": 1.0, "data": data}, "extra_info": {"flops": index}}
        for index in range(benchmarks)
    ]
    record = {"benchmarks": rows, "prooflops": {"fingerprint": {"name": "a"}}}
    first = records.append(folder, record, {"name": "a"})
    for index in range(count - 1):
        shutil.copy2(first, first.with_name(f"20260101T000000.{index:06d}Z-00000000.json"))


def timed(what: str, function: Callable[[], object]) -> None:
    start = time.perf_counter()
    function()
    print(f"{what:<50} {time.perf_counter() - start:6.2f} s")


def main() -> None:
    count, benchmarks = [int(word) for word in sys.argv[1:3]] + [1000, 100][len(sys.argv[1:3]) :]
    with tempfile.TemporaryDirectory() as folder:
        large_history(Path(folder), count, benchmarks, ROUNDS)
        print(f"{count} records of {benchmarks} benchmarks")
        timed("all listed", lambda: records.summaries(Path(folder), EXACT))
        found = [each for each in records.summaries(Path(folder), EXACT) if isinstance(each, records.Summary)]
        assert len(found) == count, f"{len(found)} records were read, but {count} written"
        timed("the last one compared with all others", lambda: compare(found[:-1], found[-1:]))
        half = count // 2
        timed("the second half compared with the first", lambda: compare(found[:half], found[half:]))


if __name__ == "__main__":
    main()
