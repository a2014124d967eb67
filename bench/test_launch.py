"""Launch overhead: the time of an operator that has nothing to do but to be launched."""

from __future__ import annotations

import torch


def test_launch(device, measure, delivery):
    x = torch.rand(1, device=device)
    out = torch.empty_like(x)

    def launch() -> torch.Tensor:
        return torch.add(x, x, out=out)

    seconds = measure.median_s(launch, operators=1, dtype="fp32")
    delivery.check("launch", 0, "s", launch, seconds=seconds)
