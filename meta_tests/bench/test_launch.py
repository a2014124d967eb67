"""What launching costs, beside the time of the kernels."""

from __future__ import annotations

from time import sleep

import pytest
import torch

from accounting import measured
from accounting.roofline import Work, matmul_work
from bench import launch
from bench.work import LAUNCH_SHARE
from meta_tests.bench.stand_ins import measure


def test_an_operator_on_one_element_is_launch_bound_and_a_large_product_is_not() -> None:
    """Three tries: what launching costs and what the operator takes are two measurements, and a machine may be busy."""
    tiny, (a, b) = torch.randn(64), (torch.randn(512, 512), torch.randn(512, 512))
    out = torch.empty_like(tiny)  # allocating a result takes as long again, and is no launching
    shares = []
    for _ in range(3):
        launch._empty_operator_s.cache_clear()  # of the same moment as what is compared with it
        run = measure()
        run.work(lambda: torch.add(tiny, tiny, out=out), Work(64, 3 * 256))
        shares.append(run.info["launch_share"])
        if run.info.get("bound") == "launch":
            break
    assert run.info.get("bound") == "launch", f"{shares} of the time is launching"
    run = measure()
    run.work(lambda: a @ b, matmul_work(512, 512, 512, "fp32"), dtype="fp32")
    assert run.info["launch_share"] < 0.1, f"{run.info['launch_share']:.2f} of a large product is launching"
    assert "bound" not in run.info


@pytest.mark.parametrize(("device_s", "replayed"), [(1e-9, True), (1.0, False)])
def test_on_cuda_a_graph_is_replayed_where_launching_takes_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch, device_s: float, replayed: bool
) -> None:
    monkeypatch.setattr(measured, "synchronise", lambda device: None)
    monkeypatch.setattr(launch, "replay", lambda function, device: {"graph_s": 1e-6})
    found = launch.figures(lambda: sleep(1e-5), device_s, None, torch.device("cuda"))
    assert ("graph_s" in found) == replayed, f"{found}"
    assert found["enqueue_s"] >= 1e-5
    assert (found["launch_share"] >= LAUNCH_SHARE) == replayed


def test_a_function_that_no_graph_can_capture_is_recorded_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(device: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    left: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream before")
    monkeypatch.setattr(torch.cuda, "set_stream", left.append)
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    found = launch.replay(lambda: None, torch.device("cuda"))
    assert left == ["the stream before"], "a failed capture leaves its own stream the current one"
    assert found == {"graph_s": None, "graph_failed": "operation not permitted when stream is capturing"}
