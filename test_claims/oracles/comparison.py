"""Where two tensors differ, for the messages of claims that say they are equal."""

from __future__ import annotations

import torch


def difference(got: torch.Tensor, should: torch.Tensor) -> str:
    """A sentence about the first difference of two tensors; empty where shape and every value are equal."""
    if got.shape != should.shape:
        return f"shape={tuple(got.shape)}, but should be {tuple(should.shape)}"
    wrong = (got.cpu() != should.cpu()).nonzero().tolist()
    if not wrong:
        return ""
    at = tuple(wrong[0])
    return (
        f"{len(wrong)} of {got.numel()} values differ, the first, at {at}, is {got[at]:g}, but should be {should[at]:g}"
    )
