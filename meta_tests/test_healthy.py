"""What counts as an alarm of a healthy run; `python -m meta_tests.healthy` makes them."""

from meta_tests.healthy import alarms

FIRST = {"a": "holds", "b": "corrected", "c": "not checked"}


def test_a_red_a_changed_and_a_lost_verdict_are_alarms_and_one_that_noise_hid_is_none() -> None:
    assert alarms(FIRST, FIRST) == []
    assert alarms(FIRST, {**FIRST, "b": "not checked", "c": "holds"}) == []
    assert alarms(FIRST, {**FIRST, "a": "corrected"}) == ["a: holds -> corrected"]
    assert alarms(FIRST, {**FIRST, "c": "FAILS"}) == ["c: not checked -> FAILS"]
    assert alarms(FIRST, {"a": "holds", "b": "corrected"}) == ["c: not checked -> not there"]
    assert alarms({"a": "error"}, {"a": "error"}) == ["a: error -> error"], "red in the first, too"
