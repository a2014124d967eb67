"""The facts of single models against figures worked out by hand: reasons of FLOPs, modules, memory, largest size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_tests.conftest import ROOT
from meta_tests.user_models import gpt
from meta_tests.user_models.worked import BACKWARD, FORWARD, PARAMETERS, PARTS
from prooflops.model import flop_difference
from prooflops.model.flop_difference import ExplainedFlops, flops_of
from prooflops.model.step_memory import memory_of
from prooflops.model.sweep import MOST_TRIALS, largest, sweep_of
from prooflops.model.user_model import UserModel, load_user_model, validated_instance

CPU = torch.device("cpu")


def loaded(factory: str) -> UserModel:
    return load_user_model(f"meta_tests.user_models.{factory}", ROOT, CPU)


# ---- reasons of the difference from 6ND --------------------------------------------------------------------------


def explained_flops(*returned: Any) -> ExplainedFlops:
    torch.manual_seed(0)
    return flops_of(validated_instance(returned))


def parts_of(flops: ExplainedFlops) -> dict[str, tuple[int, int]]:
    assert not any(flops.unexplained(phase) for phase in ("forward", "backward", "step"))
    return {part.name: (part.forward, part.backward) for part in flops.parts}


class Wrapped(nn.Module):
    """A module with a forward pass of another one's making."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any]):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.inner, *args, **kwargs)


def under_autocast(inner: nn.Module, **inputs: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return inner(**inputs)


def checkpointed(inner: nn.Module, **inputs: Any) -> Any:
    return checkpoint(lambda _: inner(**inputs).loss, torch.zeros(1, requires_grad=True), use_reentrant=False)


def checkpointed_reentrant(inner: nn.Module, **inputs: Any) -> Any:
    return checkpoint(lambda _: inner(**inputs).loss, torch.zeros(1, requires_grad=True), use_reentrant=True)


@pytest.mark.parametrize("how", [under_autocast, checkpointed, checkpointed_reentrant])
def test_the_reasons_are_the_same_under_autocast_and_checkpointing(how: Callable[..., Any]) -> None:
    inner, inputs = gpt.factory()
    flops = explained_flops(Wrapped(inner, how), inputs)
    parts = parts_of(flops)
    recomputed = parts.pop(flop_difference.CHECKPOINTED, (0, 0))
    assert parts == PARTS["gpt"]
    assert flops.model == FORWARD["gpt"] + BACKWARD["gpt"]
    assert recomputed == (0, -flops.recomputed)
    assert set(flops.by_dtype) == ({"bf16"} if how is under_autocast else {"fp32"})
    if how is checkpointed_reentrant:  # the other kind stops at the last tensor that it needs
        assert flops.recomputed == FORWARD["gpt"]
    else:
        assert (flops.recomputed > 0) == (how is checkpointed)


def test_a_fused_attention_kernel_recomputes_its_scores() -> None:
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    model = Wrapped(attention, lambda inner, x: inner(x, x, x, need_weights=False)[0])
    flops = explained_flops(model, torch.randn(2, 16, 32))
    products = 2 * 2 * 2 * 16 * 16 * 32  # of queries and keys, and of probabilities and values
    parts = parts_of(flops)
    assert parts[flop_difference.ACTIVATIONS] == (-products, -2 * products)
    assert parts[flop_difference.FUSED_RECOMPUTED] == (0, -products // 2)
    assert flops.recomputed == products // 2


# ---- modules, inference ------------------------------------------------------------------------------------------


# ---- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory", ["gpt:in_bf16", "own:checkpointed", "own:with_class_token", "own:bag", "own:converted"]
)
def test_conversions_vision_models_and_checkpointing_are_predicted(factory: str) -> None:
    memory = memory_of(loaded(factory))
    for name in ("held for the backward pass", "peak of a step"):
        row = memory.row(name)
        assert row.predicted_bytes == pytest.approx(row.measured_bytes, rel=0.01), f"{row} {memory.remarks}"
    for name in ("gradients", "optimizer state"):
        assert memory.row(name).predicted_bytes == memory.row(name).measured_bytes
    if factory == "gpt:in_bf16":
        assert memory.row("gradients").measured_bytes == 2 * PARAMETERS["gpt"]


# ---- the largest size that fits ----------------------------------------------------------------------------------

LIMIT = 10**6


@pytest.mark.parametrize("growth", [2, 64])
@pytest.mark.parametrize(
    "peak",
    [lambda n: 700 + 31 * n, lambda n: 10 * n * n + 5, lambda n: max(900_000, 100 * n), lambda n: 31 * (n // 8) * 8],
)
def test_the_largest_size_is_found_without_a_step_far_beyond_the_limit(peak: Callable[[int], int], growth: int) -> None:
    asked: list[int] = []

    def asking(size: int) -> int:
        asked.append(size)
        return peak(size)

    found, beyond = largest(asking, 4, LIMIT, growth)
    assert found
    assert beyond
    assert peak(found) <= LIMIT < peak(beyond)
    assert beyond - found <= max(1, 0.01 * found)
    assert len(asked) <= MOST_TRIALS
    assert growth > 2 or max(map(peak, asked)) <= 4 * LIMIT


def test_the_found_batch_is_the_predicted_one() -> None:
    found = sweep_of(loaded("own:sized"), "batch", 2**20)
    assert found.found
    assert found.predicted == pytest.approx(found.found, rel=0.02)
    assert (found.limit_bytes, found.limit_of, found.unit) == (2**20, "--model-memory", "examples")
    assert found.trials[0].size == 8
    assert all((trial.seconds is not None) == (trial.size <= found.found) for trial in found.trials)
