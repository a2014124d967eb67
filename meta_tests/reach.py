"""Lists the tests that enter marked functions, in whatever process: a plugin of pytest.

A marked function touches a file of the folder MARKS. What is touched at import is in no test's row.
"""

import os
from collections import Counter
from pathlib import Path

MARKS = Path(os.environ["MARKS"])
seconds = Counter()


def entered():
    marks = [mark for mark in MARKS.iterdir() if mark.name != "tests"]
    for mark in marks:
        mark.unlink()
    return [mark.name for mark in marks]


def pytest_runtest_logstart():
    entered()


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration


def pytest_runtest_logfinish(nodeid):
    with open(MARKS / "tests", "a", encoding="utf-8") as file:
        print(nodeid.partition("[")[0], seconds[nodeid], *entered(), file=file)
