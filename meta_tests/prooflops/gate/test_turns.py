"""Turns: who runs when, what becomes of a process that ends early, and who may take them."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from prooflops.gate import turns
from prooflops.gate.turns import LAST, NEXT, Turn, footprint, give, why_not

STUCK_S = 20.0  # beyond it, a turn is never given


class Players:
    """Threads in the place of processes; `log` has who was at which test, in the order in which they were."""

    def __init__(self, stack: ExitStack) -> None:
        self.log: list[str] = []
        self.channels: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self.turns: list[Turn] = []
        self._at_a_test = threading.Lock()
        self._stack = stack

    def join(self, name: str, tests: int, ends: Callable[[Turn], object] = lambda turn: turn.wait(LAST)) -> None:
        """One more, which runs so many tests, and then `ends`."""
        here, there = socket.socketpair()
        self.channels.append(self._stack.enter_context(here))
        turn = Turn(there.detach())

        def play() -> None:
            for test in range(1, tests + 1):
                turn.wait(NEXT)
                assert self._at_a_test.acquire(blocking=False), "two at a time"
                self.log.append(f"{name}{test}")
                time.sleep(0.01)
                self._at_a_test.release()
            ends(turn)
            self.log.append(f"{name} ends")
            assert turn._channel
            turn._channel.close()

        self.turns.append(turn)
        self.threads.append(threading.Thread(target=play, daemon=True))

    def play(self, runs: Callable[[int], bool] = lambda each: True, limit_s: float = STUCK_S) -> list[str]:
        for thread in self.threads:
            thread.start()
        give(self.channels, runs, time.monotonic() + limit_s)
        for thread in self.threads:
            thread.join(STUCK_S if limit_s == STUCK_S else 0.1)
        return self.log


@pytest.fixture
def players() -> Iterator[Players]:
    with ExitStack() as stack:
        yield Players(stack)


def test_each_test_waits_for_its_turn_and_who_was_second_begins_with_the_next(players: Players) -> None:
    players.join("a", 4)
    players.join("b", 4)
    log = players.play()
    assert log[:8] == ["a1", "b1", "b2", "a2", "a3", "b3", "b4", "a4"]
    assert sorted(log[8:]) == ["a ends", "b ends"], "reports of the one would disturb a test of the other"
    waited = [turn.waited_s for turn in players.turns]
    assert 0.02 < min(waited) <= max(waited) < STUCK_S, waited


@pytest.mark.parametrize("few", [0, 1])
def test_who_has_fewer_tests_waits_at_its_end_for_the_other(players: Players, few: int) -> None:
    players.join("a", few)
    players.join("b", 3)
    log = players.play()
    assert [each for each in log if each.startswith("b")] == ["b1", "b2", "b3", "b ends"]
    assert log.index("a ends") > log.index("b3")


def test_who_ends_without_a_word_leaves_the_other_its_turns(players: Players) -> None:
    players.join("a", 1, ends=lambda turn: False)
    players.join("b", 3)
    assert [each for each in players.play() if each.startswith("b")] == ["b1", "b2", "b3", "b ends"]


def test_who_has_ended_is_not_waited_for_where_another_process_keeps_its_channel_open(players: Players) -> None:
    kept = threading.Event()
    players.join("a", 1, ends=lambda turn: kept.wait(STUCK_S))
    players.join("b", 2)
    log = players.play(runs=lambda each: bool(each) or "a1" not in players.log)
    kept.set()
    assert log[:3] == ["a1", "b1", "b2"]


def test_nobody_waits_beyond_the_limit(players: Players) -> None:
    for_ever = threading.Event()
    players.join("a", 1, ends=lambda turn: for_ever.wait(STUCK_S))
    players.join("b", 2)
    began = time.monotonic()
    assert players.play(limit_s=0.3) == ["a1"]
    assert time.monotonic() - began < STUCK_S / 2
    for_ever.set()


def test_who_runs_alone_or_is_left_alone_does_not_wait() -> None:
    alone = Turn(None)
    alone.wait(NEXT)
    assert alone.waited_s == 0
    here, there = socket.socketpair()
    left = Turn(there.detach())
    here.close()
    left.wait(NEXT)
    left.wait(LAST)
    assert left.waited_s < STUCK_S / 2
    assert left._channel
    assert not left._channel.get_inheritable(), "what a test starts would keep it open"
    left._channel.close()


def test_a_process_knows_its_memory_and_the_driver_that_it_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = bytearray(os.urandom(1)) * 2**26
    assert footprint()["peak_bytes"] > len(held)
    monkeypatch.setattr(turns, "MAPPED", tmp_path / "maps")
    assert footprint()["driver"] is None
    (tmp_path / "maps").write_text("7f r-xp /usr/lib/libm.so.6\n")
    assert footprint()["driver"] == ""
    (tmp_path / "maps").write_text("7f r-xp /usr/lib/libm.so.6\n7f r-xp /usr/lib/libcuda.so.580.65\n")
    assert footprint()["driver"] == "libcuda.so"


@pytest.mark.parametrize(
    ("peaks", "drivers", "free", "why"),
    [
        ([1, 1], ["", ""], 4, ""),
        ([1, 2], ["", ""], 5.9, "two take 3.0 GiB, of 5.9 GiB that are free"),
        ([1, 1], ["", "libcuda.so"], 4, "they share the memory of an accelerator (libcuda.so)"),
        ([1, 1], ["", None], 4, "this system does not tell what they hold"),
        ([1, 1], ["", ""], None, "this system does not tell what they hold"),
    ],
)
def test_they_take_turns_where_the_machine_has_room_for_both(
    peaks: Sequence[int], drivers: Sequence[str | None], free: float | None, why: str
) -> None:
    prints = [{"peak_bytes": peak * 2**30, "driver": driver} for peak, driver in zip(peaks, drivers, strict=True)]
    assert why_not(prints, None if free is None else int(free * 2**30)) == why
