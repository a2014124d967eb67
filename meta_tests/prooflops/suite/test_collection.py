"""What the suite does to collected tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def test_the_timer_of_every_benchmark_is_the_devices_clock() -> None:
    from prooflops.suite.collection import use_device_clock

    markers: list[Any] = []
    item = SimpleNamespace(
        fixturenames=["benchmark"],
        get_closest_marker=lambda name: pytest.mark.benchmark(group="x").mark,
        add_marker=lambda marker, append: markers.append(marker),
    )
    use_device_clock(item, CPU)  # type: ignore[arg-type]
    assert markers[0].kwargs["group"] == "x"
    assert callable(markers[0].kwargs["timer"])
