"""The machine's own ceilings: searched once, raised by what exceeds them, never mixed between the regimes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import ceilings as module
from bench.ceilings import Ceiling, Ceilings
from meta_tests.bench.stand_ins import CPU, SHORT


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


def test_bursts_and_steady_work_take_turns_and_zeros_are_held_against_random_numbers(
    scripted: tuple[Ceilings, list[str]],
) -> None:
    ceilings, log = scripted
    assert ceilings.burst_ratio("fp32", 6) == (2.0, 2.0, 2.0)
    assert log == ["sustainable", "settle", *["burst", "steady", "steady", "burst"] * 3]
    assert ceilings.zeros_ratio("fp32", 3) == 1.0


def test_a_real_search_finds_a_shape_of_its_space_and_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEARCH", 1)
    said: list[str] = []
    ceilings = Ceilings(CPU, SHORT, lambda text, ahead_s=0.0: said.append(text))
    found = ceilings.found("fp32")
    assert found.flop_per_s > 0
    assert found.shape in ceilings.space("fp32").shapes
    assert said == ["searching for the sustainable one of fp32"]
    with pytest.raises(ValueError, match="regime must be one of sustainable, achievable, got 'peak'"):
        ceilings.found("fp32", "peak")
