"""The bandwidth of a mix of traffic, and what limits a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.work import bandwidth_of_mix, bound_of, stream_work

SHARES = st.floats(0, 1)
RATES = st.dictionaries(SHARES, st.floats(1e6, 1e13), min_size=1, max_size=5)


@given(SHARES, RATES)
def test_the_bandwidth_of_a_mix_is_between_those_measured_beside_it(share: float, measured: dict[float, float]) -> None:
    beside = [measured[max((s for s in measured if s <= share), default=min(measured))],
              measured[min((s for s in measured if s >= share), default=max(measured))]]  # fmt: skip
    found = bandwidth_of_mix(share, measured)
    assert min(beside) * (1 - 1e-9) <= found <= max(beside) * (1 + 1e-9)
    if share in measured:
        assert found == measured[share]


def test_a_mix_of_two_kinds_of_traffic_takes_the_time_of_both() -> None:
    reading, copying = 80e9, 20e9
    for part in (0.1, 0.5, 0.9):  # of the bytes are copied, half of which are read
        seconds = (1 - part) / reading + part / copying
        assert 1 / bandwidth_of_mix(1 - part / 2, {1.0: reading, 0.5: copying}) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bandwidth_of_mix(1.1, {1.0: 1.0}), "read_share must be from 0 to 1, got 1.1"),
        (lambda: bandwidth_of_mix(0.5, {}), "measured must have at least one bandwidth"),
        (lambda: bandwidth_of_mix(0.5, {1.0: 0.0}), "the bandwidth at 1.0 must be"),
        (lambda: bound_of(-1.0, 2.0), "intensity must be"),
        (lambda: bound_of(1.0, 0.0), "ridge must be"),
        (lambda: bound_of(1.0, 2.0, math.nan), "launch_share must be a finite number of at least 0, got nan"),
        (lambda: stream_work("swap", 3), "kernel must be one of"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bound_changes_at_the_ridge_and_a_launch_comes_first() -> None:
    assert [bound_of(intensity, 4.0) for intensity in (0, 3.99, 4.0)] == ["memory", "memory", "compute"]
    assert [bound_of(100.0, 4.0, share) for share in (0.49, 0.5)] == ["compute", "launch"]
