"""What `accounting.models` says of a model, against the same model built and run: difference 0."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from accounting import families, models
from accounting.models import (
    GPT2_SMALL,
    GPT2_XL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    DeepLinear,
    Transformer,
    parameter_count,
    parameter_counts,
    step_flops,
)
from bench.models import build, inputs
from prooflops import measured

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


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors are tiny: a second thread has nothing to do.

    It is waited for where others use its core.
    """
    with measured.one_thread():
        yield


@st.composite
def deep_linears(draw: st.DrawFn) -> DeepLinear:
    size = st.integers(1, 9)
    return DeepLinear(
        draw(size), draw(st.integers(1, 6)), draw(size), draw(size), draw(st.booleans())
    )


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
    sequence: int,
    checkpoint_every: int,
    early_stop: bool,
    input_gradient: bool = False,
) -> tuple[int, int]:
    """FLOPs that torch counts of a forward and of its backward pass, recomputation included."""
    net, x = build(model, checkpoint_every=checkpoint_every), inputs(model, batch, sequence)
    x = x.requires_grad_() if input_gradient else x
    with (
        sdpa_kernel(SDPBackend.MATH),
        set_checkpoint_early_stop(early_stop),
        FlopCounterMode(display=False) as counter,
    ):
        output = net(x)
        forward = counter.get_total_flops()
        output.float().square().sum().backward()
    return forward, counter.get_total_flops() - forward


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


@presets
def test_published_parameters_are_the_formulas_and_the_built_nets(model, published):
    built = sum(parameter.numel() for parameter in build(model, device="meta").parameters())
    formula = parameter_count(model)
    assert formula == built == published, (
        f"{formula=}, {built=}, but should both be {published} [{model}]"
    )


@given(model=st.one_of(transformers(), deep_linears()))
def test_parameters_by_part_are_those_of_the_built_net(model):
    formula, built = parameter_counts(model), built_parts(build(model, device="meta"))
    assert formula == built, f"parameter_counts={formula}, but should be {built} [{model}]"


@settings(max_examples=max(5, settings.default.max_examples // 2))  # a whole step each
@given(
    model=st.one_of(transformers(), deep_linears()),
    batch=st.integers(1, 3),
    sequence=st.integers(1, 8),
    every=st.integers(0, 7),
    early_stop=st.booleans(),
    input_gradient=st.booleans(),
)
def test_flops_of_any_model_are_those_counted(
    model, batch, sequence, every, early_stop, input_gradient
):
    options = {"checkpoint_every": every, "early_stop": early_stop}
    if isinstance(model, DeepLinear):
        sequence, options["input_gradient"] = 1, input_gradient
    forward, backward = counted_step(model, batch, sequence, **options)
    formula = step_flops(model, batch, sequence, **options)
    got = formula.forward, formula.hardware
    should = forward, forward + backward
    assert got == should, (
        f"forward, all={got}, but should be {should} [{model}, {batch=}, {sequence=}, {options}]"
    )


def test_latents_are_what_is_cached_and_attended_to_at_inference():
    layer = families.latent_attention(7168, 128, 1536, 512, 128, 64, 128)
    assert models.cache_bytes(layer, 1, 1000) == 2 * 1000 * (512 + 64)
    assert models.cache_bytes(layer, 1, 1000, latents=False) == 2 * 1000 * 128 * (192 + 128)
    absorbed, expanded = (
        models.decoding_work(layer, 1, 1000, latents=latents) for latents in (True, False)
    )
    assert absorbed.flops - expanded.flops == 2 * 128 * 1001 * ((576 + 512) - (192 + 128))
    few, many = (
        models.decoding_work(layer, 64, 8192, latents=latents).intensity
        for latents in (True, False)
    )
    assert few > 50 * many, (
        f"{few:.0f} FLOPs a byte with latents, {many:.0f} with whole keys and values"
    )
