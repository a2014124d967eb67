"""The explanation of 6ND's difference: the same reasons however the code is run, and a wrong one is noticed."""

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from meta_tests.prooflops.model.model_house import Examined, each_model
from meta_tests.user_models import gpt, own
from meta_tests.user_models.worked import BACKWARD, FORWARD, PARTS
from prooflops.model import flop_difference
from prooflops.model.flop_difference import StepFlops, flops_of
from prooflops.model.user_model import validated_instance


def explained_flops(*returned: Any) -> StepFlops:
    torch.manual_seed(0)
    return flops_of(validated_instance(returned))


def parts_of(flops: StepFlops) -> dict[str, tuple[int, int]]:
    assert not any(flops.unexplained(phase) for phase in ("forward", "backward", "step"))
    return {part.name: (part.forward, part.backward) for part in flops.parts}


class Under(torch.nn.Module):
    """A module that runs another one under autocast, or checkpointed."""

    def __init__(self, inner: torch.nn.Module, how: str):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, **inputs: Any) -> Any:
        if self.how == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(**inputs)
        reentrant = self.how == "checkpointed, reentrant"
        inputs["input_ids"].requires_grad_(False)

        def run(_: torch.Tensor) -> torch.Tensor:
            return self.inner(**inputs).loss

        return checkpoint(run, torch.zeros(1, requires_grad=True), use_reentrant=reentrant)


@pytest.mark.prove(sample=1)
@pytest.mark.parametrize("how", ["autocast", "checkpointed", "checkpointed, reentrant"])
def test_the_reasons_are_the_same_under_autocast_and_checkpointing(how: str) -> None:
    inner, inputs = gpt.factory()
    flops = explained_flops(Under(inner, how), inputs)
    parts = parts_of(flops)
    recomputed = parts.pop(flop_difference.CHECKPOINTED, (0, 0))
    assert parts == PARTS["gpt"]
    assert flops.model == FORWARD["gpt"] + BACKWARD["gpt"]
    assert flops.executed == flops.model + flops.recomputed
    assert recomputed == (0, -flops.recomputed)
    assert set(flops.by_dtype) == ({"bf16"} if how == "autocast" else {"fp32"})
    if how == "checkpointed, reentrant":  # the other kind stops at the last tensor that it needs
        assert flops.recomputed == FORWARD["gpt"]
    else:
        assert (flops.recomputed > 0) == (how == "checkpointed")


def test_a_fused_attention_kernel_recomputes_its_scores() -> None:
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)

    class Attending(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, need_weights=False)[0]

    flops = explained_flops(Attending(), torch.randn(2, 16, 32))
    products = 2 * 2 * 2 * 16 * 16 * 32  # of queries and keys, and of probabilities and values
    parts = parts_of(flops)
    assert parts[flop_difference.ACTIVATIONS] == (-products, -2 * products)
    assert parts[flop_difference.FUSED_RECOMPUTED] == (0, -products // 2)
    assert flops.recomputed == products // 2


def test_a_similarity_matrix_is_no_attention() -> None:
    parts = parts_of(explained_flops(*own.towers()))
    similarities = 2 * 8 * 8 * own.WIDTH
    assert parts[flop_difference.ACTIVATIONS] == (-similarities, -2 * similarities)
    assert not any("attention" in name for name in parts)


def test_an_lstm_obeys_2nd_but_for_its_biases() -> None:
    flops = explained_flops(torch.nn.LSTM(16, 32, num_layers=2, batch_first=True), torch.randn(4, 7, 16))
    biases = 2 * 2 * 4 * 32
    assert parts_of(flops) == {flop_difference.ELEMENTWISE: (2 * 28 * biases, 4 * 28 * biases)}


def test_an_expert_without_a_token_is_not_used() -> None:
    class Routed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.experts[0](x), self.experts[1](x[:0])])

    parts = parts_of(explained_flops(Routed(), torch.randn(4, 8, requires_grad=True)))
    assert parts == {
        flop_difference.UNUSED: (2 * 4 * 72, 4 * 4 * 72),
        flop_difference.ELEMENTWISE: (2 * 4 * 8, 4 * 4 * 8),
    }


@pytest.mark.parametrize(
    ("what", "broken"),
    [
        ("_shares", lambda self, factors, flops: iter([(index, flops) for index in factors][:1] * 2)),
        ("_factors", lambda self, tensors: ()),
        ("_factors_of_gradient", lambda self, of_node, outputs: ()),
    ],
)
def test_a_wrong_explanation_does_not_pass(monkeypatch: pytest.MonkeyPatch, what: str, broken: Any) -> None:
    monkeypatch.setattr(flop_difference._Tracer, what, broken)
    flops = explained_flops(*gpt.factory())
    parts = {part.name: (part.forward, part.backward) for part in flops.parts}
    assert parts != PARTS["gpt"]
    if what == "_shares":
        assert flops.unexplained("step") != 0


@each_model
def test_each_reason_has_its_flops(examined: dict[str, Examined], name: str) -> None:
    parts = examined[name].facts["flops"]["parts"]
    assert {part["name"]: (part["forward"], part["backward"]) for part in parts} == PARTS[name]
