"""What `accounting.models` says of a model, against the same model built and run: difference 0."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from accounting import models
from accounting.models import (
    DeepLinear,
    Transformer,
    parameter_counts,
    step_flops,
)
from bench.models import build, inputs
from prooflops import measured


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
