"""The counter of instructions on made-up system calls, and on this machine's own."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from prooflops.machine import instructions
from prooflops.machine.instructions import EMPTY_CALLS, call_counted, is_permitted


def counts(monkeypatch: pytest.MonkeyPatch, *read: Sequence[int]) -> list[tuple[object, ...]]:
    """A kernel whose counter reads so: (instructions, time enabled, time running). Returns the calls of it."""
    asked: list[tuple[object, ...]] = []
    source, sink = os.pipe()
    os.write(sink, b"".join(struct.pack("=QQQ", *each) for each in read))
    os.close(sink)

    def system_call(*arguments: object) -> int:
        asked.append(arguments)
        return source

    monkeypatch.setattr(instructions, "_system_call", system_call)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return asked


def descriptors() -> list[Path]:
    return [*Path("/dev/fd").iterdir()]


# Empty calls of 250 instructions, of which one was disturbed, then one of 1250.
EMPTY = [value for number in range(EMPTY_CALLS) for value in (1000 * number, 1000 * number + 250 + 99 * (number == 2))]


def test_a_call_retires_what_was_counted_less_what_an_empty_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counts(monkeypatch, *((value, 5, 5) for value in [*EMPTY, 10_000, 11_250]))
    assert call_counted(sorted, [2, 1], reverse=False) == ([1, 2], 1000)
    ((number, attributes, *rest),) = asked
    assert (number, rest) == (298, [0, -1, -1, 8]), "perf_event_open of this thread, on any CPU, closed on exec"
    kind, size, event = struct.unpack_from("=IIQ", attributes)  # type: ignore[call-overload]
    assert (kind, size, event, len(attributes)) == (0, 64, 1, 64)  # type: ignore[arg-type]
    (flags,) = struct.unpack_from("=Q", attributes, 40)  # type: ignore[call-overload]
    assert flags == 0b1100010, "inherited by children, without kernel and hypervisor"


def test_there_is_no_figure_where_the_counter_was_shared_or_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    counts(monkeypatch, *((value, 5, 5) for value in EMPTY), (10_000, 9, 9), (11_250, 20, 15))
    assert call_counted(len, "ab") == (2, None)
    counts(monkeypatch, *((value, 5, 5) for value in EMPTY))
    assert call_counted(len, "ab") == (2, None)


@pytest.mark.parametrize("machine", ["x86_64", "abacus"])
def test_a_call_is_made_once_where_counting_is_not_permitted(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts(monkeypatch)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(instructions, "_system_call", lambda *_: -1)
    calls: list[int] = []
    assert call_counted(calls.append, 1) == (None, None)
    assert (calls, is_permitted()) == ([1], False)


def test_an_error_of_the_function_is_its_own_and_closes_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    counts(monkeypatch, *((value, 5, 5) for value in [*EMPTY, 10_000]))
    before = len(descriptors())
    with pytest.raises(ZeroDivisionError):
        call_counted(divmod, 1, 0)
    assert len(descriptors()) == before - 1


def test_this_machine_counts_more_for_more_work_where_it_permits_counting() -> None:
    if not is_permitted():
        pytest.skip("this system doesn't permit perf_event_open, or has no counter of instructions")
    few, many = (call_counted(sum, range(count))[1] for count in (10_000, 20_000))
    assert few is not None
    assert many is not None
    assert 1.9 < many / few < 2.1
