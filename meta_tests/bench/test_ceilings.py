"""The machine's own ceilings: searched once, raised by what exceeds them, never mixed between the regimes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import ceilings as module
from bench.ceilings import Ceiling, Ceilings
from bench.measuring import Measure
from bench.pace import PACES
from bench.products import Unsupported
from meta_tests.bench.stand_ins import CPU, SHORT, SteadyRounds, supported


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> tuple[Ceilings, list[str]]:
    """Ceilings whose bursts take 1 s and whose steady calls take 2 s, and a log of what was searched and timed."""
    log: list[str] = []

    def logged(what: str, seconds: float) -> Callable[..., float]:
        return lambda self, function: log.append(what) or seconds

    monkeypatch.setattr(Ceilings, "_settle", logged("settle", 0.0))
    monkeypatch.setattr(Ceilings, "_burst_s", logged("burst", 1.0))
    monkeypatch.setattr(Ceilings, "_steady_s", logged("steady", 2.0))
    monkeypatch.setattr(
        Ceilings, "_search", lambda self, dtype, regime: log.append(regime) or Ceiling((8, 8, 8), 100.0, 0.0)
    )
    return Ceilings(CPU, SHORT), log


def test_a_ceiling_is_searched_for_once_in_each_regime(scripted: tuple[Ceilings, list[str]]) -> None:
    ceilings, log = scripted
    for regime in ("sustainable", "achievable", "sustainable"):
        assert ceilings.flop_per_s("fp32", regime) == 100.0
    assert log == ["sustainable", "achievable"]


def test_what_exceeded_a_ceiling_raises_it_in_its_own_regime_and_never_lowers_it(
    scripted: tuple[Ceilings, list[str]],
) -> None:
    ceilings, log = scripted
    assert ceilings.remeasure("fp32", lambda: None, 1000) == 500.0  # steady calls take 2 s
    assert ceilings.flop_per_s("fp32", "achievable") == 100.0
    assert ceilings.remeasure("fp32", lambda: None, 150, "achievable") == 150.0  # bursts take 1 s
    assert ceilings.remeasure("fp32", lambda: None, 2) == 500.0
    assert ceilings.found("fp32").flop_per_s == 100.0, "what the search found is on record as it was"
    assert log.count("settle") == 2, "steady work has to be settled, a burst not"


def test_bursts_and_steady_work_take_turns(scripted: tuple[Ceilings, list[str]]) -> None:
    ceilings, log = scripted
    assert ceilings.burst_ratio("fp32", 6) == (2.0, 2.0, 2.0)
    assert log == ["sustainable", "settle", *["burst", "steady", "steady", "burst"] * 3]


def test_zeros_are_held_against_random_numbers(scripted: tuple[Ceilings, list[str]]) -> None:
    ceilings, log = scripted
    assert ceilings.zeros_ratio("fp32", 3) == 1.0
    assert log[1:] == ["settle"] + ["steady"] * 6


def test_an_unknown_regime_is_refused(scripted: tuple[Ceilings, list[str]]) -> None:
    with pytest.raises(ValueError, match="regime must be one of sustainable, achievable, got 'peak'"):
        scripted[0].found("fp32", "peak")


def test_a_ceiling_of_what_the_device_does_not_multiply_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="tf32 exists on CUDA devices only"):
        Ceilings(CPU, SHORT).flop_per_s("tf32")


def test_a_real_search_finds_a_shape_of_its_space_and_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEARCH", 1)
    said: list[str] = []
    found = Ceilings(CPU, SHORT, lambda text, ahead_s=0.0: said.append(text)).found("fp32")
    assert found.flop_per_s > 0
    assert len(found.shape) == 3
    assert said == ["searching for the sustainable one of fp32"]


def test_a_burst_is_held_against_bursts_and_leaves_the_steady_ceiling_as_it_is() -> None:
    ceilings, case = Ceilings(CPU, PACES["quick"]), supported("fp32")
    ceilings._flop_per_s |= {("fp32", "sustainable"): 1e6, ("fp32", "achievable"): 1e15}
    measure = Measure(SteadyRounds(1e-3), CPU, PACES["quick"])
    measure.product(case.multiply, "fp32", case.work, ceilings, check=case.check, regime="achievable")
    assert (measure.info["ceiling_flop_per_s"], measure.info["ceiling_remeasured"]) == (1e15, False)
    assert ceilings.flop_per_s("fp32") == 1e6, "a burst became the denominator of steady work"
