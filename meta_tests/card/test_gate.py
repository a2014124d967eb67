"""What a process of the gate measures on the simulated card."""

import pytest
import torch

from meta_tests.card.api import simulated
from meta_tests.card.card import Card
from meta_tests.prooflops_gate.test_child import Children, outcomes
from prooflops_gate.child.calls import call_traced
from prooflops_gate.instruments import measured_in
from prooflops_gate.instruments.time_rule import TimeRule, plan_for
from prooflops_gate.instruments.times import Times
from prooflops_gate.task import Pair


def test_the_peak_of_a_cards_memory_is_above_what_is_held():
    figures = {}
    with simulated(Card(memory_bytes=2**28)):
        cycle = [torch.empty(2**24, device="cuda")]
        cycle.append(cycle)
        del cycle
        call_traced(figures, lambda: torch.empty(2**18, device="cuda"))
    assert figures["CUDA memory"] == 2**20


ON_A_CARD = """
import time
import pytest
import torch
from meta_tests.card.api import simulated
from meta_tests.card.card import Card

@pytest.mark.parametrize("waits", [True, False])
def test_product(benchmark, waits):
    with simulated(Card(memory_bytes=2**30)):
        x = torch.ones(1024, 1024, device="cuda")

        def product():
            x @ x
            if waits:
                torch.cuda.synchronize()

        benchmark.pedantic(product, rounds=2)

CARD = Card()

def falls():
    CARD.rates.clock *= 0.8
    # The clock is read again after so long.
    time.sleep(0.003)

def kernel():
    CARD.launch(1e-3)
    torch.cuda.synchronize()

@pytest.mark.benchmark(timer=CARD.now)
def test_kernel(benchmark):
    with simulated(CARD):
        benchmark.pedantic(kernel, setup=falls, rounds=4)
"""


@pytest.mark.prove
def test_launches_alone_are_named_and_cycles_do_not_depend_on_the_clock(tmp_path, monkeypatch):
    children = Children(tmp_path, monkeypatch)
    children.write(ON_A_CARD)
    with children.processes(120.0) as processes:
        done = children.run(processes, memory=())
    assert set(outcomes(done)) == {"passed"}, [report["longrepr"] for report in done.reports]
    measured = measured_in(Pair(done, done), ())
    times = Times(measured.pairs, TimeRule(plan_for(2)), ends=0.0)
    times.measure(measured, 0.0)
    said = [note.partition(": ")[0] for note in times.decide().notes]
    assert said[0] == "test_it.py::test_product[False]"
    timed, _ = measured.pairs["test_it.py::test_kernel"]
    lowest_hz, highest_hz = timed.clocks_hz
    assert lowest_hz / highest_hz == pytest.approx(0.8**3, rel=1e-2)
    assert timed.cycles / timed.time_s == pytest.approx(highest_hz, rel=1e-2)
