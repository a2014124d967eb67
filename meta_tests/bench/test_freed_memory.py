"""Memory that a benchmark frees is there for its next call, and the system's again after its last."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bench.conftest
from bench.freed_memory import kept, new_pages
from meta_tests.bench.stand_ins import CPU, Rounds

ROOT = Path(__file__).parents[2]
LONG = 64 * 2**20  # bytes, beyond any block that glibc keeps by default
FEW = 16  # pages, of whatever else this process does meanwhile

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")


def pages_of(call: Callable[[], object]) -> int:
    before = new_pages()
    call()
    return new_pages() - before


def work() -> None:
    torch.ones(LONG, dtype=torch.uint8)


def calls_with_new_pages() -> int:
    """Of 20. With a heap in use as here, the first few find no room of their size, see `bench.brief`."""
    return sum(pages_of(work) > FEW for _ in range(20))


IN_A_NEW_PROCESS = """
import ctypes
from bench.freed_memory import kept, new_pages
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def pages():
    before, block = new_pages(), ctypes.c_void_p(libc.malloc(2**26))
    libc.memset(block, 1, 2**26)
    libc.free(block)
    return new_pages() - before
print(pages(), pages())
with kept() as done:
    pages()
    print(done, pages(), pages())
print(pages(), pages())
"""


@glibc
def test_within_it_and_only_there_a_freed_block_is_used_again() -> None:
    ran = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], cwd=ROOT, capture_output=True, text=True, check=True)
    before, within, after = map(str.split, ran.stdout.splitlines())
    assert min(map(int, [*before, *after])) > FEW, "glibc gives it back by default, and afterwards"
    assert within[0] == "True"
    assert max(map(int, within[1:])) < FEW


@glibc
def test_what_was_kept_goes_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE

    with kept():
        calls_with_new_pages()
        held = resident()
    assert (back := held - resident()) > LONG / 2, f"{back} of {LONG} bytes went back"


@glibc
def test_a_benchmark_keeps_what_it_frees() -> None:
    fixture = bench.conftest.measure.__wrapped__(
        SimpleNamespace(node=None), None, Rounds(), CPU, "quick", None, None, None, None, None
    )
    next(fixture)
    assert calls_with_new_pages() < 10
    assert next(fixture, None) is None


def test_the_limits_are_those_of_glibc_again_before_all_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, ...]] = []
    libc = SimpleNamespace(mallopt=lambda *limit: told.append(limit) or 1, malloc_trim=lambda pad: told.append((pad,)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    with kept():
        assert told == [(-4, 0), (-1, -1)]
    assert told[2:] == [(-4, 65536), (-1, 131072), (0,)], "M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h, then trimmed"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    with kept() as done:
        assert not done
