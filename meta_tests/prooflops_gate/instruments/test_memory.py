"""Memory rides on the processes that time, and asks for no more of them than decide."""

import pytest

from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Measured
from prooflops_gate.instruments.memory import PROCESSES_PER_SIDE, Memory, memory_rows


def timed(*held):
    return [Timed(1.0, {}, resources={"memory": each}) for each in held]


def measured(**held):
    """A pair of processes in which calls held so many bytes, before and after."""
    return Measured(None, {name: timed(*sides) for name, sides in held.items()})


def test_what_may_have_changed_is_measured_in_the_processes_that_decide():
    memory = Memory(min_effect=0.05)
    assert memory.wanted is None, "the first pair measures all"
    for number in range(PROCESSES_PER_SIDE):
        memory.measure(measured(same=(90_000, 90_000), more=(90_000, 180_000)), 0.0)
        assert memory.wanted == (("more",) if number + 1 < PROCESSES_PER_SIDE else ()), number
    (row,) = memory.decide().rows
    assert (row.name, row.verdict) == ("more", "MORE MEMORY")


def test_one_pair_that_agrees_ends_the_measuring():
    memory = Memory(min_effect=0.05)
    memory.measure(measured(unsteady=(90_000, 180_000)), 0.0)
    memory.measure(measured(unsteady=(90_000, 90_000)), 0.0)
    assert memory.wanted == ()


def test_none_is_measured_where_it_is_off():
    assert Memory(min_effect=0.05, is_measured=False).wanted == ()


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([12_600] * 5, [25_200] * 5, "MORE MEMORY"),
        ([25_200] * 5, [12_600] * 5, "LESS MEMORY"),
        ([12_600] * 5, [12_600] * 5, None),
        # Too few processes to know that it is always so.
        ([12_600] * 4, [25_200] * 8, None),
        # 5 times as much, and less than 4 KiB more.
        ([1000] * 8, [5095] * 8, None),
        ([1000] * 8, [5096] * 8, "MORE MEMORY"),
        # 49 KB more than the most before, and less than 5 %.
        ([10_000, *[1_000_000] * 7], [1_049_999] * 8, None),
        # Both sides have had 24,000.
        ([*[10_000] * 4, 24_000], [24_000, *[90_000] * 4], None),
    ],
)
def test_memory_is_reported_where_every_process_of_a_side_held_more(before, after, verdict):
    found = memory_rows({"a": (timed(*before), timed(*after))}, 0.05)
    assert [row.verdict for row in found] == ([verdict] if verdict else [])
