"""Fixtures of claims and benchmarks: the device and its limits, figures, speed, progress."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from accounting.devices import bandwidth_bytes_per_s
from prooflops.machine import device as machine
from prooflops.machine import health
from prooflops.machine.caches import Caches, caches_of
from prooflops.machine.conditions import conditions as device_conditions
from prooflops.suite.floors import Floors, committed_floors
from prooflops.suite.peaks import Peaks
from prooflops.suite.ranks import RankPlugin
from prooflops.suite.run import EVIDENCE, RUN
from prooflops.suite.sizing import Sizing
from prooflops.suite.speed import Speed
from prooflops_gate.console.progress import Progress
from prooflops_gate.run_state import WATCH


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """The device under test.

    It is made current, because graphs and pinned tensors use the current device.
    """
    device = pytestconfig.stash[RUN].device
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


@pytest.fixture(scope="session")
def job(pytestconfig: pytest.Config) -> RankPlugin | None:
    """This rank of a job, see `prooflops.suite.ranks`; None outside a job."""
    return pytestconfig.pluginmanager.get_plugin("prooflops.suite.ranks")


@pytest.fixture(scope="session")
def pace(pytestconfig: pytest.Config) -> str:
    """The run's pace: "quick", "default" or "thorough"."""
    return pytestconfig.stash[RUN].pace


@pytest.fixture(scope="session")
def isa(device: torch.device) -> list[str]:
    """The device features that decide its rates, as the header prints them."""
    return machine.isa(device)


@pytest.fixture(scope="session")
def caches(device: torch.device) -> Caches:
    """The device's data caches and the host's memory, see `prooflops.machine.caches`."""
    return caches_of(device)


@pytest.fixture(scope="session")
def sizing(device: torch.device) -> Sizing:
    """Sizes that fit the free memory of the device under test, see `prooflops.suite.sizing`."""
    return Sizing(device)


@pytest.fixture(scope="session")
def peak_flop_per_s(
    device: torch.device, pytestconfig: pytest.Config
) -> Callable[[str], float | None]:
    """The dense peak per dtype, by `--peak` or the vendor; None without either."""
    return Peaks(device, pytestconfig.stash[RUN].peaks.stated).flop_per_s


@pytest.fixture(scope="session")
def floors(device: torch.device, pytestconfig: pytest.Config) -> Floors:
    """The least that this device must deliver, see `prooflops.suite.floors`."""
    run = pytestconfig.stash[RUN]
    reference = run.reference_floors
    if reference is None:
        reference = committed_floors(pytestconfig.rootpath / "results", device)
    return Floors(device, run.peaks, run.stated_floors, reference)


@pytest.fixture(scope="session")
def causes(device: torch.device) -> Callable[[dict[str, Any], str], list[str]]:
    """The causes of a low figure that this machine shows, see `prooflops.machine.health`."""
    return functools.partial(health.causes, device)


@pytest.fixture(scope="session")
def bound_flop_per_s(device: torch.device) -> Callable[[str], float | None]:
    """Upper bound of measured arithmetic rates per dtype; None if unknown."""
    return functools.partial(machine.bound_flop_per_s, device)


@pytest.fixture(scope="session")
def at_clock(device: torch.device) -> Callable[[str, float], float | None]:
    """FLOP/s of all units of the device by dtype and clock in Hz; None if unknown."""
    return functools.partial(machine.flop_per_s_at_clock, device)


@pytest.fixture(scope="session")
def bound_bytes_per_s(device: torch.device) -> float | None:
    """The bandwidth on record, an upper bound of memory streams; None if unknown."""
    return bandwidth_bytes_per_s(machine.accelerator(device))


@pytest.fixture
def record_figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Records a measured figure with the claim: `record_figure("1.62x slower")`."""
    evidence = request.node.stash[EVIDENCE]
    return lambda text: evidence.figures.append(text)


@pytest.fixture
def speed(device: torch.device, record_figure: Callable[[str], None]) -> Speed:
    """Compares the times of two functions, see `prooflops.suite.speed`."""
    return Speed(device, record_figure)


@pytest.fixture(scope="session")
def conditions(
    device: torch.device, pytestconfig: pytest.Config
) -> Callable[[], AbstractContextManager[dict[str, Any]]]:
    """`with conditions() as record:` the device's state, see `prooflops.machine.conditions`."""
    return lambda: device_conditions(device, pytestconfig.stash.get(WATCH, None))


@pytest.fixture(scope="session")
def progress_of(pytestconfig: pytest.Config) -> Callable[[str], Progress]:
    """Shows the progress of named work on the terminal, see `prooflops_gate.console.progress`."""
    return functools.partial(Progress, pytestconfig)


@pytest.fixture
def progress(request: pytest.FixtureRequest, progress_of: Callable[[str], Progress]) -> Progress:
    """Shows a long test's progress on the terminal."""
    return progress_of(request.node.name)
