"""Memory that a benchmark frees is there for its next call, and the system's again after its last."""

from __future__ import annotations

import ctypes
import mmap
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bench.conftest
from bench.freed_memory import kept
from meta_tests.bench.stand_ins import CPU, Rounds

LONG = 64 * 2**20  # bytes, beyond any block that glibc keeps by default
FEW = 16  # pages, of whatever else this process does meanwhile

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")


def new_pages(call: Callable[[], object]) -> int:
    """How many pages are new to this process during a call; of 2 MiB each, where the system makes them so."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def work() -> None:
    torch.ones(LONG, dtype=torch.uint8)


@glibc
def test_only_the_first_call_gets_new_pages() -> None:
    work()
    assert new_pages(work) > FEW, "if a freed block is kept anyway, nothing is shown here"
    with kept() as done:
        assert done
        work()
        assert (seen := [new_pages(work) for _ in range(3)]) and max(seen) < FEW, f"{seen} new pages"
    work()
    assert new_pages(work) > FEW, "afterwards it is as before"


@glibc
def test_what_was_kept_goes_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE

    with kept():
        work()
        before = resident()
        work()
        assert abs(resident() - before) < LONG / 8, "it was kept"
    assert (back := before - resident()) > LONG / 2, f"{back} of {LONG} bytes went back"


@glibc
def test_a_benchmark_keeps_what_it_frees() -> None:
    fixture = bench.conftest.measure.__wrapped__(
        SimpleNamespace(node=None), None, Rounds(), CPU, "quick", None, None, None, None, None
    )
    next(fixture)
    work()
    assert new_pages(work) < FEW
    next(fixture, None)
    work()
    assert new_pages(work) > FEW


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    with kept() as done:
        assert not done
