"""The caches of a device as the system names them, by stand-ins of its files."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from prooflops.machine import caches, cpu
from prooflops.machine.caches import Caches, caches_of, linux_caches

CPU = torch.device("cpu")


def system_files(root: Path, cores: int, sharing: Callable[[int], str], size: str = "32768K") -> Path:
    for core in range(cores):
        for index, (level, kind, shared, cache_size) in enumerate((
            ("1", "Data", str(core), "48K"),
            ("1", "Instruction", str(core), "32K"),
            ("2", "Unified", str(core), "1024K"),
            ("3", "Unified", sharing(core), size),
        )):  # fmt: skip
            folder = root / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("shared_cpu_list", shared), ("size", cache_size)):
                (folder / name).write_text(text + "\n")
    return root


def test_a_shared_cache_counts_once_and_one_of_each_group_of_cores_as_often(tmp_path: Path) -> None:
    system = system_files(tmp_path, 4, lambda core: "0-1" if core < 2 else "2-3")
    assert linux_caches(system, {0, 1, 2, 3}) == {"L1": 4 * 48 * 2**10, "L2": 4 * 2**20, "L3": 2 * 2**25}
    assert linux_caches(system, {1}) == {"L1": 48 * 2**10, "L2": 2**20, "L3": 2**25}
    assert linux_caches(tmp_path / "nowhere", {0}) == {}


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    system = system_files(tmp_path, 1, lambda core: "0", size="much")
    assert linux_caches(system, {0}) == {"L1": 48 * 2**10, "L2": 2**20}
    assert Caches().last_level_bytes is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_a_cpus_caches_are_those_of_the_cores_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "SYSTEM", system_files(tmp_path, 4, lambda core: "0-3"))
    monkeypatch.setattr(cpu, "allowed_cores", lambda: [1, 2])
    monkeypatch.setattr(cpu, "memory_bytes", lambda: 2**34)
    found = caches_of(CPU)
    assert found.levels == {"L1": 2 * 48 * 2**10, "L2": 2 * 2**20, "L3": 2**25}
    assert found.core_levels == {"L1": 48 * 2**10, "L2": 2**20, "L3": 2**25}
    assert (found.cores, found.memory_bytes, found.last_level_bytes) == (2, 2**34, 2**25)


@pytest.mark.parametrize(("size", "levels"), [(50 * 2**20, {"L2": 50 * 2**20}), (0, {})])
def test_a_gpu_has_the_cache_that_torch_names(
    monkeypatch: pytest.MonkeyPatch, size: int, levels: dict[str, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=size))
    found = caches_of(torch.device("cuda", 0))
    assert found.levels == found.core_levels == levels
    assert caches_of(torch.device("mps")).levels == {}
