"""The gate on a small foreign repository, in real processes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.conftest import House
from meta_tests.prooflops.gate.foreign_repo import run
from meta_tests.prooflops.gate.without_processes import SETTINGS, A, B, Processes, config
from prooflops.gate import run as gate_run
from prooflops.gate.measurement import Measurement
from prooflops.gate.run import Gate, changed_claims, configure
from prooflops.history import records
from prooflops.history.rows import Row
from prooflops.run_state import MARKERS
from prooflops.statistics.effects import paired


@pytest.mark.parametrize(
    ("option", "why"),
    [("--gate-versus=no-such", "no folder, no interpreter"), ("--gate-baseline=no-such", "no baseline of that name")],
)
def test_what_is_not_there_to_compare_with_is_refused_before_anything_runs(
    foreign: Path, option: str, why: str
) -> None:
    (foreign / "test_foreign.py").write_text("def test_it(benchmark):\n    open('it-ran', 'w')\n")
    done = run(foreign, "test_foreign.py", "--gate", option)
    assert done.code == 4
    assert why in done.output
    assert not (foreign / "it-ran").exists(), done.output


def test_a_fresh_process_that_hangs_is_ended_and_reported(foreign: Path) -> None:
    (foreign / "work.py").write_text("import time\nSTEPS = 1\ndef busy(steps=0):\n    time.sleep(60)\n")
    done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor", "--gate-budget", "0.03")
    assert done.code == 1
    assert "was ended after 2 s (--gate-budget)" in done.output


def test_a_crash_of_a_fresh_process_is_that_of_the_test(foreign: Path) -> None:
    (foreign / "work.py").write_text("import os\nSTEPS = 1\ndef busy(steps=0):\n    os.abort()\n")
    done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor")
    assert done.code == 1
    assert "SIGABRT" in done.output


# What opens a device, were the parent of a gate run to call it.
PARENT = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from accounting import measured
    from prooflops.machine import device
    def opened(*_):
        raise AssertionError("the parent opened the device")
    device.headline = device.fingerprint = device.unmet = measured.clock = opened
"""


def test_the_parent_asks_the_device_nothing_and_leaves_report_and_records_alone(house: House) -> None:
    with open(house.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(PARENT)
    house.claim("demo.one")
    house.test("@pytest.mark.claim('demo.one')\n@pytest.mark.needs('c++')\ndef test_one():\n    assert True\n")
    house.test("def test_time(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=3)\n", "bench/test_b.py")
    done = house.run("--gate-replicates", "2", "--quick")
    assert done.code == 0, done.output
    assert not (house.root / "reports").exists(), done.output
    records = [json.loads(file.read_text()) for file in house.root.glob(".prooflops/history/*/*.json")]
    counts = [(len(record["benchmarks"]), len(record["prooflops"]["verdicts"])) for record in records]
    assert counts == [(1, 1), (1, 1)], f"{counts}, but should be those of the two fresh processes: {done.output}"


def test_the_other_sides_claims_are_compared_where_both_were_checked() -> None:
    before = {"a": "holds", "b": "holds", "c": "not checked", "d": "holds"}
    rows = changed_claims(before, {"a": "holds", "b": "FAILS", "c": "holds", "d": "not checked"})
    assert [(row.name, row.verdict, row.before, row.after) for row in rows] == [("b", "CHANGED", "holds", "FAILS")]


CLAIM = "test_c.py::test_claim"


class Run:
    """A run of the gate in which no process starts; CLAIM is no benchmark."""

    def __init__(
        self,
        root: Path,
        patch: pytest.MonkeyPatch,
        processes: Processes,
        ids: tuple[str, ...] = (A, B),
        **settings: Any,
    ) -> None:
        for folder in ("here", "there"):
            (root / folder).mkdir(exist_ok=True)
            for file in ("test_b.py", "test_c.py"):
                (root / folder / file).touch()
        self.processes, self.config = processes, config(root / "here", "test_b.py", continue_on_collection_errors=False)
        self.gate: Any = Gate(self.config, replace(SETTINGS, **{"folder": root / "history", **settings}))
        self.started: list[Any] = []
        patch.setattr(gate_run, "Replicates", self.start)
        self.session: Any = SimpleNamespace(
            testsfailed=0, config=self.config, Interrupted=pytest.Session.Interrupted,
            items=[
                SimpleNamespace(nodeid=name, location=("", 0, ""), get_closest_marker=lambda _: None,
                                fixturenames=() if name == CLAIM else ("benchmark",))
                for name in ids
            ],
        )  # fmt: skip

    def start(self, *given: Any, **named: Any) -> Processes:
        self.started.append((given, named))
        return self.processes

    def failures(self) -> dict[str, str]:
        """Why each test failed, once the run has ended."""
        assert self.gate.pytest_runtestloop(self.session) is True
        return {report.nodeid: str(report.longrepr) for report in self.config.logged if report.failed}

    def printed(self) -> list[str]:
        lines: list[str] = []
        terminal: Any = SimpleNamespace(
            section=lines.append, verbosity=1, write_line=lambda line, **_: lines.append(line)
        )
        self.gate.pytest_terminal_summary(terminal)
        return lines


def of_sides(now: float) -> Processes:
    """Processes that take so long for A on this side, and one second for all else."""
    return Processes(lambda side: {A: now if side == "this side" else 1.0, B: 1.0})


def test_the_gate_stops_for_what_is_slower_and_prints_the_worst_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    there = str(tmp_path / "there")
    done = Run(tmp_path, monkeypatch, of_sides(1.2), gate=True, versus=there, ids=(B, A), budget_s=900.0, memory="show")
    failed = done.failures()
    assert failed.keys() == {A}
    assert failed[A].startswith(f"SLOWER: {A} takes 1.200 times as long")
    assert done.started == [((done.config, 900.0), {"resources": True})]
    title, _, *rows = done.printed()
    assert title.startswith(f"gate: checkout {there} (under no version control) (before) beside this side (")
    assert [row.split()[0] for row in rows[:2]] == [A, B], rows
    assert "**1 stop the gate**" in (tmp_path / "page.md").read_text()
    assert done.processes.asked[1].side.paths == (str(tmp_path / "here"),)
    shown = Run(tmp_path, monkeypatch, of_sides(1.2), versus=there, memory="off")
    assert shown.failures() == {}, "without --gate nothing fails"
    assert shown.started[0][1] == {"resources": False}


@pytest.mark.parametrize(
    ("direction", "marker", "stops"), [("faster", "slower", []), ("faster", "", [A]), ("slower", "both", [A])]
)
def test_a_marker_chooses_the_direction_that_stops_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str, marker: str, stops: list[str]
) -> None:
    done = Run(tmp_path, monkeypatch, of_sides(0.8), gate=True, versus=str(tmp_path / "there"), direction=direction)
    done.config.stash[MARKERS] = {A: {"direction": marker} if marker else {"ignore": False}}
    assert list(done.failures()) == stops


def test_memory_stops_the_gate_only_where_it_should_and_what_passes_open_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, is_open = Row(A, "memory", 1, 2, "MORE MEMORY"), Row(B, "time", 1.0, 1.0, "INCONCLUSIVE")
    for memory, stops in (("fail", [more, is_open]), ("show", [is_open])):
        done = Run(tmp_path, monkeypatch, of_sides(1.0), gate=True, versus=str(tmp_path / "there"), memory=memory)
        assert done.gate.failing() == [], "nothing is measured yet"
        assert done.printed() == []
        done.failures()
        done.gate.measurement.rows = [more, is_open]
        assert done.gate.failing() == stops
    passing = "1 INCONCLUSIVE passes: more than 10% is excluded (ini setting gate_allow_inconclusive)"
    effect = paired([1.0] * 8, [1.0, 1.01] * 4, level=0.01)
    done.gate.measurement.rows = [replace(is_open, effect=effect)]
    assert done.gate.failing() == []
    assert passing in done.printed()
    done.gate.settings = replace(done.gate.settings, gate=False)
    assert passing not in done.printed()
    done.gate.settings = replace(done.gate.settings, bisect="HEAD~1")
    done.gate.measurement.rows += [slow := Row(A, "time", 1.0, 2.0, "SLOWER"), Row(A, "flops", 1, 2, "SLOWER")]
    assert done.gate.failing() == [slow]


def test_a_process_that_breaks_is_the_failure_of_each_test_and_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = of_sides(1.0)
    processes.broken = {"this side"}
    done = Run(tmp_path, monkeypatch, processes, noise_floor=True)
    with pytest.raises(pytest.Session.Failed, match=r"^this side crashed$"):
        done.failures()
    assert {report.nodeid: report.longrepr for report in done.config.logged} == dict.fromkeys(
        (A, B), "this side crashed\nits last line"
    )
    assert done.printed() == ["gate: not finished", "this side crashed\nits last line"]
    done.session.testsfailed = 2
    with pytest.raises(pytest.Session.Interrupted, match="2 errors during collection"):
        done.failures()
    done.config.option.continue_on_collection_errors = True
    with pytest.raises(pytest.Session.Failed):
        done.failures()


def test_what_is_no_benchmark_runs_once_and_its_claims_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"checkout {tmp_path / 'there'} (under no version control)"
    options: Any = {"ids": (A, CLAIM), "gate": True, "versus": str(tmp_path / "there")}
    for claims, failing in (
        ({"this side": "FAILS", other: "holds"}, ["demo.one"]),
        ({"this side": "holds", other: "holds"}, []),
        ({"this side": "holds"}, []),
    ):
        processes = Processes(lambda _: {A: 1.0})
        processes.claims = claims
        done = Run(tmp_path, monkeypatch, processes, **options)
        done.gate.pytest_runtestloop(done.session)
        assert [row.name for row in done.gate.failing()] == failing
        whole = [each for each in processes.asked if not each.benchmarks_only]
        assert [(each.side.label, each.targets, each.ids) for each in whole] == [
            ("this side", ["test_c.py"], [CLAIM]), (other, ["test_c.py"], [CLAIM])
        ]  # fmt: skip
        lines = [line for line in done.printed() if line.startswith("claims are not compared")]
        assert len(lines) == (other not in claims)
    done = Run(tmp_path, monkeypatch, processes, **options)
    (tmp_path / "there" / "test_c.py").unlink()
    said: list[str] = []
    monkeypatch.setattr(Measurement, "say", lambda self, *given: said.append(given))
    done.gate.pytest_runtestloop(done.session)
    assert sum(not each.benchmarks_only for each in processes.asked) == 3, "the other side has no such file"
    assert said[0] == ("the 1 tests that are no benchmarks", 0, 1)


def test_each_option_is_measured_as_it_asks_and_nothing_to_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Run(tmp_path, monkeypatch, of_sides(1.0), ids=(CLAIM,), noise_floor=True)
    with pytest.raises(pytest.UsageError, match="no test with the fixture `benchmark` among those selected"):
        done.failures()
    done.session.items[0].get_closest_marker = lambda _: "marked"
    with pytest.raises(pytest.UsageError, match="selected; not compared: 1 tests with the marker"):
        done.failures()
    floor = Run(tmp_path, monkeypatch, of_sides(1.0), ids=(A,), noise_floor=True, replicates=4)
    floor.failures()
    assert [each.side.label for each in floor.processes.asked] == ["this side"] * 8
    own = records.fingerprint_id({"name": "abacus"})
    assert records.noise_floors(tmp_path / "history", own).keys() == {A}
    baseline = Run(tmp_path, monkeypatch, of_sides(1.0), ids=(A, CLAIM), replicates=8)
    baseline.failures()
    assert [each.ids for each in baseline.processes.asked] == [[A, CLAIM]] * 8, "nothing is compared"
    stored = Run(tmp_path, monkeypatch, of_sides(1.0), ids=(A, CLAIM), record="main", replicates=8)
    stored.processes.claims = {"this side": "holds"}
    stored.failures()
    then = Run(tmp_path, monkeypatch, of_sides(1.0), ids=(A, CLAIM), gate=True, baseline="main")
    then.processes.claims = {"this side": "FAILS"}
    then.gate.pytest_runtestloop(then.session)
    assert [row.name for row in then.gate.failing()] == ["demo.one"]
    assert then.printed()[0] == "gate: against the baseline main (8 processes)"
    asked: list[Any] = []
    monkeypatch.setattr(gate_run, "bisect", lambda found, names, good: asked.append((names, good)))
    bisected = Run(tmp_path, monkeypatch, of_sides(1.0), ids=(A, CLAIM), bisect="HEAD~1")
    bisected.session.items.append(
        SimpleNamespace(nodeid=B, location=("", 0, ""), get_closest_marker=lambda _: 1, fixturenames=())
    )
    bisected.gate.pytest_runtestloop(bisected.session)
    assert asked == [([A], "HEAD~1")]
    assert [item.nodeid for item in bisected.session.items] == [A], "what is no benchmark is not run"
    assert "not compared: 1 tests" in bisected.gate.measurement.lines[0]


@pytest.mark.parametrize(("replicate", "collectonly"), [("", False), ("file", False), ("", True)])
def test_only_the_run_that_starts_the_processes_becomes_a_gate(
    replicate: str, collectonly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    run = config(Path(), collectonly=collectonly)
    run.pluginmanager.register = lambda plugin, name: registered.append((plugin.config, plugin.settings, name))
    monkeypatch.setenv("PROOFLOPS_RECORD_TO", replicate)
    configure(run, SETTINGS)
    is_gate = not replicate and not collectonly
    assert run.known_args_namespace.no_cov is is_gate
    assert registered == [(run, SETTINGS, "prooflops.gate.run")] * is_gate
