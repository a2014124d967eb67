"""The line of progress: rare, announced, and in nobody's way."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.conftest import House
from prooflops.console.progress import LONG_S, Progress, RunProgress


class FakeConfig:
    """As much of pytest's as Progress uses: a terminal, and a capture that must be off for each line."""

    def __init__(self, verbosity: int = 0) -> None:
        self.lines: list[str] = []
        self.capturing, self._verbosity = True, verbosity
        self.pluginmanager = SimpleNamespace(get_plugin=lambda name: self)

    def get_verbosity(self) -> int:
        return self._verbosity

    @contextmanager
    def global_and_fixture_disabled(self) -> Any:
        self.capturing = False
        yield
        self.capturing = True

    def ensure_newline(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def write_line(self, line: str, **_: bool) -> None:
        assert not self.capturing, "the line would land in the captured output of the test"
        self.lines.append(line)


def test_a_line_appears_every_three_seconds_at_most() -> None:
    config, now = FakeConfig(), [0.0]
    progress = Progress(config, "test_it", lambda: now[0])  # type: ignore[arg-type]
    for second in range(10):
        now[0] = second + 0.5
        progress(f"second {second}")
    assert config.lines == ["  test_it: second 3", "  test_it: second 6", "  test_it: second 9"], f"{config.lines}"


def test_a_line_of_dots_is_ended_first() -> None:
    config: Any = FakeConfig()
    config._tw = SimpleNamespace(width_of_current_line=3)
    Progress(config, "test_it", lambda: 0.0).always("now")
    assert config.lines == ["", "  test_it: now"]


def test_a_run_whose_collection_is_anothers_says_nothing() -> None:
    config: Any = FakeConfig()
    now = iter([0.0, 60.0, 120.0])
    RunProgress(config, lambda: next(now)).pytest_runtest_logfinish("test_a.py::test_a")
    assert config.lines == []


def test_long_silent_work_is_announced() -> None:
    config = FakeConfig()
    progress = Progress(config, "test_it", lambda: 0.0)  # type: ignore[arg-type]
    progress("short", LONG_S / 2)
    progress("long", 2 * LONG_S)
    assert config.lines == ["  test_it: long, about 6 s"], f"{config.lines}"


def test_nothing_is_printed_under_q() -> None:
    config = FakeConfig(verbosity=-1)
    Progress(config, "test_it", lambda: 0.0)("long", 60.0)  # type: ignore[arg-type]
    assert config.lines == []


def test_a_long_run_says_what_is_left_by_the_tests_that_ended() -> None:
    config, now = FakeConfig(), [1000.0]
    run = RunProgress(config, lambda: now[0])  # type: ignore[arg-type]
    ids = [f"test_claims/test_a.py::test_{number}" for number in range(30)] + ["bench/test_b.py::test_b"] * 2
    run.pytest_collection_finish(SimpleNamespace(items=[SimpleNamespace(nodeid=each) for each in ids]))  # type: ignore[arg-type]
    for each in ids:
        now[0] += 1.0 if each.startswith("test_claims") else 40.0
        run.pytest_runtest_logfinish(each)
    assert config.lines == [
        "  run: 10 of 32 tests, about 20 s left, and bench",
        "  run: 20 of 32 tests, about 10 s left, and bench",
        "  run: 30 of 32 tests, and bench",
        "  run: 31 of 32 tests, about 40 s left",
    ], f"{config.lines}"


def test_many_folders_of_which_nothing_is_known_are_counted() -> None:
    config, now = FakeConfig(), [0.0]
    run = RunProgress(config, lambda: now[0])  # type: ignore[arg-type]
    ids = ["bench/test_a.py::test_a", *(f"meta_tests/{folder}/test_b.py::test_b" for folder in "cdefghij")]
    run.pytest_collection_finish(SimpleNamespace(items=[SimpleNamespace(nodeid=each) for each in ids]))  # type: ignore[arg-type]
    now[0] = 12.0
    run.pytest_runtest_logfinish(ids[0])
    assert config.lines == ["  run: 1 of 9 tests, and 8 folders"]


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (1000, "1 of 1,000 tests, and test_claims"),
        (21, "1 of 21 tests, and test_claims"),
        (20, "1 of 20 tests, about 3 min 48 s left"),
    ],
)
def test_of_the_first_few_tests_of_many_nothing_is_concluded(tests: int, said: str) -> None:
    config, now = FakeConfig(), [0.0]
    run = RunProgress(config, lambda: now[0])  # type: ignore[arg-type]
    ids = [f"test_claims/test_a.py::test_{number}" for number in range(tests)]
    run.pytest_collection_finish(SimpleNamespace(items=[SimpleNamespace(nodeid=each) for each in ids]))  # type: ignore[arg-type]
    now[0] = 12.0  # the first test imports what all need
    run.pytest_runtest_logfinish(ids[0])
    assert config.lines == [f"  run: {said}"]


def test_the_line_disturbs_neither_the_dots_nor_the_captured_output(house: House) -> None:
    house.test(
        "def test_long(progress):\n"
        "    print('captured before')\n"
        "    progress('searching', 60)\n"
        "    print('captured after')\n"
        "    assert False\n\n"
        "def test_short(progress):\n    progress('not to be seen')\n",
        file="bench/test_demo.py",
    )
    child = house.run("bench", "-p", "no:randomly")
    lines = child.output.splitlines()
    assert "  test_long: searching, about 60 s" in lines, child.output
    assert "not to be seen" not in child.output
    captured = lines.index("captured before")
    assert lines[captured : captured + 2] == ["captured before", "captured after"], child.output
    dots = lines.index("  test_long: searching, about 60 s") + 1
    assert lines[dots] == "F", child.output
    assert lines[dots + 1].startswith("bench/test_demo.py ."), child.output
