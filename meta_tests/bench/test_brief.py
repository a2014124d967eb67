"""A process of the gate fits its rounds into the seconds it was given."""

from functools import partial

import pytest

from bench import brief, timing
from bench.brief import Asked, BriefSchedule
from bench.ceilings import Ceilings
from bench.timing import CallTimer, TimedCall
from meta_tests.bench.stand_ins import CPU, SHORT, skips


def brief_schedule(seconds, least_rounds=6, *, examined=True, leave_out=None):
    return BriefSchedule(Asked(seconds, least_rounds, examined, leave_out), SHORT)


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
        ([0.11, 0.03, 0.02, 0.01], [99, 16, 15, 0], 3),
        ([0.26, 0.01], [99, 0], 1),
        ([0.02] * 8, [99] * 8, 6),
    ],
)
def test_first_calls_end_when_one_gets_no_new_pages(monkeypatch, times_s, pages, calls):
    now = got = made = 0

    def call():
        nonlocal now, got, made
        now, got, made = now + times_s[made], got + pages[made], made + 1

    monkeypatch.setattr(brief, "new_pages", lambda: got)
    monkeypatch.setattr(timing, "perf_counter", lambda: now)
    timer = CallTimer(CPU, lambda: now)
    fastest, _ = brief_schedule(1.0).first_calls(timer, TimedCall(call))
    assert (made, fastest) == (calls, pytest.approx(min(times_s[:calls])))


def test_the_first_process_alone_examines_and_leaves_that_time_out(monkeypatch):
    moments, left_out = iter([3.0, 5.0]), []
    monkeypatch.setattr(brief, "perf_counter", moments.__next__)
    first, later = (
        brief_schedule(1.0, examined=examined, leave_out=left_out.append)
        for examined in (False, True)
    )
    assert (first.once(lambda: "seen"), later.once(lambda: "seen")) == ("seen", None)
    assert left_out == [2.0]
    # The longest call takes a second, at a ceiling that may be several times the probed rate.
    ceilings = Ceilings(CPU, SHORT, _probed={"fp32": 1.0})
    for schedule, flops, is_skipped in ((first, 2, False), (first, 4, True), (later, 4, False)):
        call = partial(schedule.skip_if_longer, flops, "fp32", ceilings)
        assert skips(call) == is_skipped
