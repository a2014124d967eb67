"""Predictions for CUDA without a GPU, compared with the CPU where the device does not matter, and with formulas."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import optimizer as optimizers

from accounting import memory, predicted
from accounting.activations import activation_bytes
from accounting.models import GPT2_SMALL, LLAMA3_8B
from accounting.predicted.fake_cuda import can_fake_cuda
from meta_tests.accounting.predicted.predicting import OPTIMIZERS, built, few, nets

has_fused_norm = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="this torch has no fused RMSNorm"
)
FAKED_BY_TORCH = torch.backends.cuda.is_built() and can_fake_cuda()  # a torch for the CPU alone never fakes one
pytestmark = pytest.mark.skipif(FAKED_BY_TORCH, reason="there is a CUDA device, or this torch fakes one itself")

RANDOM_STATE_BYTES_OF_FLASH = 24 if torch.__version__ >= (2, 7) else 16
# Layers that dispatch the same operators on both devices, and save no boxed numbers, which are on the CPU always.
ALIKE = ["linear", "wide", "layernorm", "gelu", "silu", "tanh", "relu", "softmax"]


@few
@given(
    net=nets(ALIKE),
    optimizer=st.sampled_from(["sgd", "momentum foreach", "adamw foreach", "adamw fused"]),
    micro_batches=st.integers(1, 3),
)
def test_what_cuda_holds_of_alike_operators_is_measured_on_the_cpu(net, optimizer, micro_batches):
    given = {"loss": torch.mean, "optimizer": OPTIMIZERS[optimizer], "micro_batches": micro_batches}
    guess = predicted.TrainingStep(net.build, net.batch(), device="cuda", **given).predict()
    held = predicted.TrainingStep(net.build, net.batch(), **given).measure()
    tensors = len(list(net.build().parameters()))
    checkpoints = len(net.layers) // 2 if net.checkpointed else 0
    stepped = False
    for name, real in held.phases.items():
        stepped = stepped or name == "step"
        # On CUDA foreach keeps the step counts on the CPU, where random states are always.
        elsewhere = 4 * tensors if stepped and optimizer == "adamw foreach" else 0
        elsewhere += 5056 * checkpoints if "forward" in name else 0
        got = guess.phases[name].live_bytes
        should = real.live_bytes - elsewhere
        assert got == should, f"{name}: {got} bytes on CUDA, but should be {should} [{net=}, {optimizer=}]"
        low, high = guess.phases[name].charged_live_bytes
        assert got <= low <= high, f"{name}: {got=} {low=} {high=}"


@pytest.mark.parametrize("preset", [GPT2_SMALL, LLAMA3_8B], ids=["gpt2", "llama3"])
def test_activations_in_bf16_on_cuda_differ_from_the_cpu_where_the_kernels_do(workloads, preset):
    if preset is LLAMA3_8B and not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        pytest.skip("this torch has no fused RMSNorm")
    small, batch, sequence = workloads.reduced(preset), 2, 24
    norms, tokens = 2 * small.layers + 1, batch * sequence
    model = workloads.build(small, device="meta", dtype=torch.bfloat16)
    with predicted.memory("cuda") as held:
        net = predicted.fake_copy(model, "cuda")
        ids = torch.empty(batch, sequence, dtype=torch.long, device="cuda")
        held.mark("built")
        logits = net(ids)
        held.mark("forward")
    got = held.phases["forward"].live_bytes - held.phases["built"].live_bytes - logits.nbytes
    should = activation_bytes(small, batch, sequence, "bf16")
    should += small.layers * RANDOM_STATE_BYTES_OF_FLASH
    if preset is GPT2_SMALL:  # mean and deviation in fp32
        should += norms * tokens * 2 * 2
    else:  # on the CPU two copies in fp32, on CUDA the input itself
        should -= norms * tokens * small.dim * (4 + 4 - 2)
    assert got == should, f"{got} bytes are kept on CUDA, but should be {should}"


def step(build, batch, optimizer=None, autocast=None, **options):
    given = {"optimizer": optimizer, "autocast": autocast, "device": "cuda"}
    return predicted.TrainingStep(build, batch, loss=torch.mean, **given).predict(**options)


def test_an_optimizer_left_to_itself_takes_foreach_on_cuda():
    net = partial(nn.Linear, 200, 100)
    peaks = {
        name: step(net, torch.empty(4, 200), optimizer=chosen).phases["second step"].peak_bytes
        for name, chosen in {"itself": torch.optim.AdamW, **OPTIMIZERS}.items()
        if name == "itself" or name.startswith("adamw")
    }
    assert peaks["itself"] == peaks["adamw foreach"] != peaks["adamw for-loop"], f"{peaks}"
    inputs, counts = 4 * 200 * 4, 8  # two step counts, which are on the CPU
    formula = memory.optimizer_step_peak_bytes([20_000, 100], "foreach") + inputs - counts
    assert peaks["itself"] == formula, f"the peak is {peaks['itself']}, but should be {formula}"


def kept_by_attention(dtype, kv_heads=4, mask=None, width=16, of_values=None):
    """The operators of a step of attention, and the bytes that its forward pass keeps beside its operands."""
    with predicted.memory("cuda") as held:
        query = torch.empty(2, 4, 10, width, dtype=dtype, device="cuda", requires_grad=True)
        key = torch.empty(2, kv_heads, 10, width, dtype=dtype, device="cuda")
        value = torch.empty(2, kv_heads, 10, of_values or width, dtype=dtype, device="cuda")
        mask = None if mask is None else torch.empty(10, 10, dtype=mask, device="cuda")
        held.mark("operands")
        out = functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=kv_heads != 4)
        held.mark("out")
        out.sum().backward()
    return " ".join(held.unknown), held.phases["out"].live_bytes - held.phases["operands"].live_bytes


FLASH, EFFICIENT, MATH = "flash_attention_backward", "efficient_attention_backward", "bmm"
ROWS = 2 * 4 * 10  # of queries, of all heads


@pytest.mark.parametrize(
    ("dtype", "options", "operator", "kept"),
    [
        (torch.bfloat16, {}, FLASH, ROWS * 16 * 2 + ROWS * 4 + RANDOM_STATE_BYTES_OF_FLASH),
        (torch.bfloat16, {"kv_heads": 2}, FLASH, ROWS * 16 * 2 + ROWS * 4 + RANDOM_STATE_BYTES_OF_FLASH),
        (torch.bfloat16, {"width": 20}, FLASH, 4 * ROWS * 24 * 2 + ROWS * 4 + RANDOM_STATE_BYTES_OF_FLASH),  # padded
        (torch.bfloat16, {"width": 256}, FLASH, None),
        (torch.bfloat16, {"width": 264}, EFFICIENT, None),
        (torch.bfloat16, {"width": 257}, MATH, None),
        (torch.float32, {}, EFFICIENT, ROWS * 16 * 4 + 2 * 4 * 32 * 4 + 16),
        (torch.float32, {"width": 18}, MATH, None),
        (torch.float32, {"of_values": 18}, MATH, None),
        (torch.float64, {}, MATH, None),
    ],
)
def test_dtype_and_width_of_heads_decide_which_attention_takes_them(dtype, options, operator, kept):
    operators, bytes_kept = kept_by_attention(dtype, **options)
    assert operator in operators, f"{operators}, but should be {operator}"
    assert kept in (None, bytes_kept), f"{bytes_kept} bytes are kept, but should be {kept}"


@pytest.mark.parametrize("options", [{"kv_heads": 2}, {"mask": torch.bool}], ids=str)
def test_attention_whose_kernel_depends_on_the_release_is_refused_unless_chosen(options):
    with pytest.raises(RuntimeError, match="takes another path in each release of torch: use is_causal"):
        kept_by_attention(torch.float32, **options)
    with sdpa_kernel(SDPBackend.MATH):
        assert MATH in kept_by_attention(torch.float32, **options)[0]


def phases_of(function, dtype=torch.bfloat16, **trained):
    """The live bytes and the peaks of a function of rows and weights, and of its backward pass."""
    with predicted.memory("cuda") as held:
        x = torch.ones(100, 10, dtype=dtype, device="cuda", requires_grad=trained.get("x", True))
        weight = torch.ones(10, device="cuda", requires_grad=trained.get("weight", True))
        held.mark("given")
        out = function(x, weight)
        held.mark("out")
        out.sum().backward()
        del out
        held.mark("back")
    return {name: (phase.live_bytes, phase.peak_bytes) for name, phase in held.phases.items()}


def test_dropout_keeps_a_mask_of_bools():
    kept = phases_of(lambda x, _: functional.dropout(x, 0.1))
    assert kept["out"][0] == kept["given"][0] + 2000 + 1000


@has_fused_norm
@pytest.mark.parametrize("trained", [{}, {"x": False}, {"weight": False}], ids=str)
def test_rms_norm_keeps_its_input_and_a_root_per_row_and_makes_the_gradients_that_are_wanted(trained):
    def norm(x, weight):
        return functional.rms_norm(x, (10,), weight if x.dtype == weight.dtype else None)

    kept = phases_of(norm, torch.float32, **trained)
    given, out, roots = kept["given"][0], 100 * 10 * 4, 100 * 4
    gradients = out * trained.get("x", True) + 10 * 4 * trained.get("weight", True)
    assert kept["out"][0] == given + out + roots
    assert kept["back"] == (given + gradients, given + out + roots + gradients + 2 * 4)
    if "x" not in trained:
        for dtype, size, root in ((torch.bfloat16, 2, 4), (torch.float64, 8, 8)):
            kept = phases_of(norm, dtype)
            assert kept["out"][0] == kept["given"][0] + 100 * 10 * size + 100 * root


def test_what_is_modelled_is_named_and_peaks_are_lower_bounds(workloads):
    build = partial(built, workloads, workloads.reduced(LLAMA3_8B), 1, torch.bfloat16)
    tokens = torch.empty(2, 16, dtype=torch.long)
    guess = step(build, tokens, optimizer=torch.optim.AdamW, compute_capability=(9, 0))
    assert "modelled without a GPU" in repr(guess), f"{guess}"
    assert "peak_bytes=≥" in repr(guess), f"{guess}"
    modelled = {"scaled_dot_product_attention", "dropout", "rms_norm", "batch_norm", "optimizer"}
    assert set(guess.choices) == modelled
    assert guess.cublas_workspace_bytes == 32 * 2**20
    assert guess.phases["second step"].peak_bytes_with_scratch is None
    with predicted.memory("cpu") as on_cpu:
        torch.ones(3)
    assert on_cpu.choices == {}
    assert "modelled" not in repr(on_cpu)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_of_cudnn_are_refused(cell):
    with predicted.memory("cuda"):
        layer, x = cell(4, 4, device="cuda"), torch.empty(3, 2, 4, device="cuda")
        with pytest.raises(RuntimeError, match="input on CUDA keeps a workspace whose size only cuDNN knows"):
            layer(x)


def test_what_cannot_be_modelled_is_refused():
    with pytest.raises(RuntimeError, match="autocast on CUDA is predicted only where there is a GPU"):
        step(partial(nn.Linear, 4, 4), torch.empty(3, 4), autocast=torch.bfloat16)
    with pytest.raises(RuntimeError, match="scratch=True measures kernels on 'cuda', and there is none"):
        step(partial(nn.Linear, 4, 4), torch.empty(3, 4), scratch=True)


def test_the_choices_of_cuda_end_with_the_block():
    takes_foreach = list(optimizers._foreach_supported_types)
    with predicted.memory("cuda"):
        torch.empty(3, device="cuda")
    assert takes_foreach == optimizers._foreach_supported_types
    with predicted.memory("cpu") as held:
        functional.dropout(torch.empty(8, requires_grad=True), 0.5)
    assert not any("native_dropout" in name for name in held.unknown)
