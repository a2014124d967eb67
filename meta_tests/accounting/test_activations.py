"""What autograd keeps for the backward pass, as torch runs the nets on the CPU; with checkpoints and micro-batches."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from accounting import families, measured
from accounting.activations import (
    ATTENTION,
    DTYPES,
    RANDOM_STATE_BYTES,
    activation_bytes,
    deep_linear_peak_bytes,
    recomputed_bytes,
    saved_tensors,
)
from accounting.models import GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B, DeepLinear, Transformer, from_config, parameter_count
from meta_tests.accounting.older_torch import activation_bytes_here, has_grouped_flash, narrower_norm_bytes
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import tensors
from test_claims.strategies import TORCH_DTYPES, sizes


@st.composite
def transformers(draw):
    """Small transformers of every kind the formula distinguishes."""
    key_heads, experts = draw(sizes(1, 2)), draw(st.sampled_from([1, 1, 3]))
    norm, flag = draw(st.sampled_from(["layernorm", "rmsnorm"])), st.booleans()
    return Transformer(
        vocab_size=draw(sizes(2, 20)),
        layers=draw(sizes(1, 3)),
        dim=draw(sizes(1, 9)),
        heads=key_heads * draw(sizes(1, 3)),
        kv_heads=key_heads,
        head_dim=draw(st.sampled_from([2, 4])),
        hidden=draw(sizes(1, 9)),
        gated=draw(flag),
        experts=experts,
        active_experts=draw(sizes(1, experts)),
        tied_embedding=draw(flag),
        learned_positions=draw(st.sampled_from([0, 8])),
        norm=norm,
        norm_bias=norm == "layernorm" and draw(flag),
        qkv_bias=draw(flag),
        mlp_bias=draw(flag),
    )


def dropped(x, share=0.1):
    """Dropout as CUDA's kernel has it, whose mask is of bools; the CPU's own is of the dtype of `x`."""
    return torch.native_dropout(x, share, True)[0]


def unfused(query, key, value, *, is_causal, enable_gqa, dropout=False, selective=False):
    """Attention written out: a product, a softmax, a product, all in the dtype of the queries; perhaps recomputed."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))

    def core(query, key, value):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        hidden = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1)
        probabilities = (scores + hidden).softmax(-1)
        return (dropped(probabilities) if dropout else probabilities) @ value

    if selective:
        return checkpoint(core, query, key, value, use_reentrant=False, preserve_rng_state=False)
    return core(query, key, value)


def saved_by(
    workloads,
    model,
    batch,
    sequence=1,
    dtype="fp32",
    attention="flash",
    autocast=None,
    *,
    dropout=False,
    selective=False,
    checkpoint_every=0,
):
    """Bytes that autograd keeps in a real forward pass, the batch and the parameters excepted."""
    net = workloads.build(model, dtype=TORCH_DTYPES[dtype], checkpoint_every=checkpoint_every)
    x = workloads.inputs(model, batch, sequence)
    if x.is_floating_point():
        x = x.to(TORCH_DTYPES[dtype])
    cast = torch.autocast("cpu", TORCH_DTYPES[autocast]) if autocast else nullcontext()
    if dropout:
        for part in (net.embedding, *(part for layer in net.layers for part in (layer.attention, layer.mlp))):
            part.register_forward_hook(lambda module, arguments, output: dropped(output))
    attend = partial(unfused, dropout=dropout, selective=selective)
    kernel = sdpa_kernel(SDPBackend.MATH) if attention == "math" else nullcontext()
    if attention == "unfused":
        kernel = patch.object(functional, "scaled_dot_product_attention", attend)
    with cast, kernel:
        return tensors.saved_bytes(lambda: net(x), [x, *net.parameters()])


@given(
    model=transformers(),
    batch=sizes(1, 3),
    sequence=sizes(1, 6),
    dtype=st.sampled_from(["fp32", "fp64"]),
    attention=st.sampled_from(ATTENTION),
)
def test_activations_of_a_transformer_are_what_autograd_keeps(workloads, model, batch, sequence, dtype, attention):
    got = saved_by(workloads, model, batch, sequence, dtype, attention)
    formula = activation_bytes_here(model, batch, sequence, dtype, attention)
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{model}, {batch=}, {sequence=}, {dtype=}]"


@pytest.mark.prove(sample=9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("preset", [GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B], ids=["gpt2", "llama3", "mixtral"])
def test_activations_of_published_architectures_are_what_autograd_keeps(workloads, preset, dtype, attention):
    model = replace(workloads.reduced(preset, layers=2, head_dim=4), vocab_size=64)
    got = saved_by(workloads, model, 2, 6, dtype, attention)
    formula = activation_bytes_here(model, 2, 6, dtype, attention)
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{model}, {dtype=}, {attention=}]"


# ---- dropout and recomputation -----------------------------------------------------------------------------------

GPT = Transformer(vocab_size=9, layers=2, dim=256, heads=4, hidden=1024, learned_positions=12, norm_bias=True)


@pytest.mark.parametrize(("attention", "selective"), [("flash", False), ("unfused", False), ("unfused", True)])
@pytest.mark.parametrize("dtype", [pytest.param("fp32", marks=pytest.mark.prove), "bf16"])
@pytest.mark.parametrize("preset", [GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B], ids=["gpt2", "llama3", "mixtral"])
def test_dropout_keeps_masks_and_selective_recomputation_drops_scores(workloads, preset, dtype, attention, selective):
    model = replace(workloads.reduced(preset, layers=2, head_dim=4), vocab_size=64)
    if attention == "flash" and model.heads != model.kv_heads and not has_grouped_flash():
        pytest.skip("this torch has no flash attention in groups on the CPU")
    options = {"attention": attention, "dropout": True, "selective": selective}
    got = saved_by(workloads, model, 2, 6, dtype, **options)
    formula = activation_bytes_here(model, 2, 6, dtype, **options)
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{model}, {dtype=}, {options}]"


@pytest.mark.parametrize("sequence", [8, 12])
def test_a_gpt_block_keeps_34_bytes_an_element_and_5_a_score_as_korthikanti_has_it(workloads, sequence):
    blocks = {}
    for selective in (False, True):
        options = {"attention": "unfused", "dropout": True, "selective": selective}
        one, two = (
            saved_by(workloads, replace(GPT, layers=layers), 3, sequence, "bf16", **options) for layers in (1, 2)
        )
        blocks[selective] = two - one
        formula = activation_bytes(GPT, 3, sequence, "bf16", **options)
        assert two == formula, f"{two} bytes are kept, but should be {formula} [{options}]"
    tokens, scores = 3 * sequence, 3 * GPT.heads * sequence**2
    statistics = 8 * tokens  # mean and deviation of two norms, which the paper leaves out
    assert blocks[False] == 34 * tokens * GPT.dim + 5 * scores + statistics, f"{blocks} [{sequence=}]"
    assert blocks[True] == 34 * tokens * GPT.dim + statistics, f"{blocks} [{sequence=}]"


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "inside", [pytest.param(0, marks=pytest.mark.prove), 1, 3, pytest.param(5, marks=pytest.mark.prove)]
)
@pytest.mark.parametrize("attention", [pytest.param("flash", marks=pytest.mark.prove), "unfused"])
def test_layers_behind_the_checkpointed_ones_keep_all(workloads, attention, inside, every):
    model, whole = replace(GPT, layers=5, dim=8, head_dim=2, hidden=8), workloads.through

    def partly(layers, x, checkpoint_every=0):
        checkpointed = inside if checkpoint_every else len(layers)
        return whole(layers[checkpointed:], whole(layers[:checkpointed], x, checkpoint_every))

    with patch.object(workloads, "through", partly):
        got = saved_by(workloads, model, 2, 7, attention=attention, dropout=True, checkpoint_every=every)
    options = {"checkpoint_every": every, "checkpoint_layers": inside, "attention": attention, "dropout": True}
    formula = activation_bytes(model, 2, 7, **options)
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{options}]"


@given(
    model=st.builds(DeepLinear, dim=sizes(), layers=sizes(1, 5), outputs=sizes(), inputs=sizes(), bias=st.booleans()),
    batch=sizes(),
    autocast=st.sampled_from([None, None, "bf16"]),
)
def test_activations_of_a_deep_linear_net_are_what_autograd_keeps(workloads, model, batch, autocast):
    got = saved_by(workloads, model, batch, autocast=autocast)
    formula = activation_bytes(model, batch, autocast=autocast)
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{model}, {batch=}, {autocast=}]"


@pytest.mark.parametrize("every", [1, 2, 3, 5, 9])
@pytest.mark.parametrize(
    "model",
    [
        DeepLinear(dim=6, layers=5, outputs=2),
        Transformer(vocab_size=9, layers=5, dim=8, heads=2, hidden=12, learned_positions=7),
        Transformer(vocab_size=9, layers=5, dim=8, heads=2, kv_heads=1, hidden=12, norm="rmsnorm", gated=True),
    ],
    ids=["deep linear", "gpt", "llama"],
)
def test_checkpointing_keeps_one_input_per_segment(workloads, model, every):
    net, x = workloads.build(model, checkpoint_every=every), workloads.inputs(model, 3, 7)
    with measured.memory("cpu") as held:
        output = net(x)
    got = held.live_bytes - output.nbytes
    random_state = -(-model.layers // every) * RANDOM_STATE_BYTES
    formula = activation_bytes(model, 3, 7, checkpoint_every=every) + random_state
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{model}, {every=}]"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_recomputing_a_segment_brings_back_what_its_layers_keep(workloads, norm, every, dtype):
    model = Transformer(vocab_size=9, layers=4, dim=8, heads=2, hidden=12, norm=norm)
    segment = workloads.build(model, dtype=TORCH_DTYPES[dtype]).layers[:every]
    x = torch.randn(3, 7, 8, dtype=TORCH_DTYPES[dtype], requires_grad=True)
    got = tensors.saved_bytes(lambda: workloads.through(segment, x), [x, *segment.parameters()])
    formula = recomputed_bytes(model, 3, 7, dtype, checkpoint_every=every)
    formula -= 2 * every * narrower_norm_bytes(model, 3 * 7, dtype)
    assert got == formula, f"{got} bytes come back, but should be {formula} [{model}, {every=}, {dtype=}]"


def test_recomputing_linear_layers_brings_back_all_inputs_but_the_first(workloads):
    model = DeepLinear(dim=6, layers=4)
    segment = workloads.build(model).layers[:3]
    x = torch.randn(5, 6, requires_grad=True)
    got = tensors.saved_bytes(lambda: workloads.through(segment, x), [x, *segment.parameters()])
    formula = recomputed_bytes(model, 5, checkpoint_every=3)
    assert got == formula == 2 * 5 * 6 * 4, f"{got} bytes come back, but should be {formula}"


def test_accumulating_over_micro_batches_keeps_the_activations_of_the_largest(workloads):
    model = DeepLinear(dim=6, layers=4)
    net, x = workloads.build(model), workloads.inputs(model, 10)
    kept = []
    with measured.memory("cpu") as held:
        for index, part in enumerate(x.chunk(4)):
            loss = net(part).sum()
            held.mark(f"forward {index}")
            loss.backward()
    for index, phase in enumerate(held.phases.values()):
        gradients = 4 * parameter_count(model) * (index > 0)
        kept.append(phase.live_bytes - gradients - 4)
    formula = activation_bytes(model, 10, micro_batches=4)
    assert max(kept) == formula == activation_bytes(model, 3), f"{kept} bytes are kept, but should be {formula} at most"


def test_activations_of_every_float_are_as_wide_as_it_is():
    kept = {dtype: activation_bytes(DeepLinear(dim=8, layers=3), 4, dtype=dtype) for dtype in DTYPES}
    assert kept == {name: 3 * 4 * 8 * size for name, size in {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}.items()}


def test_the_saved_tensors_sum_to_the_activations_by_part():
    parts = {}
    for tensor in saved_tensors(MIXTRAL_8X7B, 1, 4096, "bf16"):
        parts[tensor.part] = parts.get(tensor.part, 0) + tensor.bytes
    assert set(parts) == {"attention", "router", "mlp", "head"}
    assert sum(parts.values()) == activation_bytes(MIXTRAL_8X7B, 1, 4096, "bf16")


def test_the_random_state_that_a_checkpoint_keeps_has_the_stated_size():
    got = torch.get_rng_state().nbytes
    assert got == RANDOM_STATE_BYTES, f"the CPU's random state has {got} bytes, but should have {RANDOM_STATE_BYTES}"


NET = DeepLinear(dim=4, layers=2)
SMALL_TRANSFORMER = Transformer(vocab_size=9, layers=1, dim=4, heads=1, hidden=4)


TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
BEYOND = {
    "windows": from_config(TINY | {"model_type": "mistral", "sliding_window": 16}),
    "latent attention": families.embedding(9, 8) + families.latent_attention(8, 2, 4, 4, 2, 2, 4),
    "recurrent layers": families.embedding(9, 8) + families.state_space(8, 2, 4, 4, 1, 4),
    "router, shared expert": families.mixture(8, 16, 4, 2, shared=16),
    "adapters": families.with_adapters(LLAMA3_8B, 8),
    "attention on both sides": families.vision_transformer(64, 2, 4, 128, 9, 48, 10),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_model_whose_saved_tensors_are_not_known_is_refused_and_says_why(what):
    asked = [activation_bytes, saved_tensors, partial(recomputed_bytes, checkpoint_every=1)]
    for function in (*asked, partial(activation_bytes, checkpoint_every=1)):
        with pytest.raises(TypeError, match=f"model must be a DeepLinear or a Transformer.*with .*{what}.*predicted"):
            function(BEYOND[what], 2, 8)


test_bad_input_is_named_with_its_value_and_the_valid_ones = refuses(
    (lambda: activation_bytes(NET, 0), ValueError, ["batch", "0"]),
    (lambda: activation_bytes(NET, 2, dtype="int8"), ValueError, ["dtype", "int8", "bf16"]),
    (lambda: activation_bytes(NET, 2, checkpoint_every=-1), ValueError, ["checkpoint_every", "-1"]),
    (lambda: activation_bytes(NET, 2, micro_batches=0), ValueError, ["micro_batches", "0"]),
    (lambda: activation_bytes(SMALL_TRANSFORMER, 2, 0), ValueError, ["sequence", "0"]),
    (lambda: activation_bytes(SMALL_TRANSFORMER, 2, 3, attention="paged"), ValueError, ["attention", "paged"]),
    (lambda: activation_bytes(SMALL_TRANSFORMER, 2, 3, autocast="bf16"), ValueError, ["autocast", "bf16"]),
    (lambda: activation_bytes(NET, 2, dropout=True), ValueError, ["dropout"]),
    (lambda: activation_bytes(NET, 2, checkpoint_layers=1), ValueError, ["checkpoint_layers", "checkpoint_every=0"]),
    (lambda: activation_bytes(NET, 2, checkpoint_every=1, checkpoint_layers=3), ValueError, ["at most 2", "got 3"]),
    (lambda: recomputed_bytes(NET, 2, checkpoint_every=0), ValueError, ["checkpoint_every", "0"]),
    (lambda: deep_linear_peak_bytes(replace(NET, bias=True), 2), ValueError, ["bias"]),
)
