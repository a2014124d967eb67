"""The limits of each pace."""

from __future__ import annotations

import pytest

from bench.pace import PACES
from bench.rounds import FEWEST_ROUNDS


def test_every_pace_has_time_for_an_interval() -> None:
    for name, pace in PACES.items():
        assert pace.warmup_s <= pace.longest_warmup_s, f"{name}: {pace}"
        assert pace.most_rounds >= FEWEST_ROUNDS, f"{name}: {pace}"


def test_a_call_that_takes_too_long_is_skipped_with_its_time() -> None:
    PACES["quick"].skip_if_longer(0.05)
    with pytest.raises(pytest.skip.Exception, match=r"one call takes about 0\.12 s, 0\.05 s are allowed"):
        PACES["quick"].skip_if_longer(0.123)
