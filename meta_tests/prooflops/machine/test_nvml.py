"""NVML is started once, and a machine without it is no error; by a stand-in for pynvml."""

import sys
from collections.abc import Iterator

import pytest

from prooflops.machine import nvml


class FakePynvml:
    """Two GPUs, of which the driver refuses to name one where `refuses` is set."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, starts: bool = True, refuses: bool = False) -> None:
        self.started, self._starts, self._refuses = 0, starts, refuses

    def nvmlInit(self) -> None:  # noqa: N802
        self.started += 1
        if not self._starts:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.86.15"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-7f":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        if handle == 1 and self._refuses:
            raise self.NVMLError("No Permission")
        return f"NVIDIA H100 {handle}"


@pytest.fixture(autouse=True)
def not_yet_started() -> Iterator[None]:
    nvml.library.cache_clear()
    yield
    nvml.library.cache_clear()


def test_nvml_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakePynvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    assert nvml.driver_version() == "570.86.15"
    assert nvml.gpu_names() == ["NVIDIA H100 0", "NVIDIA H100 1"]
    assert nvml.handle("7f") == "GPU-7f"
    assert driver.started == 1


def test_what_the_driver_refuses_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(refuses=True))  # type: ignore[arg-type]
    assert nvml.gpu_names() == []
    assert nvml.handle("another") is None
    assert nvml.ask(lambda library: library.nvmlOfANewerVersion()) is None


@pytest.mark.parametrize("driver", [None, FakePynvml(starts=False), object()], ids=["absent", "no driver", "another"])
def test_without_nvml_nothing_is_known_and_nothing_raised(monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    assert nvml.library() is None
    assert (nvml.driver_version(), nvml.gpu_names(), nvml.handle("7f")) == (None, [], None)
