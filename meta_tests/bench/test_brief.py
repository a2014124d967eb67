"""What a benchmark does, and leaves out, in one of the gate's many processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import measuring
from bench.brief import Asked, BriefMeasure
from bench.ceilings import Ceilings
from bench.conftest import pytest_collection_finish
from bench.pace import PACES
from meta_tests.bench.stand_ins import CPU, Rounds, supported


def brief(examined: bool = True, seconds: float = 0.02, least_rounds: int = 3, **asked: Any) -> BriefMeasure:
    return BriefMeasure(Asked(seconds, least_rounds, examined, **asked), Rounds(), CPU, PACES["quick"])


@pytest.mark.parametrize(("call_s", "rounds"), [(1e-3, 20), (0.02, 3)])
def test_rounds_are_as_many_as_fit_and_never_fewer_than_asked(
    monkeypatch: pytest.MonkeyPatch, call_s: float, rounds: int
) -> None:
    now, calls = [0.0], [0]

    def clock() -> float:
        return now[0]

    def call() -> None:
        now[0] += call_s
        calls[0] += 1

    monkeypatch.setattr(measuring, "perf_counter", clock)
    run = BriefMeasure(Asked(0.0201, 3, True), Rounds(clock), CPU, PACES["quick"], timer=clock)
    assert run.median_s(call) == pytest.approx(call_s)
    assert run.info["rounds"] == rounds
    assert calls[0] <= rounds + 2, f"{calls[0]} calls for {rounds} rounds"


@pytest.mark.parametrize(("call_s", "pages", "calls"), [(0.1, [9, 99, 0], 1), (0.1, [99, 99, 9, 0], 3), (0.3, [99], 1)])
def test_calls_go_before_the_rounds_until_one_gets_no_new_pages(
    monkeypatch: pytest.MonkeyPatch, call_s: float, pages: list[int], calls: int
) -> None:
    now, given, done = [0.0], [0], [0]

    def call() -> None:
        now[0] += call_s
        given[0] += pages[done[0]]
        done[0] += 1

    monkeypatch.setattr("bench.brief.new_pages", lambda: given[0])
    monkeypatch.setattr(measuring, "perf_counter", lambda: now[0])
    monkeypatch.setattr(BriefMeasure, "_run", lambda *_: pytest.skip("the rounds"))
    run = BriefMeasure(Asked(0.02, 3, True), Rounds(), CPU, PACES["quick"], timer=lambda: now[0])
    with pytest.raises(pytest.skip.Exception, match="the rounds"):
        run.median_s(call)
    assert done[0] == calls


def test_the_first_process_examines_and_says_what_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    case, left_out, looks = supported("fp32"), list[float](), list[int]()
    right = measuring.examine
    monkeypatch.setattr(measuring, "examine", lambda function: (looks.append(1), right(function))[1])
    for examined in (False, True):
        run = brief(examined, leave_out=left_out.append)
        run.product(case.multiply, "fp32", case.work, Ceilings(CPU, PACES["quick"]), check=case.check)
        assert len(looks) == 1
        assert run.info["flops"] == case.work.flops, "what is compared exactly is in every process"
    assert len(left_out) == 2, "the look before the rounds, and that at the result after them"
    assert min(left_out) > 0


def test_a_wrong_result_is_noticed_in_the_first_process() -> None:
    case = supported("fp32")
    with pytest.raises(AssertionError, match="a product of fp32 differs from fp64"):
        brief(False).work(lambda: case.a @ case.b / 2, case.work, dtype="fp32", check=case.check)


@pytest.mark.parametrize("examined", [False, True])
def test_nothing_is_searched_and_what_ran_before_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch, examined: bool
) -> None:
    monkeypatch.setattr(Ceilings, "found", lambda *_: pytest.fail("a ceiling was searched"))
    ceilings = Ceilings(CPU, PACES["quick"])
    brief(examined).skip_if_longer(1e3, "fp32", ceilings)
    brief(examined).skip_if_held_up(lambda: pytest.fail("a call, for nothing"))
    if examined:
        brief(examined).skip_if_longer(1e18, "fp32", ceilings)
    else:
        with pytest.raises(pytest.skip.Exception, match=r"0.05 s are allowed"):
            brief(examined).skip_if_longer(1e18, "fp32", ceilings)


def test_a_cold_round_is_flushed_though_the_flush_is_not_tried_out_again() -> None:
    class Flush:
        bytes, calls, capped = 1, 0, False

        def __call__(self) -> None:
            self.calls += 1

        @property
        def check(self) -> None:
            pytest.fail("it was tried out")

    flush, x = Flush(), torch.randn(64)
    run = brief()
    run._make_flush = lambda: flush  # type: ignore[assignment,return-value]
    run.median_s(lambda: x.sum(), cache="cold")
    assert flush.calls >= run.info["rounds"] >= 3


@pytest.mark.parametrize(
    ("file", "replicate", "imported"),
    [("test_training.py", True, ["torch._dynamo"]), ("test_training.py", False, []), ("test_matmul.py", True, [])],
)
def test_what_the_first_step_imports_is_there_before_the_turns_begin(
    file: str, replicate: bool, imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("bench.conftest.importlib.import_module", asked.append)
    plugins = SimpleNamespace(hasplugin=lambda name: replicate and name == "prooflops.gate.replicate")
    items = [SimpleNamespace(path=Path("bench") / file)]
    pytest_collection_finish(SimpleNamespace(items=items, config=SimpleNamespace(pluginmanager=plugins)))  # type: ignore[arg-type]
    assert asked == imported
