"""Measures whole tests.

Those with the marker `benchmark` that do not use its fixture, as pytest-codspeed does.
"""

from __future__ import annotations

from typing import Any

import pytest

from prooflops_gate.run_state import is_whole_benchmark

# Arguments of the marker that pytest-benchmark refuses. `max_rounds` is obeyed; how long to warm
# up, and for how long to measure at least, is the gate's to choose.
OF_CODSPEED = ("max_rounds", "warmup_time")
MOST_ROUNDS = 12
# So little time that the number of rounds alone decides.
NO_TIME_S = 1e-9


class WholeTests:
    """Pytest plugin: passes a marked test to the fixture `benchmark`."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if not is_whole_benchmark(pyfuncitem):
            return None
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        benchmark = pyfuncitem._request.getfixturevalue("benchmark")
        benchmark(pyfuncitem.obj, **arguments)
        return True


def marker_arguments(item: pytest.Item) -> dict[str, Any]:
    """The arguments of the test's own marker `benchmark`, as pytest-benchmark takes them.

    `min_time` is a round's in pytest-benchmark, and all rounds' in pytest-codspeed: there it is
    left out.
    """
    marker = item.get_closest_marker("benchmark")
    given = dict(marker.kwargs) if marker else {}
    is_codspeeds = is_whole_benchmark(item) or any(name in given for name in OF_CODSPEED)
    if not is_codspeeds:
        return given
    most = given.get("max_rounds")
    kept = {key: value for key, value in given.items() if key not in (*OF_CODSPEED, "min_time")}
    if most is not None:
        kept |= {"min_rounds": min(int(most), MOST_ROUNDS), "max_time": NO_TIME_S}
    return kept
