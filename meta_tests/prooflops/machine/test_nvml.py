"""NVML is started once, and a machine without it is no error; by a stand-in for pynvml."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.machine import nvml


class NVMLError(Exception):
    """What the drivers of these tests raise."""


def two_gpus(*, starts: bool = True, refuses: tuple[int, ...] = ()) -> Any:
    """A stand-in for pynvml with two GPUs, some of which the driver refuses to name, and how often it was started."""
    started: list[int] = []

    def start() -> None:
        started.append(1)
        if not starts:
            raise NVMLError("Driver Not Loaded")

    def answer(known: bool, text: str) -> str:
        if not known:
            raise NVMLError("Not Found, or No Permission")
        return text

    return SimpleNamespace(
        started=started, NVMLError=NVMLError, nvmlInit=start,
        nvmlSystemGetDriverVersion=lambda: "570.86.15",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: answer(uuid in ("GPU-7f", "MIG-51"), uuid),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: answer(handle == "MIG-51", "GPU-7f"),
        nvmlDeviceGetName=lambda handle: answer(handle not in refuses, f"NVIDIA H100 {handle}"),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def not_yet_started() -> Iterator[None]:
    nvml.library.cache_clear()
    yield
    nvml.library.cache_clear()


def test_nvml_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = two_gpus()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert nvml.driver_version() == "570.86.15"
    assert nvml.gpu_names() == ["NVIDIA H100 0", "NVIDIA H100 1"]
    assert nvml.handle("7f") == "GPU-7f"
    assert len(driver.started) == 1


def test_a_slice_has_a_handle_of_its_own_and_the_clocks_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", two_gpus())
    assert nvml.handle("51") == "MIG-51", "torch gives the UUID without its prefix"
    assert nvml.card_of("MIG-51") == nvml.card_of("GPU-7f") == "GPU-7f"


def test_what_the_driver_refuses_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", two_gpus(refuses=(1,)))
    assert nvml.gpu_names() == []
    assert nvml.handle("another") is None
    assert nvml.ask(lambda library: library.nvmlOfANewerVersion()) is None


@pytest.mark.parametrize("driver", [None, two_gpus(starts=False), object()], ids=["absent", "no driver", "another"])
def test_without_nvml_nothing_is_known_and_nothing_raised(monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    assert nvml.library() is None
    assert (nvml.driver_version(), nvml.gpu_names(), nvml.handle("7f")) == (None, [], None)
