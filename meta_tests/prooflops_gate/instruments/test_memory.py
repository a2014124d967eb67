"""Memory rides on the processes that time, and asks for no more of them than decide."""

from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Measured
from prooflops_gate.instruments.memory import PROCESSES_PER_SIDE, Memory


def measured(**held):
    """A pair of processes in which calls held so many bytes, before and after."""
    pair = None
    pairs = {
        name: (
            Timed(1.0, {}, resources={"memory": before}),
            Timed(1.0, {}, resources={"memory": after}),
        )
        for name, (before, after) in held.items()
    }
    return Measured(pair, pairs)


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
