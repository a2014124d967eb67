"""What the operating system tells of the host, by stand-ins of its files."""

import os
from pathlib import Path

import pytest

from prooflops.machine import cpu

CPUINFO = """processor\t: 0
model name\t: A CPU with 3: or so cores
flags\t\t: fpu fma avx2
processor\t: 1
model name\t: Another
"""


def test_the_name_of_the_cpu_is_the_first_that_the_system_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    monkeypatch.setattr(cpu, "CPUINFO", file)
    assert cpu.name() == "A CPU with 3: or so cores"
    assert cpu.info("flags").split() == ["fpu", "fma", "avx2"]
    assert cpu.info("flag") == ""


def test_without_proc_the_name_is_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "absent")
    monkeypatch.setattr(cpu.platform, "processor", lambda: "")
    monkeypatch.setattr(cpu.platform, "machine", lambda: "arm64")
    assert (cpu.name(), cpu.info("flags")) == ("arm64", "")


def test_the_cores_are_those_of_the_affinity_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 2}, raising=False)
    assert cpu.allowed_cores() == [2, 5]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cpu.allowed_cores() == [0, 1, 2]


def test_the_memory_is_pages_times_their_size_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__, raising=False)
    assert cpu.memory_bytes() == 4_096_000

    def unknown(name: str) -> int:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert cpu.memory_bytes() is None


def test_a_file_that_is_not_text_is_read_and_an_absent_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(b" \xff 7\n")
    assert cpu.text(tmp_path / "name") == "\N{REPLACEMENT CHARACTER} 7"
    assert cpu.text(tmp_path / "absent") == ""
