"""The runnable models are the models they are named after."""

import pytest
import torch

from accounting.models import GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B, parameter_count
from bench.models import MixtureOfExperts, RotaryEmbedding, build, inputs, reduced
from meta_tests.accounting.test_models import one_thread  # noqa: F401  # a fixture


def few_layers(preset):
    """Learned positions shrink with the width: at least 16 stay."""
    head_dim = 16 if preset.learned_positions else 4
    return reduced(preset, layers=3, head_dim=head_dim)


REDUCED = {preset.norm: few_layers(preset) for preset in (GPT2_SMALL, LLAMA3_8B)}
REDUCED["experts"] = few_layers(MIXTRAL_8X7B)
reduced_presets = pytest.mark.parametrize("model", REDUCED.values(), ids=REDUCED)


def test_experts_are_mixed_as_if_every_expert_saw_every_token():
    mixture = MixtureOfExperts(reduced(MIXTRAL_8X7B)).double()
    x = torch.randn(2, 5, mixture.router.in_features, dtype=torch.float64)
    scores = mixture.router(x)
    kept = scores >= scores.topk(mixture.active, dim=-1).values[..., -1:]
    weights = scores.masked_fill(~kept, -torch.inf).softmax(dim=-1)
    dense = sum(weights[..., [i]] * expert(x) for i, expert in enumerate(mixture.experts))
    torch.testing.assert_close(mixture(x), dense)


def test_rotary_embedding_turns_each_pair_as_a_complex_number():
    x = torch.randn(9, 6, dtype=torch.float64)
    speeds = torch.tensor([10_000 ** (-2 * pair / 6) for pair in range(3)])
    angles = torch.outer(torch.arange(9), speeds)
    turned = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angles)
    right = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(RotaryEmbedding()(x), right, rtol=1e-5, atol=1e-5)


@reduced_presets
def test_a_net_has_the_parameters_of_its_model(model):
    assert sum(map(torch.numel, build(model, device="meta").parameters())) == parameter_count(model)


@reduced_presets
def test_a_later_token_does_not_change_an_earlier_logit(model):
    net, tokens = build(model, dtype=torch.float64), inputs(model, 1, 8)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % model.vocab_size
    before, after = net(tokens), net(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:]), (
        "a changed token must change its own logits"
    )
