"""One rank of a job: which device it gets, and whom it blames where it fails alone."""

import re
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops.suite import ranks
from prooflops.suite.ranks import JobRank, RankPlugin, device_of

LOST = RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(
    ("error", "at_first", "later", "blamed"),
    [
        (ValueError("3"), [], [0, 2, 3], []),
        (ValueError("3"), [2], [2], [2]),
        (LOST, [2], [0, 2], [2]),
        (LOST, [], [0], [2, 3]),
        (LOST, [], [], [0, 2, 3]),
        (LOST, [], [0, 2, 3], []),
    ],
)
def test_a_rank_blames_those_before_it_or_else_those_that_it_waited_for(
    error, at_first, later, blamed, tmp_path, monkeypatch
):
    monkeypatch.setattr(ranks, "GRACE_S", 0.2)
    plugin = RankPlugin(config_in(tmp_path, "-p", "prooflops_gate.plugin"), JobRank(1, 4, 1))
    reports = chain([at_first, later[:2]], repeat(later))
    plugin.other_failures = lambda: dict.fromkeys(next(reports), "a test")
    item = SimpleNamespace(nodeid="test_x", session=SimpleNamespace())
    call = SimpleNamespace(excinfo=SimpleNamespace(value=error, exconly=error.__str__))
    hook = plugin.pytest_runtest_makereport(item, call)
    next(hook)
    report = SimpleNamespace(failed=True, sections=[])
    with pytest.raises(StopIteration):
        hook.send(report)
    said = item.session.shouldfail
    assert re.findall(r"rank (\d) (?:failed first|never)", said) == [*map(str, blamed)]
    assert ("failed alone" in said) is not blamed
    assert len(report.sections) == len(blamed)


@pytest.mark.parametrize(
    ("request_", "own", "cards", "device"),
    [
        (None, JobRank(1, 2, 1), 2, "cuda:1"),
        ("cuda", JobRank(1, 2, 1), 2, "cuda:1"),
        ("cuda", JobRank(1, 2, 1), 1, "cuda:0"),
        ("cuda:0", JobRank(0, 1, 0), 2, "cuda:0"),
        ("cuda:0", JobRank(0, 2, 0), 2, "say --device cuda, or nothing"),
        (None, JobRank(2, 3, 2), 2, "start at most 2 ranks on it"),
    ],
)
def test_a_rank_has_the_card_of_its_place_on_the_machine(request_, own, cards, device):
    try:
        found = device_of(request_, own, {"cuda": cards})
    except ValueError as error:
        found = str(error)
    assert found.endswith(device)
