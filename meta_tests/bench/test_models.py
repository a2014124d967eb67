"""The runnable models are the models they are named after."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accounting.models import GPT2_SMALL, MIXTRAL_8X7B, DeepLinear, matmul_parameter_count, parameter_count
from bench.models import MixtureOfExperts, RotaryEmbedding, build, inputs, reduced
from meta_tests.accounting.test_models import one_thread, presets, reduced_presets  # noqa: F401  # a fixture


def test_a_negative_checkpoint_interval_is_refused_before_a_net_without_layers_runs():
    with pytest.raises(ValueError, match="checkpoint_every must be at least 0, got -1"):
        build(DeepLinear(dim=2, layers=2), checkpoint_every=-1)


def test_experts_are_mixed_as_if_every_expert_saw_every_token():
    mixture = MixtureOfExperts(reduced(MIXTRAL_8X7B)).double()
    x = torch.randn(2, 5, mixture.router.in_features, dtype=torch.float64)
    scores = mixture.router(x)
    kept = scores >= scores.topk(mixture.active, dim=-1).values[..., -1:]
    weights = scores.masked_fill(~kept, -torch.inf).softmax(dim=-1)
    dense = sum(weights[..., [i]] * expert(x) for i, expert in enumerate(mixture.experts))
    torch.testing.assert_close(mixture(x), dense)


def test_rotary_scores_depend_on_the_distance_of_the_two_positions_alone():
    query, key = torch.randn(2, 6, dtype=torch.float64)
    scores = RotaryEmbedding()(query.expand(9, 6)) @ RotaryEmbedding()(key.expand(9, 6)).T
    for distance in range(9):
        same = scores.diagonal(distance)
        torch.testing.assert_close(same, same[0].expand_as(same), rtol=1e-5, atol=1e-5)


@reduced_presets
def test_a_later_token_does_not_change_an_earlier_logit(model):
    net, tokens = build(model, dtype=torch.float64), inputs(model, 1, 8)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % model.vocab_size
    before, after = net(tokens), net(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:]), "a changed token must change its own logits"


def test_learned_positions_tell_equal_tokens_apart():
    model = reduced(GPT2_SMALL)
    first, second = build(model, dtype=torch.float64)(torch.zeros(1, 2, dtype=torch.long))[0]
    assert not torch.allclose(first, second), "the same token at two positions should have two logits"


@reduced_presets
def test_checkpointing_leaves_the_gradients_as_they_are(model):
    net, tokens = build(model, dtype=torch.float64), inputs(model, 2, 6)
    gradients = []
    for net.checkpoint_every in (0, 2):
        net.zero_grad()
        net(tokens).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


@presets
def test_a_reduced_preset_keeps_its_proportions(model, published):
    small = reduced(model)
    assert parameter_count(small) < published / 100
    assert small.heads * model.kv_heads == model.heads * small.kv_heads
    assert small.hidden * model.dim == model.hidden * small.dim
    kept = ("experts", "active_experts", "gated", "norm", "tied_embedding", "qkv_bias", "out_bias", "mlp_bias")
    assert [getattr(small, name) for name in kept] == [getattr(model, name) for name in kept]


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_is_multiplied_by_as_much_as_an_untied_one_and_stored_once(tied):
    model = replace(reduced(GPT2_SMALL), tied_embedding=tied)
    net = build(model)
    assert (net.head.weight is net.embedding.weight) == tied
    stored = parameter_count(model) - parameter_count(replace(model, tied_embedding=True))
    assert stored == (0 if tied else model.vocab_size * model.dim)
    assert matmul_parameter_count(model) == matmul_parameter_count(replace(model, tied_embedding=True))
