"""Which process of a job this is and which device it takes; whom a failed rank blames."""

import pytest

from prooflops.suite.ranks import JobRank, RankPlugin, device_of, job_rank


@pytest.mark.parametrize(
    ("error", "words", "expected"),
    [
        (RuntimeError("gloo: Connection closed by peer"), {}, ["rank 1 never reported: it hangs, or was killed"]),
        (RuntimeError("gloo: Timed out"), {1: "a test: ValueError"}, ["rank 1 failed first, in a test: ValueError"]),
        (ValueError("of its own"), {}, []),
    ],
)
def test_a_rank_that_never_reported_is_named_by_those_who_waited_for_it(
    error: Exception, words: dict[int, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prooflops.suite.ranks.GRACE_S", 0.1)
    plugin = object.__new__(RankPlugin)
    plugin.rank, plugin.size = 0, 3
    published: list[str] = []
    plugin.publish_failure = published.append
    # Rank 2 waits for the same one, and reports just after.
    plugin.other_failures = lambda: words | ({2: "Timed out"} if published and not words else {})
    assert plugin._ranks_to_blame("my error", error) == expected
    assert published == ["my error"]


# ---- who and where -----------------------------------------------------------------------------------------------


def test_a_variable_that_is_no_rank_is_refused() -> None:
    variables = {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for wrong in ("2", "-1", "x"):
        with pytest.raises(ValueError, match=f"a rank below WORLD_SIZE, and a local rank, got RANK={wrong}"):
            job_rank(variables | {"RANK": wrong})


@pytest.mark.parametrize(
    ("request_", "counts", "message"),
    [
        ("cuda:1", {"cuda": 2}, "each rank takes the card of its local rank; say --device cuda, or nothing"),
        (None, {"cuda": 2}, "local rank 2, but this machine has 2 cuda devices: start at most 2 ranks"),
    ],
)
def test_a_card_that_ranks_would_share_is_refused(request_: str | None, counts: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device_of(request_, JobRank(2, 4, 2), counts)
