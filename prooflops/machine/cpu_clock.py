"""The clock at which a core runs now, and its 512-bit units, from a few bytes of machine code.

In a virtual machine the system reports no clock, or the nominal one. In a chain of dependent
additions each takes one cycle on every pipelined core. Their number over their time is the clock.
Both summands are registers, because some cores add small constants for free while they rename
registers. Measured right after products, it is the clock under their load: AVX-512 and AMX lower it
for most of a millisecond.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

UNROLLED = 64
# Some 5 and 50 µs: their difference holds no call. The fastest of a few was not interrupted.
FEW_TURNS, MANY_TURNS = 300, 3000
TRIALS = 5
FMA_REGISTERS = 12

# Held, because the processor runs them: the pages of machine code.
_pages: list[Any] = []


class NoClock(OSError):
    """The clock of a core cannot be measured here; the message is the reason."""


def clock_hz() -> float:
    """The clock of the core that this thread runs on, within 1 %. Raises NoClock.

    >>> clock_hz() > 1e8
    True
    """
    return UNROLLED * _turns_per_s(_chain())


@cache
def fma_units_512() -> int:
    """The 512-bit fused multiply-adds that a core with AVX-512 begins in a cycle: 1 or 2.

    CPUID does not tell: Zen 4 and client Xeons have one, or two of 256 bits that work as one.
    Raises NoClock.
    """
    if platform.machine() != "x86_64":
        raise NoClock(f"{platform.machine()} has no AVX-512")
    per_s = FMA_REGISTERS * _turns_per_s(function_of(_fma_code()))
    return max(1, min(2, round(per_s / clock_hz())))


def _turns_per_s(code: Callable[[int, int], int]) -> float:
    """Turns of a loop of machine code in a second, by the difference of many and few of them."""
    fastest = dict.fromkeys((FEW_TURNS, MANY_TURNS), float("inf"))
    for _ in range(TRIALS):
        for turns in fastest:
            began = perf_counter()
            code(turns, 1)
            fastest[turns] = min(fastest[turns], perf_counter() - began)
    return (MANY_TURNS - FEW_TURNS) / max(fastest[MANY_TURNS] - fastest[FEW_TURNS], 1e-9)


@cache
def _chain() -> Callable[[int, int], int]:
    """long chain(long turns, long summand): 64 dependent additions a turn."""
    machine = platform.machine()
    if machine == "x86_64":
        return function_of(_x86_loop("4801f0" * UNROLLED))
    if machine in ("aarch64", "arm64"):
        return function_of(_arm_loop("0000018b" * UNROLLED))
    raise NoClock(f"the clock of {machine} cores cannot be measured yet")


def _x86_loop(body: str) -> bytes:
    """xor eax, eax; turn: body (add rax, rsi); dec rdi; jnz turn; ret."""
    turn = bytes.fromhex(body + "48ffcf")
    jump = bytes.fromhex("0f85") + (-len(turn) - 6).to_bytes(4, "little", signed=True)
    return bytes.fromhex("31c0") + turn + jump + bytes.fromhex("c3")


def _arm_loop(body: str) -> bytes:
    """mov x2, x0; turn: body (add x0, x0, x1); subs x2, x2, #1; b.ne turn; ret. Unrun."""
    turn = bytes.fromhex(body + "420400f1")
    back = -(len(turn) // 4) & 0x7FFFF
    jump = (0x54000001 | back << 5).to_bytes(4, "little")
    return bytes.fromhex("e20300aa") + turn + jump + bytes.fromhex("c0035fd6")


def _fma_code() -> bytes:
    """A turn of independent vfmadd231ps on zmm0 to zmm11, each with zmm14 and zmm15, all zero."""
    clear, turn = "", ""
    for register in (*range(FMA_REGISTERS), 14, 15):
        # vpxord zmm, zmm, zmm
        high = register >= 8
        prefix, inverted = (0x51, 0xF1)[not high], (~register & 15) << 3
        fields = (0x62, prefix, inverted | 0x05, 0x48, 0xEF, 0xC0 | (register & 7) * 9)
        clear += bytes(fields).hex()
    for register in range(FMA_REGISTERS):
        prefix = 0x52 if register >= 8 else 0xD2
        turn += bytes((0x62, prefix, 0x0D, 0x48, 0xB8, 0xC7 | (register & 7) << 3)).hex()
    loop = _x86_loop(turn)
    vzeroupper = bytes.fromhex("c5f877")
    return bytes.fromhex(clear) + loop[:-1] + vzeroupper + loop[-1:]


def function_of(code: bytes) -> Callable[[int, int], int]:
    """The function of these bytes, in a page that may be executed. Raises NoClock if none may."""
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=protection)
    except (OSError, AttributeError) as error:
        raise NoClock(f"executable memory is refused: {error}") from error
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if platform.machine() != "x86_64":
        # Arm's cores fetch instructions around the data cache.
        ctypes.CDLL("libgcc_s.so.1").__clear_cache(
            ctypes.c_void_p(address), ctypes.c_void_p(address + len(code))
        )
    _pages.append(page)
    # Keeps Python's lock: another thread would take the time between return and reading.
    return ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)(address)
