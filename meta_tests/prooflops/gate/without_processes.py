"""Runs of the gate in which no process starts: what each would have measured is given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate.measurement import Measurement
from prooflops.gate.processes import Replicate, ReplicateFailed, Side
from prooflops.gate.settings import Settings
from prooflops.statistics.effects import Effect, paired

SETTINGS = Settings(
    gate=False, baseline=None, versus=None, bisect=None, record=None, replicates=None, min_effect=0.03, budget_s=600.0,
    allowed_open=0.1, portable=False, noise_floor=False, direction="slower", memory="fail", min_memory_effect=0.05,
    in_turn=True, exact=("flops",), folder=Path("/nowhere"),
)  # fmt: skip
FINGERPRINT = {"name": "abacus"}
A, B, C = (f"test_b.py::test_{letter}" for letter in "abc")  # benchmarks
Times = Mapping[str, float | Sequence[float]]  # seconds by benchmark; of several, one a process in turn
EVEN, UNEVEN, PLAIN = [1.0, 1.01] * 4, [0.7, 1.4, 0.8, 1.3, 0.6, 1.5, 1.1, 1.0], [2.0, 2.1] * 4  # ratios of pairs


def effect(ratios: list[float]) -> Effect:
    return paired([1.0] * len(ratios), ratios, level=0.01)


class Processes:
    """Stands for `Replicates`: keeps what it was asked for, and returns what `measured` says of each side's label."""

    def __init__(self, measured: Callable[[str], Times], **prooflops: Any) -> None:
        self.measured, self.prooflops = measured, {"fingerprint": FINGERPRINT, **prooflops}
        self.asked: list[Any] = []
        self.examined: Sequence[str] = ()
        self.seeds = 0
        self.extra: dict[str, Any] = {}
        self.outcome = "passed"
        self.call_s: dict[str, float] = {}  # of a benchmark in a process, where it is not 0.1
        self.claims: dict[str, str] = {}  # the verdict of a claim by side
        self.code: Path | None = None  # that every side imports, where each does not import its own
        self.broken: set[str] = set()  # labels of sides that crash
        self.broken_in_turn: set[str] = set()  # and those that crash beside another
        self.in_turn: list[float] = []  # the limits of pairs in turn
        self.footprint: dict[str, Any] = {"peak_bytes": 1, "driver": ""}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None: ...

    def share_hash_seed(self) -> None:
        self.seeds += 1

    def run_in_turn(
        self, asked: Sequence[tuple[Side, Sequence[str]]], ids: Sequence[str], paces: Any, limit_s: float
    ) -> list[Replicate]:
        self.in_turn.append(limit_s)
        if {side.label for side, _ in asked} & self.broken_in_turn:
            raise ReplicateFailed("crashed beside another")
        return [self.run(side, targets, ids, True, paces) for side, targets in asked]

    def run(
        self, side: Side, targets: Sequence[str], ids: Sequence[str] | None, benchmarks_only: bool = True,
        paces: Any = None,
    ) -> Replicate:  # fmt: skip
        self.asked.append(
            SimpleNamespace(
                side=side, targets=list(targets), ids=ids and list(ids), benchmarks_only=benchmarks_only, paces=paces,
                examined=list(self.examined),
            )
        )  # fmt: skip
        if side.label in self.broken:
            raise ReplicateFailed(f"{side.label} crashed\nits last line")
        turn = sum(each.side.label == side.label for each in self.asked) - 1
        times = {
            name: seconds if isinstance(seconds, float) else seconds[turn % len(seconds)]
            for name, seconds in self.measured(side.label).items()
            if ids is None or name in ids
        }
        rows = [
            {"fullname": name, "stats": {"min": seconds}, "extra_info": self.extra} for name, seconds in times.items()
        ]
        calls = {name: {"seconds": self.call_s.get(name, 0.1), "once_s": 0.0, "fixed": False} for name in times}
        tests = times if ids is None else ids
        reports = [
            {"nodeid": name, "location": ("", 0, ""), "keywords": {}, "outcome": self.outcome, "longrepr": None,
             "when": "call"}
            for name in tests
        ]  # fmt: skip
        modules = {"work": str(self.code or side.root / "work.py")}
        wall_s = 2.0 + sum(call["seconds"] for call in calls.values())
        ours = dict(self.prooflops)
        if side.label in self.claims:
            ours["verdicts"] = [{"id": "demo.one", "verdict": self.claims[side.label]}]
        return Replicate(
            side, {"benchmarks": rows, "prooflops": ours}, "", modules, reports, calls, wall_s, self.footprint
        )


def config(root: Path, *arguments: str, **options: Any) -> Any:
    """A configuration of pytest, with what the gate asks of it; `logged`: the reports that were passed on."""
    logged: list[pytest.TestReport] = []
    hook = SimpleNamespace(
        pytest_runtest_logstart=lambda **_: None,
        pytest_runtest_logfinish=lambda **_: None,
        pytest_runtest_logreport=lambda report: logged.append(report),
        pytest_report_from_serializable=lambda config, data: pytest.TestReport(**data),
    )
    return SimpleNamespace(
        stash=pytest.Stash(), rootpath=root, args=list(arguments), hook=hook, logged=logged,
        invocation_params=SimpleNamespace(dir=root, args=arguments), get_verbosity=lambda: 0,
        known_args_namespace=SimpleNamespace(no_cov=False), getini=lambda _: [], inipath=None,
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None, hasplugin=lambda _: False),
        option=SimpleNamespace(**{"keyword": "", "markexpr": "", "collectonly": False, **options}),
    )  # fmt: skip


def measurement(root: Path, processes: Any, *arguments: str, **settings: Any) -> Measurement:
    """A run of the gate in `root`, with these settings; its `said` are the lines of progress."""
    (root / "test_b.py").touch()
    given = replace(SETTINGS, **{"folder": root / "history", **settings})
    found = Measurement(config(root, *arguments), given, processes)
    found.said = []  # type: ignore[attr-defined]
    found.progress.always = found.said.append  # type: ignore[attr-defined, method-assign]
    return found
