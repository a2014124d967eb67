"""What counts as an alarm of a healthy run; `python -m meta_tests.healthy` makes them."""

from typing import Any

from meta_tests.healthy import alarms, line_of, summary
from prooflops.suite.registry import Claim


def claim(name: str, written: str, **rest: Any) -> Claim:
    return Claim(name, "It is so.", ("lecture",), written, "behaviour", **rest)


CLAIMS = [claim("a.a", "holds"), claim("a.b", "wrong", correction="not so"), claim("a.c", "holds", on_record=True)]


def rows(*verdicts: str, reason: str = "") -> list[dict[str, str]]:
    return [{"id": each.id, "verdict": verdict, "reason": reason} for each, verdict in zip(CLAIMS, verdicts)]  # noqa: B905


def test_any_verdict_but_that_of_the_row_is_an_alarm_and_one_not_checked_is_none() -> None:
    assert alarms(rows("holds", "corrected", "on record"), CLAIMS) == []
    assert alarms(rows("not checked", "not checked", "not checked"), CLAIMS) == []
    assert alarms(rows("corrected", "FAILS", "error"), CLAIMS) == ["a.a corrected", "a.b FAILS", "a.c error"]
    assert alarms(rows("holds", "corrected"), CLAIMS) == ["a.c no verdict"]
    assert alarms([], CLAIMS) == ["a.a no verdict", "a.b no verdict", "a.c no verdict"], "the run broke off"


def test_the_kept_lines_say_how_many_runs_were_well_and_what_noise_hid() -> None:
    well = line_of(0, "as it is", rows("holds", "corrected", "on record"), [])
    assert well == "0 as it is: 3 claims as the rows say; 0 cannot be checked here"
    hid = line_of(1, "one core", rows("not checked", reason="this machine's noise (9 %) exceeds the effect"), [])
    red = line_of(2, "xdist", rows("FAILS"), ["a.a FAILS"])
    assert hid.endswith("0 cannot be checked here, hidden by noise: a.a")
    assert "1 claims a.a FAILS;" in red
    found = "3 runs, 2 with each verdict as the rows say; 1 claims that noise hid in at least one"
    assert summary([well, hid, red]) == f"{found}; as it is, one core, xdist"
