"""What `accounting.models` says of a model, held against the same model built and run: difference 0."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from accounting import measured, models
from accounting.models import (
    GPT2_SMALL,
    GPT2_XL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    DeepLinear,
    Transformer,
    active_parameter_count,
    backward_flops,
    forward_flops,
    parameter_count,
    parameter_counts,
    recompute_flops,
    rule_errors,
    rule_flops,
    step_flops,
)
from accounting.parts import LinearMaps, OtherParameters, Parts
from bench.models import build, inputs, reduced

PRESETS = {
    "GPT-2 small": (GPT2_SMALL, 124_439_808),
    "GPT-2 XL": (GPT2_XL, 1_557_611_200),
    "Llama-3-8B": (LLAMA3_8B, 8_030_261_248),
    "Llama-3-70B": (LLAMA3_70B, 70_553_706_496),
    "Mixtral-8x7B": (MIXTRAL_8X7B, 46_702_792_704),
}
presets = pytest.mark.parametrize(
    ("model", "published"), [pytest.param(*preset, id=name) for name, preset in PRESETS.items()]
)
REDUCED = {  # learned positions shrink with the width: at least 16 stay
    name: reduced(preset, layers=3, head_dim=16 if preset.learned_positions else 4)
    for name, (preset, _) in PRESETS.items()
}
reduced_presets = pytest.mark.parametrize("model", REDUCED.values(), ids=REDUCED)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors are tiny: a second thread has nothing to do, and is waited for where others use its core."""
    with measured.one_thread():
        yield


@st.composite
def deep_linears(draw: st.DrawFn) -> DeepLinear:
    size = st.integers(1, 9)
    return DeepLinear(draw(size), draw(st.integers(1, 6)), draw(size), draw(size), draw(st.booleans()))


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    size, flag = st.integers(1, 12), st.booleans()
    learned = draw(st.sampled_from([0, 8, 11]))
    kv_heads = draw(st.integers(1, 3))
    head_dim = draw(st.integers(1, 6)) * (1 if learned else 2)
    experts = draw(st.integers(1, 4))
    norm = draw(st.sampled_from(models.NORMS))
    return Transformer(
        vocab_size=draw(size),
        layers=draw(st.integers(1, 4)),
        dim=draw(size),
        heads=kv_heads * draw(st.integers(1, 3)),
        hidden=draw(size),
        kv_heads=kv_heads,
        head_dim=head_dim,
        gated=draw(flag),
        experts=experts,
        active_experts=draw(st.integers(1, experts)),
        tied_embedding=draw(flag),
        learned_positions=learned,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(flag),
        qkv_bias=draw(flag),
        out_bias=draw(flag),
        mlp_bias=draw(flag),
    )


def counted_step(
    model: models.Model,
    batch: int,
    sequence: int = 1,
    *,
    device: str = "cpu",
    input_gradient: bool = False,
    checkpoint_every: int = 0,
    early_stop: bool = True,
) -> tuple[int, int, FlopCounterMode]:
    """FLOPs that torch counts of a forward and of its backward pass (recomputation included), and the counter."""
    net = build(model, device=device, checkpoint_every=checkpoint_every)
    x = inputs(model, batch, sequence, device=device)
    x = x.requires_grad_() if input_gradient else x
    with sdpa_kernel(SDPBackend.MATH), set_checkpoint_early_stop(early_stop), FlopCounterMode(display=False) as counter:
        output = net(x)
        forward = counter.get_total_flops()
        output.float().square().sum().backward()
    return forward, counter.get_total_flops() - forward, counter


def built_parts(net: nn.Module) -> dict[str, int]:
    """Parameters of a built net by the part of the model that their names say."""
    names = {"embedding": "embedding", "positions": "positions", "head": "head", "router": "router"}
    parts: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        words = name.split(".")
        found = [part for word, part in names.items() if word in words]
        inside = [word for word in words if "norm" in word] and ["norms"]
        blocks = [word for word in words if word in ("attention", "mlp")]
        part = (inside or found or blocks or ["layers"])[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts


# Parameters


@presets
def test_published_parameters_are_those_of_the_formula_and_of_the_built_net(model, published):
    built = sum(parameter.numel() for parameter in build(model, device="meta").parameters())
    formula = parameter_count(model)
    assert formula == built == published, f"{formula=}, {built=}, but should both be {published} [{model}]"


@given(model=st.one_of(transformers(), deep_linears()))
def test_parameters_by_part_are_those_of_the_built_net(model):
    formula, built = parameter_counts(model), built_parts(build(model, device="meta"))
    assert formula == built, f"parameter_counts={formula}, but should be {built} [{model}]"


def test_mixtral_has_12_88e9_active_parameters():
    assert f"{active_parameter_count(MIXTRAL_8X7B) / 1e9:.2f}" == "12.88"


@pytest.mark.parametrize("active", [1, 2, 5, 8])
def test_active_parameters_are_those_that_one_token_gives_a_gradient(active):
    model = replace(reduced(MIXTRAL_8X7B), active_experts=active)
    net = build(model, dtype=torch.float64)
    net(inputs(model, 1, 1)).square().sum().backward()
    idle = sum(
        parameter.numel()
        for name, parameter in net.named_parameters()
        if "experts" in name and not parameter.grad.any()
    )
    formula, counted = active_parameter_count(model), parameter_count(model) - idle
    assert formula == counted, f"active_parameter_count={formula}, but should be {counted} [{active=}]"


# FLOPs


@pytest.mark.prove  # counted/test_models.py counts them at full width in each run
@presets
def test_flops_at_full_size_are_those_counted_on_the_meta_device(model, published):
    sequence = model.learned_positions or 8192
    forward, backward, _ = counted_step(model, 1, sequence, device="meta")
    formula = step_flops(model, 1, sequence)
    assert (formula.forward, formula.backward) == (forward, backward), f"{formula=}, but should be {forward, backward}"


@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_tokens_that_experts_cannot_share_evenly_are_all_counted_on_the_meta_device(tokens):
    model = replace(reduced(MIXTRAL_8X7B), active_experts=3)
    forward, backward, _ = counted_step(model, 1, tokens, device="meta")
    formula = step_flops(model, 1, tokens)
    assert (formula.forward, formula.backward) == (forward, backward), f"{formula=}, but should be {forward, backward}"


def test_a_llama_3_70b_step_on_8192_tokens_is_known_to_the_last_digit():
    assert step_flops(LLAMA3_70B, 1, 8192).model == 3_943_913_849_094_144


def test_a_llama_3_70b_step_is_known_within_a_millisecond():
    def duration_s() -> float:
        start = time.perf_counter()
        step_flops(LLAMA3_70B, 1, 8192)
        return time.perf_counter() - start

    fastest_s = min(duration_s() for _ in range(20))
    assert fastest_s < 1e-3, f"step_flops(LLAMA3_70B, 1, 8192) took {fastest_s:.6f} s, but should take under 1 ms"


@pytest.mark.prove(sample=8)
@pytest.mark.parametrize("early_stop", [False, True], ids=["whole", "early stop"])
@pytest.mark.parametrize("checkpoint_every", [0, 1, 2, 3])
@reduced_presets
def test_flops_of_a_step_are_those_counted_on_the_cpu(model, checkpoint_every, early_stop):
    options = {"checkpoint_every": checkpoint_every, "early_stop": early_stop}
    forward, backward, _ = counted_step(model, 2, 7, **options)
    formula = step_flops(model, 2, 7, **options)
    assert formula.forward == forward, f"forward={formula.forward}, but should be {forward} [{options}]"
    repeated = formula.backward + formula.recomputation
    assert repeated == backward, f"backward + recomputation={repeated}, but should be {backward} [{options}]"


@settings(max_examples=max(5, settings.default.max_examples // 3))  # a whole step each
@given(
    model=transformers(),
    batch=st.integers(1, 3),
    sequence=st.integers(1, 8),
    every=st.integers(0, 5),
    early_stop=st.booleans(),
)
def test_flops_of_any_transformer_are_those_counted(model, batch, sequence, every, early_stop):
    options = {"checkpoint_every": every, "early_stop": early_stop}
    forward, backward, _ = counted_step(model, batch, sequence, **options)
    formula = step_flops(model, batch, sequence, **options)
    got = formula.forward, formula.hardware
    should = forward, forward + backward
    assert got == should, f"forward, all={got}, but should be {should} [{model}, {batch=}, {sequence=}, {options}]"


@given(
    model=deep_linears(),
    batch=st.integers(1, 5),
    every=st.integers(0, 7),
    early_stop=st.booleans(),
    input_gradient=st.booleans(),
)
def test_flops_of_any_deep_linear_net_are_those_counted(model, batch, every, early_stop, input_gradient):
    options = {"checkpoint_every": every, "early_stop": early_stop, "input_gradient": input_gradient}
    forward, backward, _ = counted_step(model, batch, **options)
    formula = step_flops(model, batch, **options)
    got = formula.forward, formula.hardware
    should = forward, forward + backward
    assert got == should, f"forward, all={got}, but should be {should} [{model}, {batch=}, {options}]"


def test_full_recomputation_makes_six_n_d_eight():
    model, examples = DeepLinear(dim=64, layers=4), 32
    forward, backward, _ = counted_step(model, examples, input_gradient=True, checkpoint_every=1, early_stop=False)
    layers = examples * parameter_counts(model)["layers"]
    head = examples * parameter_counts(model)["head"]
    assert forward + backward == 8 * layers + 6 * head


@pytest.mark.parametrize("model", [reduced(GPT2_SMALL), reduced(LLAMA3_8B)], ids=["MHA", "GQA"])
def test_causal_pairs_are_those_of_attention_computed_query_by_query(model, monkeypatch):
    def query_by_query(query, key, value, is_causal, enable_gqa):
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        rows = []
        for i in range(query.shape[2]):
            scores = query[:, :, i : i + 1] @ key[:, :, : i + 1].transpose(2, 3)
            rows.append(scores.softmax(dim=-1) @ value[:, :, : i + 1])
        return torch.cat(rows, dim=2)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", query_by_query)
    forward, backward, _ = counted_step(model, 2, 9, checkpoint_every=1, early_stop=False)
    formula = step_flops(model, 2, 9, pairs="causal", checkpoint_every=1)
    got = formula.forward, formula.backward + formula.recomputation
    assert got == (forward, backward), f"{formula=}, but should be {forward, backward} in all"


def test_the_flash_convention_is_what_torch_counts_of_a_flash_kernel(monkeypatch):
    def flash(query, key, value, is_causal, enable_gqa):
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", flash)
    model = reduced(GPT2_SMALL)
    forward, backward, _ = counted_step(model, 1, 32, device="meta")
    formula = step_flops(model, 1, 32, convention="flash")
    assert (formula.forward, formula.backward + formula.recomputation) == (forward, backward)
    assert formula.model == step_flops(model, 1, 32).model, "what a kernel computes twice is no work of the model"


# Rules of thumb


@given(model=st.one_of(transformers(), deep_linears()), batch=st.integers(1, 3), sequence=st.integers(1, 8))
def test_the_errors_of_a_rule_add_up_to_the_rule_minus_what_is_counted(model, batch, sequence):
    # A deep linear net has no sequence: as many examples.
    sizes = (batch * sequence, 1) if isinstance(model, DeepLinear) else (batch, sequence)
    forward, backward, _ = counted_step(model, *sizes)
    one_each = active_parameter_count(model) * batch * sequence
    errors = {
        "forward": 2 * one_each - forward,
        "backward": 4 * one_each - backward,
        "step": 6 * one_each - forward - backward,
    }
    for rule, error in errors.items():
        named = rule_errors(model, rule, batch, sequence)
        got = sum(named.values())
        assert got == error, f"{named} sums to {got}, but should be {error} [{model}, {rule=}, {batch=}, {sequence=}]"


@pytest.mark.parametrize("rule", ["forward", "backward", "step"])
@given(
    model=transformers(),
    sequence=st.integers(1, 8),
    pairs=st.sampled_from(["full", "causal"]),
    convention=st.sampled_from(["math", "flash"]),
)
def test_the_errors_of_a_rule_are_those_against_the_work_of_the_model(rule, model, sequence, pairs, convention):
    step = step_flops(model, 2, sequence, pairs=pairs, convention=convention)
    exact = step.model if rule == "step" else getattr(step, rule)
    error = rule_flops(rule, active_parameter_count(model), 2 * sequence) - exact
    named = rule_errors(model, rule, 2, sequence, pairs=pairs)
    assert sum(named.values()) == error, f"{named} sums to {sum(named.values())}, but should be {error} [{model}]"


@reduced_presets
def test_each_error_of_a_rule_is_what_its_name_says(model):
    *_, counter = counted_step(model, 2, 16)
    counts = counter.get_flop_counts()["Global"]
    per_parameter = 6 * 2 * 16
    looked_up, norms, biases = 0, 0, 0
    for name, module in build(model).named_modules():
        if isinstance(module, nn.Embedding) and not (model.tied_embedding and name == "embedding"):
            looked_up += module.weight.numel()
        elif "norm" in name:
            norms += sum(parameter.numel() for parameter in module.parameters())
        elif isinstance(module, nn.Linear) and module.bias is not None:
            biases += module.bias.numel()
    expected = {
        "biases": per_parameter * biases,
        "embeddings": per_parameter * looked_up,
        "norms": per_parameter * norms,
        "attention": -counts[torch.ops.aten.bmm],
    }
    got = rule_errors(model, "step", 2, 16)
    assert got == {name: flops for name, flops in expected.items() if flops}, f"{got=}, but should be {expected}"


def test_a_model_without_anything_to_train_has_no_backward_products():
    frozen = Parts((LinearMaps("layers", 4, 4, frozen=True),), (), (OtherParameters("norms", 4, frozen=True),))
    assert backward_flops(frozen, 2, 3) == 0


def test_the_six_rule_is_exact_for_a_deep_linear_net_whose_input_needs_a_gradient():
    assert rule_errors(DeepLinear(dim=32, layers=3), "step", 8, input_gradient=True) == {}


@pytest.mark.parametrize("ratio", [1, 6])
def test_attention_adds_s_over_6d_to_a_standard_block(ratio):
    model = Transformer(vocab_size=1, layers=2, dim=16, heads=4, hidden=64, tied_embedding=True)
    weights = model.layers * 12 * model.dim**2
    sequence = ratio * model.dim
    attention = -rule_errors(model, "step", 1, sequence)["attention"]
    assert attention * 6 == ratio * rule_flops("step", weights, sequence)


# Bad input


SMALL = {"vocab_size": 8, "layers": 1, "dim": 8, "heads": 4, "hidden": 8}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"layers": -1}, ValueError, "layers must be at least 1, got -1"),
        ({"dim": 8.5}, TypeError, "dim must be an integer, got 8.5"),
        ({"vocab_size": True}, TypeError, "vocab_size must be an integer, got True"),
        ({"heads": 3}, ValueError, "heads must divide dim where head_dim is not given, got heads=3, dim=8"),
        ({"kv_heads": 3}, ValueError, "kv_heads must divide heads, got kv_heads=3, heads=4"),
        ({"kv_heads": -1}, ValueError, "kv_heads must be at least 0, got -1"),
        ({"head_dim": 5}, ValueError, r"head_dim must be even for rotary positions \(learned_positions=0\), got 5"),
        ({"experts": 2, "active_experts": 3}, ValueError, "active_experts must be at most experts=2, got 3"),
        ({"norm": "batchnorm"}, ValueError, "norm must be one of layernorm, rmsnorm, got 'batchnorm'"),
        ({"norm": "rmsnorm", "norm_bias": True}, ValueError, "norm_bias must be False for norm='rmsnorm', got True"),
        ({"learned_positions": -4}, ValueError, "learned_positions must be at least 0, got -4"),
    ],
)
def test_an_impossible_transformer_is_refused_with_the_value(changed, error, message):
    with pytest.raises(error, match=message):
        Transformer(**SMALL | changed)


@pytest.mark.parametrize("changed", [{"dim": 0}, {"layers": 0}, {"outputs": -1}, {"inputs": -1}])
def test_an_impossible_deep_linear_net_is_refused_with_the_value(changed):
    [(name, value)] = changed.items()
    with pytest.raises(ValueError, match=f"{name} must be at least [01], got {value}"):
        DeepLinear(**{"dim": 2, "layers": 2} | changed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forward_flops(GPT2_SMALL, -1, 8), "batch must be at least 0, got -1"),
        (lambda: forward_flops(GPT2_SMALL, 1, 1025), "sequence must be at most learned_positions=1024, got 1025"),
        (lambda: forward_flops(GPT2_SMALL, 1, 8, pairs="half"), "pairs must be one of full, causal, got 'half'"),
        (lambda: backward_flops(GPT2_SMALL, 1, 8, convention="fast"), "convention must be one of math, flash"),
        (lambda: backward_flops(GPT2_SMALL, 1, 8, input_gradient=True), "input_gradient must be False"),
        (lambda: recompute_flops(GPT2_SMALL, 1, 8, every=0), "every must be at least 1, got 0"),
        (lambda: recompute_flops(GPT2_SMALL, 1, 8, layers=13), "layers must be at most 12, got 13"),
        (lambda: step_flops(GPT2_SMALL, 1, 8, checkpoint_every=-1), "checkpoint_every must be at least 0, got -1"),
        (lambda: rule_flops("train", 1, 1), "rule must be one of forward, backward, step, got 'train'"),
        (lambda: rule_flops("step", -1, 1), "parameters must be at least 0, got -1"),
    ],
)
def test_an_impossible_count_is_refused_with_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
