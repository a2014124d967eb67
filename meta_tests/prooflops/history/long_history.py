"""Times listing and comparing a long history.

python -m meta_tests.prooflops.history.long_history [RECORDS [BENCHMARKS]]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meta_tests.prooflops.test_plugin import EXACT, large_history
from prooflops.history import comparison as compare
from prooflops.history import records as history

ROUNDS = 20  # of each benchmark, all of which a record holds


def timed(what: str, function: Callable[[], object]) -> None:
    start = time.perf_counter()
    function()
    print(f"{what:<50} {time.perf_counter() - start:6.2f} s")


def main() -> None:
    records, benchmarks = [int(word) for word in sys.argv[1:3]] + [1000, 100][len(sys.argv[1:3]) :]
    with tempfile.TemporaryDirectory() as folder:
        large_history(Path(folder), records, benchmarks, ROUNDS)
        print(f"{records} records of {benchmarks} benchmarks")
        timed("listed for the first time, which writes the index", lambda: history.summaries(Path(folder), EXACT))
        timed("listed again", lambda: history.summaries(Path(folder), EXACT))
        found = [each for each in history.summaries(Path(folder), EXACT) if isinstance(each, history.Summary)]
        assert len(found) == records, f"{len(found)} records were read, but {records} written"
        timed("the last one compared with all others", lambda: compare.compare(found[:-1], found[-1:]))
        half = records // 2
        timed("the second half compared with the first", lambda: compare.compare(found[:half], found[half:]))


if __name__ == "__main__":
    main()
