"""Measures tests as a whole if they have the marker `benchmark` and do not use its fixture.

pytest-codspeed measures such tests in the same way.
"""

from __future__ import annotations

from typing import Any

import pytest

from prooflops_gate.run_state import benchmark_marker, is_whole_benchmark

# Arguments that pytest-codspeed's marker takes and pytest-benchmark's refuses. The gate obeys
# `max_rounds`; it chooses itself how long to warm up, and how long to measure at least.
CODSPEED_ARGUMENTS = ("max_rounds", "warmup_time")
MOST_ROUNDS = 12
# So little time that the number of rounds alone decides.
NO_TIME_S = 1e-9


class WholeTests:
    """Pytest plugin: passes a marked test to the fixture `benchmark`.

    pytest-codspeed's own name for this fixture means it, too.
    """

    @pytest.fixture
    def codspeed_benchmark(self, benchmark: Any) -> Any:
        return benchmark

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
    """The arguments of the test's own marker, as pytest-benchmark takes them.

    `min_time` is the time of one round in pytest-benchmark, and of all rounds in pytest-codspeed:
    the latter is left out.
    """
    marker = benchmark_marker(item)
    given = dict(marker.kwargs) if marker else {}
    has_codspeeds_arguments = any(name in given for name in CODSPEED_ARGUMENTS)
    if not is_whole_benchmark(item) and not has_codspeeds_arguments:
        return given
    most = given.get("max_rounds")
    left_out = (*CODSPEED_ARGUMENTS, "min_time")
    kept = {key: value for key, value in given.items() if key not in left_out}
    if most is not None:
        kept |= {"min_rounds": min(int(most), MOST_ROUNDS), "max_time": NO_TIME_S}
    return kept
