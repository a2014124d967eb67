"""A process of the gate fits its rounds into the seconds it was given."""

import pytest

from bench.brief import Asked, BriefSchedule
from bench.timing import CallTimer, TimedCall
from meta_tests.bench.stand_ins import CPU, SHORT


@pytest.mark.parametrize(
    ("asked_s", "least", "number"), [(1.1, 2, 11), (0.25, 1, 2), (0.25, 5, 5), (500.0, 1, 1000)]
)
def test_rounds_of_a_tenth_of_a_second_fill_the_time_but_are_no_fewer_than_asked(
    asked_s, least, number
):
    schedule = BriefSchedule(Asked(asked_s, least), SHORT)
    call = TimedCall(lambda: None)
    assert schedule.rounds(CallTimer(CPU, float), call, 4, 0.0249, False).number == number
