"""A process of the gate fits its rounds into the seconds it was given."""

from functools import partial

import pytest

from bench import brief
from bench.brief import Asked, BriefSchedule
from bench.ceilings import Ceilings
from bench.timing import CallTimer, TimedCall
from meta_tests.bench.stand_ins import CPU, SHORT, skips


def brief_schedule(seconds, least_rounds=6):
    return BriefSchedule(Asked(seconds, least_rounds, True, None), SHORT)


@pytest.mark.parametrize(
    ("asked_s", "least", "number"), [(1.1, 2, 11), (0.25, 1, 2), (0.25, 5, 5), (500.0, 1, 1000)]
)
def test_rounds_of_a_tenth_of_a_second_fill_the_time_but_are_no_fewer_than_asked(
    asked_s, least, number
):
    schedule = brief_schedule(asked_s, least)
    call = TimedCall(lambda: None)
    assert schedule.rounds(CallTimer(CPU, float), call, 4, 0.0249, False).number == number


@pytest.mark.parametrize(
    ("times_s", "pages", "calls"),
    [
        ([0.095, 0.02], [0, 0], 2),
        # A tenth of the time asked for is no small part of it.
        ([0.11, 0.02], [0, 0], 1),
        ([0.11, 0.03, 0.02], [99, 16, 15], 3),
        ([0.26], [99], 1),
    ],
)
def test_first_calls_end_when_one_gets_no_new_pages(monkeypatch, times_s, pages, calls):
    made = []
    monkeypatch.setattr(brief, "new_pages", lambda: sum(pages[: len(made)]))
    timer = CallTimer(CPU, lambda: sum(times_s[: len(made)]))
    fastest, _ = brief_schedule(1.0).first_calls(timer, TimedCall(lambda: made.append(1)))
    assert (len(made), fastest) == (calls, pytest.approx(min(times_s[:calls])))


def test_the_first_process_alone_examines_and_leaves_that_time_out():
    left_out = []
    first, later = (
        BriefSchedule(Asked(1.0, 6, is_examined, left_out.append), SHORT)
        for is_examined in (False, True)
    )
    assert (first.once(lambda: "seen"), later.once(lambda: "seen")) == ("seen", None)
    assert len(left_out) == 1
    # The longest call takes a second, at a ceiling that may be several times the probed rate.
    ceilings = Ceilings(CPU, SHORT, _probed={"fp32": 1.0})
    for schedule, flops, is_skipped in ((first, 2, False), (first, 4, True), (later, 4, False)):
        call = partial(schedule.skip_if_longer, flops, "fp32", ceilings)
        assert skips(call) == is_skipped
