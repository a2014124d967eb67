"""`--device all`, on a box whose cards are stand-ins: processes of this machine, told apart by their environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite import all_devices as box
from prooflops.suite.all_devices import ALONE, AT_ONCE, Card, Validated

TESTS = """
import os
import time

def test_sleep(benchmark):
    benchmark.pedantic(time.sleep, args=(float(os.environ["SLEEP_S"]),), rounds=6)

def test_other(benchmark):
    benchmark.pedantic(time.sleep, args=(0.01,), rounds=6)

def test_sound():
    assert os.environ["CARD"] != "slow"
"""

# pytest-benchmark's look at the CPU takes a second.
CONFTEST = "def pytest_benchmark_generate_machine_info():\n    return {}\n"


def card(name: str, sleep_s: float = 0.02) -> Card:
    return Card(name, (), {"CARD": name, "SLEEP_S": str(sleep_s)})


def validated(tmp_path: Path, *cards: Card) -> tuple[int, str, list[Validated]]:
    (tmp_path / "test_cards.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said: list[str] = []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "prooflops.plugin"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        found = box.validate(cards, command, tmp_path, tmp_path / "box", said.append)
    code = box.conclude(found, tmp_path / "box", said.append)
    return code, "\n".join(said), found


def test_a_slow_card_is_named_and_a_failing_one_ends_in_1(tmp_path: Path) -> None:
    code, said, found = validated(tmp_path, card("gpu:0"), card("gpu:1"), card("slow", 0.06))
    assert code == 1, said
    assert "slow alone: exit 1, with a record" in said
    assert "gpu:0 alone: exit 1" not in said
    assert "FAILED test_cards.py::test_sound" in said
    for phase in (ALONE, AT_ONCE):
        slow = box.compared(box.times(found, phase))["test_cards.py::test_sleep"]["slow"]
        assert slow.outlier, f"{phase}: {slow}\n{said}"
        assert slow.share > 1, f"{phase}: {slow}\n{said}"
    named = [line for line in said.splitlines() if line.startswith("outlier: slow alone in ")]
    assert len(named) == 1, said
    assert named[0].endswith("slower than the median card"), said
    assert (tmp_path / "box" / "box.md").read_text().count("| sleep |") == 3
    box.store(found, tmp_path / "history")
    stored = [json.loads(file.read_text()) for file in (tmp_path / "history").rglob("*.json")]
    assert {each["prooflops"]["fingerprint"]["box"] for each in stored} == {
        f"{name} {phase}" for name in ("gpu:0", "gpu:1", "slow") for phase in (ALONE, AT_ONCE)
    }


def test_each_card_runs_alone_first_and_then_with_the_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        f"import time; f = open({str(log)!r}, 'a'); f.write('+'); f.flush(); time.sleep(0.4); f.write('-'); f.close()"
    )
    found = box.validate([card("a"), card("b")], [sys.executable, "-c", code], tmp_path, tmp_path, lambda text: None)
    assert log.read_text() == "+-+-++--"
    assert [(each.card.name, each.phase) for each in found] == [
        ("a", ALONE), ("b", ALONE), ("a", AT_ONCE), ("b", AT_ONCE),
    ]  # fmt: skip
    assert box.conclude(found, tmp_path, lambda text: None) == 1, "runs without a record should not be green"


def run_of(name: str, phase: str, **medians_s: float) -> Validated:
    rows = [{"fullname": key, "stats": {"median": value}} for key, value in medians_s.items()]
    record = {"benchmarks": rows, "prooflops": {"verdicts": [], "fingerprint": {}}}
    return Validated(card(name), phase, 0, 1.0, record, "")


def test_what_sharing_costs_each_card_is_its_own_time_at_once_over_alone() -> None:
    found = [run_of(name, ALONE, copy=1.0) for name in "abcd"]
    found += [run_of(name, AT_ONCE, copy=2.0 if name == "c" else 1.1) for name in "abcd"]
    assert box.tables(found)["at once: time against the same card alone"][1] == [
        "copy",
        "1.10x",
        "1.10x",
        "2.00x",
        "1.10x",
    ]
    assert box.outliers(found) == [
        "outlier: c at once in 1 of 1 benchmarks, most in copy: 81.8% slower than the median card"
    ]


def without_a_record(name: str, phase: str) -> Validated:
    return Validated(card(name), phase, 3, 1.0, None, "Killed")


def concluded(tmp_path: Path, found: list[Validated]) -> list[str]:
    """What is said below the tables."""
    said: list[str] = []
    box.conclude(found, tmp_path, said.append)
    page = (tmp_path / "box.md").read_text()
    lines = [line for line in said if line.startswith(("outlier", "no outlier", "not compared", "of "))]
    assert all(f"- {line}" in page for line in lines), f"{lines} should be on the page as well:\n{page}"
    return lines


def test_a_card_without_a_record_leaves_the_others_compared(tmp_path: Path) -> None:
    found = []
    for phase in (ALONE, AT_ONCE):
        found += [run_of(name, phase, copy=2.0 if name == "c" else 1.0, add=1.0) for name in "abcd"]
        found.append(without_a_record("e", phase))
    assert concluded(tmp_path, found) == [
        "outlier: c alone in 1 of 2 benchmarks, most in copy: 100.0% slower than the median card",
        "outlier: c at once in 1 of 2 benchmarks, most in copy: 100.0% slower than the median card",
        "not compared alone: e: no record",
        "not compared at once: e: no record",
    ]
    rows = box.tables(found)
    copy, _, mean = rows["alone: time against the median card"][1:]
    assert copy[2:] == ["+0.0%", "+0.0%", "+100.0% !", "+0.0%", "-"]
    assert mean[2:] == ["+0.0%", "+0.0%", "+41.4% !", "+0.0%", "-"]
    assert rows["at once: time against the same card alone"][1][1:] == ["1.00x"] * 4 + ["-"]


def test_a_benchmark_that_one_card_lacks_is_compared_among_the_others(tmp_path: Path) -> None:
    """The first card lacks it: a benchmark that only later ones have is one all the same."""
    times = {"a": {}, "b": {"copy": 1.0}, "c": {"copy": 1.0}, "d": {"copy": 3.0}}
    found = [run_of(name, phase, add=1.0, **more) for phase in (ALONE, AT_ONCE) for name, more in times.items()]
    assert concluded(tmp_path, found) == [
        "outlier: d alone in 1 of 2 benchmarks, most in copy: 200.0% slower than the median card",
        "outlier: d at once in 1 of 2 benchmarks, most in copy: 200.0% slower than the median card",
        "not compared alone: a in copy: no time there",
        "not compared at once: a in copy: no time there",
    ]


def test_a_benchmark_on_too_few_cards_names_no_outlier_and_says_so(tmp_path: Path) -> None:
    times = {"a": {"copy": 1.0}, "b": {"copy": 9.0, "lone": 1.0, "odd": 1.0}, "c": {}, "d": {}}
    found = [run_of(name, phase, add=1.0, **more) for phase in (ALONE, AT_ONCE) for name, more in times.items()]
    lines = concluded(tmp_path, found)
    assert lines[0].startswith("no outlier alone or at once: no card is 3%"), f"add was compared: {lines}"
    for phase in (ALONE, AT_ONCE):
        assert f"not compared {phase}: lone, odd: a time on b only" in lines, lines
        pair = "copy: a time on a and b only, and of two that differ none is the odd one out"
        assert f"no outlier is named {phase}: {pair}" in lines, lines
        assert f"not compared {phase}: c in copy: no time there" in lines, lines
    shown = [row[0] for row in box.tables(found)["alone: time against the median card"][1:]]
    assert shown == ["add", "copy"], f"what two cards have is shown, what one has is not: {shown}"


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_where_nothing_was_compared_no_card_is_called_sound(tmp_path: Path, names: str) -> None:
    found = [run_of(name, ALONE, copy=1.0) for name in names] + [run_of("a", AT_ONCE, copy=1.0)]
    found += [without_a_record(name, AT_ONCE) for name in names[1:]]
    lines = concluded(tmp_path, found)
    assert "not compared at once: no benchmark has a time on two cards" in lines, lines
    assert "not compared at once: b: no record" in lines, lines
    assert "not compared at once: copy: a time on a only" in lines, lines
    quiet = [line for line in lines if line.startswith(("no outlier", "of 2 cards"))]
    assert len(quiet) == 1, f"one line for what was compared alone: {lines}"
    assert "at once" not in quiet[0], quiet


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.02], []),  # z is infinite, but the share is small
        ([1.0, 1.1, 1.2, 1.3, 1.4], []),  # far apart, but so are all
        ([1.0, 1.01, 0.99, 0.9], [3]),  # a faster one is odd too
        ([1.0, 2.0], []),  # of two, none
        ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.5], [3, 7]),
    ],
)
def test_an_outlier_is_far_by_share_and_by_the_deviation_of_the_cards(values: list[float], expected: list[int]) -> None:
    assert [i for i, each in enumerate(box.deviations(values)) if each.outlier] == expected


class Config:
    """As much of pytest's as `box.run` reads."""

    def __init__(self) -> None:
        self.option = type("Option", (), {"device": "all", "report": "reports"})()


def test_one_card_is_said_to_be_one_and_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import prooflops.machine.device

    monkeypatch.setattr(prooflops.machine.device, "counts", lambda: {"cuda": 1})
    monkeypatch.setattr(box, "settings", lambda config: type("Settings", (), {"used": False})())
    config: Any = Config()
    said: list[str] = []
    assert box.run(config, said.append) is None
    assert config.option.device == "cuda:0"
    assert said == ["--device all: this machine has one card, cuda:0, which is validated alone"]


def test_without_a_card_the_run_ends_with_4_and_names_the_valid_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--device", "all", "--collect-only", "-q", "test_claims/test_device.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 4, done.stdout + done.stderr
    assert "--device all: this machine has no accelerator; valid here: cpu" in done.stderr
