"""What the suite does to collected tests."""

from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prooflops.suite.collection import use_device_clock

CPU = torch.device("cpu")


def test_the_timer_of_every_benchmark_is_the_devices_clock() -> None:
    markers: list[Any] = []
    item = SimpleNamespace(
        fixturenames=["benchmark"],
        get_closest_marker=lambda name: pytest.mark.benchmark(group="x", timer=process_time).mark,
        add_marker=lambda marker, append: markers.append(marker),
    )
    use_device_clock(item, CPU)  # type: ignore[arg-type]
    assert markers[0].kwargs["group"] == "x"
    assert markers[0].kwargs["timer"] is perf_counter, "a clock that its marker names was used"
