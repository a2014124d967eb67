"""Measured bytes are exact, on the CPU and on a simulated card; misuse is refused."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from meta_tests.card.api import simulated
from meta_tests.card.card import Card
from prooflops.memory import MeasuredBytes, measured_memory, predicted_memory


@settings(deadline=None)
@given(
    phases=st.lists(st.lists(st.integers(-6, 3000), max_size=6), min_size=1, max_size=5),
    is_last_marked=st.booleans(),
)
def test_a_phase_knows_what_it_allocates_frees_holds_and_peaks_at(phases, is_last_marked):
    """A positive number allocates as many bytes, any other frees a tensor; books are by hand."""
    kept = []
    books = {}
    live = highest = 0
    with measured_memory() as held:
        names = "abcde"[: len(phases)]
        for name, steps in zip(names, phases, strict=True):
            allocated = freed = 0
            peak = live
            for step in steps:
                if step > 0:
                    kept.append(torch.empty(step, dtype=torch.int8))
                    allocated += step
                    live += step
                elif kept:
                    size = kept.pop(step % len(kept)).nbytes
                    freed += size
                    live -= size
                peak = max(peak, live)
            highest = max(highest, peak)
            books[name] = MeasuredBytes(allocated, freed, live, peak)
            if name != names[-1] or is_last_marked:
                held.mark(name)
    if not is_last_marked:
        del books[names[-1]]
    assert held.phases == books
    whole = held.allocated_bytes - held.freed_bytes, held.live_bytes, held.peak_bytes
    assert whole == (live, live, highest)
    assert held.charged_live_bytes is None
    assert held.charged_peak_bytes is None


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("memory", [measured_memory, predicted_memory])
def test_an_error_passes_through_and_the_next_block_is_right(memory, collects, request):
    request.addfinalizer(gc.enable)
    if not collects:
        gc.disable()
    collecting = []

    def act():
        with memory():
            collecting.append(gc.isenabled())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        act()
    assert collecting == [False], "the collector would free at unpredictable moments"
    assert gc.isenabled() == collects, "the collector should be as it was"
    with memory() as held:
        kept = torch.empty(25)
    assert held.live_bytes == kept.nbytes == 100


def test_a_measurement_inside_a_measurement_is_refused():
    with measured_memory() as held:
        with pytest.raises(
            RuntimeError,
            match=r"memory\('cpu'\) in a block that is measured on 'cpu': use mark",
        ):
            measured_memory("cpu").__enter__()
        kept = torch.empty(25)
    assert held.live_bytes == kept.nbytes, "the outer one should go on"


def test_fake_tensors_are_refused():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="FakeTensorMode is active"):
        measured_memory("cpu").__enter__()


def test_a_storage_from_before_the_block_does_not_count_when_freed():
    never_seen = torch.empty(25)
    with measured_memory():
        seen_by_an_earlier_session = torch.empty(50)
    with measured_memory() as held:
        del never_seen, seen_by_an_earlier_session
        kept = torch.empty(1)
    assert held.live_bytes == held.peak_bytes == kept.nbytes
    assert held.freed_bytes == 0, "nothing of this block was freed"


def test_on_cuda_requests_and_charges_are_read_between_phases():
    def allocated(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    with simulated(Card()):
        kept = [allocated(4096)]
        # This makes a higher peak before the measurement.
        allocated(100_000)
        with measured_memory("cuda") as held:
            kept.append(allocated(1000))
            allocated(600)
            held.mark("forward")
            kept.append(allocated(10))
            held.mark("backward")
            kept.append(allocated(5))
    expected = {
        "forward": MeasuredBytes(
            1600, 600, 1000, 1600, charged_live_bytes=1024, charged_peak_bytes=2048
        ),
        "backward": MeasuredBytes(
            10, 0, 1010, 1010, charged_live_bytes=1536, charged_peak_bytes=1536
        ),
    }
    assert held.phases == expected
    assert held.live_bytes == 1015
    assert held.peak_bytes == 1600
    assert held.charged_live_bytes == 2048
    assert held.charged_peak_bytes == 2048
