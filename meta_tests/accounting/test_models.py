"""What `accounting.models` says of a model, against the same model built and run: difference 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import layers
from accounting.models import (
    DeepLinear,
    Transformer,
    forward_flops,
    parameter_counts,
    recompute_flops,
    step_flops,
)
from accounting.networks import NORMS
from bench.models import build
from prooflops import timing


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors are tiny: a second thread has nothing to do.

    It is waited for where others use its core.
    """
    with timing.one_thread():
        yield


@st.composite
def deep_linears(draw):
    size = st.integers(1, 9)
    return DeepLinear(
        draw(size), draw(st.integers(1, 6)), draw(size), draw(size), draw(st.booleans())
    )


@st.composite
def transformers(draw):
    size, flag = st.integers(1, 12), st.booleans()
    learned = draw(st.sampled_from([0, 8, 11]))
    kv_heads = draw(st.integers(1, 3))
    head_dim = draw(st.integers(1, 6)) * (1 if learned else 2)
    experts = draw(st.integers(1, 4))
    norm = draw(st.sampled_from(NORMS))
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


def built_parts(net):
    """Parameters of a built net by the part of the model that their names say."""
    names = {"embedding": "embedding", "positions": "positions", "head": "head", "router": "router"}
    parts = {}
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
    assert formula == built


# Sizes of the papers, and the parameters by the formulas of their docstrings.
WITHOUT_OPTIONS = (
    (layers.embedding(11, 8), 11 * 8),
    (layers.head(8, 11), 8 * 11),
    (layers.attention(8, 4, 3), 2 * 8 * 3 * (4 + 4)),
    (layers.mlp(8, 32), 2 * 8 * 32),
    (layers.mixture(8, 32, 4, 2), 8 * 4 + 4 * 2 * 8 * 32),
    (
        layers.latent_attention(8, 4, 6, 5, 3, 2, 7),
        (8 + 1) * 6 + 6 * 4 * (3 + 2) + 8 * (5 + 2) + 5 + 5 * 4 * (3 + 7) + 4 * 7 * 8,
    ),
    (DeepLinear(8, 3), 3 * 8**2 + 8),
    (Transformer(11, 3, 8, 4, 32), 2 * 11 * 8 + 3 * (2 * 8 + 4 * 8**2 + 2 * 8 * 32) + 8),
)


@pytest.mark.parametrize(("parts", "parameters"), WITHOUT_OPTIONS)
def test_a_layer_without_options_has_no_more_parameters_than_its_paper(parts, parameters):
    stored = (*parts.linear_maps, *parts.other_parameters)
    assert sum(each.parameters for each in stored) == parameters


@given(model=st.one_of(transformers(), deep_linears()), every=st.integers(1, 4))
def test_all_but_the_head_is_recomputed_and_less_where_it_stops_early(model, every):
    head = sum(maps.product_flops(2, 4) for maps in model.linear_maps if maps.part == "head")
    whole = recompute_flops(model, 2, 4, every=every)
    assert whole == forward_flops(model, 2, 4) - head
    assert recompute_flops(model, 2, 4, every=every, early_stop=True) <= whole
    step = step_flops(model, 2, 4, checkpoint_every=every)
    assert step.hardware - step.model == whole
