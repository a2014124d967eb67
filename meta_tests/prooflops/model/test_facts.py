"""The facts of single models against figures worked out by hand: reasons of FLOPs, modules, memory, largest size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_tests.conftest import ROOT
from meta_tests.user_models import gpt, own
from meta_tests.user_models.worked import BACKWARD, FORWARD, PARAMETERS, PARTS
from prooflops.machine import device as machine
from prooflops.model import flop_difference
from prooflops.model.breakdown import OUTSIDE, breakdown_of, inference_of
from prooflops.model.flop_difference import ExplainedFlops, flops_of
from prooflops.model.step_memory import NOT_PREDICTED_COMPILED, memory_of, predicted_memory
from prooflops.model.sweep import MOST_TRIALS, Sweep, Trial, largest, memory_limit, sweep_of
from prooflops.model.tables import count_text, rule_remark, sweep_section
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


def test_a_similarity_matrix_an_lstm_and_an_idle_expert_have_their_own_reasons() -> None:
    similarities = 2 * 8 * 8 * own.WIDTH
    parts = parts_of(explained_flops(*own.towers()))
    assert parts[flop_difference.ACTIVATIONS] == (-similarities, -2 * similarities)

    biases = 2 * 2 * 4 * 32
    lstm = explained_flops(nn.LSTM(16, 32, num_layers=2, batch_first=True), torch.randn(4, 7, 16))
    assert parts_of(lstm) == {flop_difference.ELEMENTWISE: (2 * 28 * biases, 4 * 28 * biases)}

    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    routed = Wrapped(experts, lambda inner, x: torch.cat([inner[0](x), inner[1](x[:0])]))
    assert parts_of(explained_flops(routed, torch.randn(4, 8, requires_grad=True))) == {
        flop_difference.UNUSED: (2 * 4 * 72, 4 * 4 * 72),
        flop_difference.ELEMENTWISE: (2 * 4 * 8, 4 * 4 * 8),
    }


def test_a_rule_says_from_which_flops_it_differs() -> None:
    flops = ExplainedFlops(100, 10, "tokens", 2000, 4500, 0, 500, (), {}, 0, 0, 0, {})
    assert rule_remark(flops, "forward") == "2ND is exactly the model FLOPs (+0)"
    assert rule_remark(flops, "step") == "6ND is exactly the model FLOPs (+0), 7.7% below the executed FLOPs"
    assert [count_text(each) for each in (0, 0.906, 320, 1_250_000, 38.4)] == ["0", "0.906", "320", "1.25 M", "38.4"]


# ---- modules, inference ------------------------------------------------------------------------------------------


def test_each_module_has_its_shapes_parameters_flops_and_kept_tensors() -> None:
    rows = {row.name: row for row in breakdown_of(loaded("gpt:factory")).modules}
    tokens, fc = gpt.BATCH * gpt.LENGTH, rows["h.1.c_fc"]
    forward = 2 * tokens * gpt.WIDTH * 4 * gpt.WIDTH
    assert (fc.kind, fc.depth, fc.calls, fc.output) == ("Linear", 3, 1, str((gpt.BATCH, gpt.LENGTH, 4 * gpt.WIDTH)))
    assert (fc.parameters, fc.forward_flops, fc.backward_flops) == (
        4 * gpt.WIDTH * (gpt.WIDTH + 1), forward, 2 * forward
    )  # fmt: skip
    attention = 2 * 2 * gpt.BATCH * gpt.LENGTH**2 * gpt.WIDTH  # belongs to the block, which multiplies by itself
    inside = sum(rows[f"h.0.{name}"].forward_flops for name in ("c_attn", "c_proj", "c_fc", "c_out"))
    assert rows["h.0"].forward_flops == inside + attention
    assert rows["h"].forward_flops == 2 * rows["h.0"].forward_flops
    assert rows["lm_head"].parameters == gpt.VOCABULARY * gpt.WIDTH, "a tied weight is one of each that has it"
    block = 4 * tokens * gpt.WIDTH
    assert rows["h.0.c_out"].kept_bytes == 4 * block, "the GELU's result"
    assert rows["h.0.ln_2"].kept_bytes == block + 2 * 4 * tokens, "its input, means and deviations"
    assert rows["h.0.c_fc"].kept_bytes == block, "the norm's result"
    assert rows[OUTSIDE].kept_bytes == 0, "labels were there before"


def test_recomputed_flops_belong_to_the_module_that_runs_again() -> None:
    rows = {row.name: row for row in breakdown_of(loaded("own:checkpointed")).modules}
    product = 2 * 8 * own.WIDTH**2
    assert (rows["blocks.1.0"].forward_flops, rows["blocks.1.0"].backward_flops) == (product, 3 * product)
    assert rows["blocks.1.0"].calls == 1
    assert rows[""].backward_flops == 5 * product, "the first layer's input needs no gradient"


def test_a_compiled_model_is_not_predicted_and_taken_apart_as_it_is_written() -> None:
    compiled = loaded("own:compiled")
    assert predicted_memory(compiled) == (None, NOT_PREDICTED_COMPILED)
    found = breakdown_of(compiled)
    assert found.is_compiled
    assert [row.forward_flops for row in found.modules if row.kind == "Linear"] == [2 * 8 * 16 * own.WIDTH]


def test_a_model_that_cannot_run_for_inference_has_a_reason() -> None:
    why_not = inference_of(loaded("own:training_only")).why_not
    assert why_not.startswith("RuntimeError: this net only trains")
    assert own.__file__ in why_not


# ---- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory", ["gpt:in_bf16", "own:deep", "own:checkpointed", "own:with_class_token", "own:bag", "own:converted"]
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


def test_a_branch_on_values_is_found_in_the_users_code() -> None:
    prediction, why = predicted_memory(loaded("own:looking"))
    lines = Path(own.__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if ".item() <" in line)
    assert prediction is None
    assert why.startswith("not predicted: RuntimeError: the block reads values")
    assert why.endswith(f"({own.__file__}:{number})")


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


def test_a_first_size_that_does_not_fit_and_a_size_that_cannot_run() -> None:
    assert largest(lambda size: LIMIT + size, 4, LIMIT, 2) == (None, 4)
    assert largest(lambda size: size if size <= 100 else None, 4, LIMIT, 2) == (100, 101), "such as the last position"


def test_the_found_batch_is_the_predicted_one() -> None:
    found = sweep_of(loaded("own:sized"), "batch", 2**20)
    assert found.found
    assert found.predicted == pytest.approx(found.found, rel=0.02)
    assert (found.limit_bytes, found.limit_of, found.unit) == (2**20, "--model-memory", "examples")
    assert found.trials[0].size == 8
    assert all((trial.seconds is not None) == (trial.size <= found.found) for trial in found.trials)


def test_sizes_that_do_not_fit_or_cannot_run_say_so() -> None:
    found = sweep_of(loaded("own:positions"), "length", 2**20)
    assert (found.found, found.next_larger) == (4, 5)
    assert "IndexError: index out of range" in next(each.why_not for each in found.trials if each.size == 5)
    trials = (Trial(8, 900, 1000, 0.5, 8), Trial(16, None, 2_000_000), Trial(17, None, None, why_not="IndexError"))
    section = sweep_section(Sweep("batch", 2**20, "--model-memory", "examples", trials, 8, 16, 8))
    assert section.rows[1:] == [
        ["8", "900 B", "1.00 kB", "500 ms", "16.0", ""],
        ["16", "-", "2.00 MB", "-", "-", "does not fit"],
        ["17", "-", "-", "-", "-", "IndexError"],
    ]
    assert "largest found to fit: batch=8 (16 does not)" in section.remarks


def test_the_users_machine_is_never_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda _: 1000)
    assert memory_limit(CPU, None) == (500, "half of the host's free memory")
    assert memory_limit(CPU, 400) == (400, "--model-memory")
    assert memory_limit(torch.device("cuda"), None) == (1000, "free on cuda")
