"""A block in phases: what each marked phase and the whole block held, against an allocator kept by hand."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.measured.phases import Phases, highest


class Segment(NamedTuple):
    allocated_bytes: int
    freed_bytes: int
    live_bytes: int
    peak_bytes: int


class Block(Phases[Segment]):
    """Marks phases like the instruments, and ends with the segments that are given."""

    def mark(self, name: str) -> None:
        self._check_new(name)
        self._names.append(name)

    def end(self, segments: list[Segment]) -> None:
        self._segments = segments


@given(phases=st.lists(st.lists(st.integers(-50, 50), max_size=6), min_size=1, max_size=5), unmarked=st.booleans())
def test_a_block_sums_its_phases_ends_as_the_last_and_peaks_as_the_highest(phases, unmarked):
    block, segments, levels = Block("measured"), [], [0]
    for number, changes in enumerate(phases):
        first = len(levels) - 1
        levels += [levels[-1] + change for change in changes]
        allocated, freed = (sum(max(sign * change, 0) for change in changes) for sign in (1, -1))
        segments.append(Segment(allocated, freed, levels[-1], max(levels[first:])))
        if not (unmarked and number == len(phases) - 1):
            block.mark(f"phase {number}")
    block.end(segments)
    changes = [change for phase in phases for change in phase]
    got = (block.allocated_bytes - block.freed_bytes, block.live_bytes, block.peak_bytes)
    assert got == (sum(changes), levels[-1], max(levels)), f"{got} [{phases}]"
    assert block.allocated_bytes == sum(change for change in changes if change > 0), f"{phases}"
    marked = {f"phase {number}": segment for number, segment in enumerate(segments[: len(phases) - unmarked])}
    assert block.phases == marked, f"{block.phases}, but should be {marked}"


@pytest.mark.parametrize("figure", ["phases", "allocated_bytes", "freed_bytes", "live_bytes", "peak_bytes"])
def test_no_figure_is_known_before_the_end(figure):
    with pytest.raises(RuntimeError, match="bytes are known only after the predicted block has ended"):
        getattr(Block("predicted"), figure)


def test_a_phase_is_marked_once_and_before_the_end():
    block = Block("measured")
    block.mark("forward")
    with pytest.raises(ValueError, match="name must be new, got 'forward'; marked already: forward"):
        block.mark("forward")
    block.end([Segment(0, 0, 0, 0)])
    with pytest.raises(RuntimeError, match=r"mark\('backward'\) came after the measured block had ended"):
        block.mark("backward")


def test_the_highest_peak_is_known_where_all_are():
    assert highest([1, 3, 2]) == 3
    assert highest(iter([1, None, 2])) is None
