"""The byte formulas beside the claims: storages, activations, checkpointing, KV cache, allocator, clear errors."""

import os
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from accounting import allocator, measured, memory
from accounting.activations import (
    ATTENTION,
    DTYPES,
    RANDOM_STATE_BYTES,
    activation_bytes,
    deep_linear_peak_bytes,
    recomputed_bytes,
    saved_tensors,
)
from accounting.models import GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B, DeepLinear, Transformer, parameter_count
from meta_tests.accounting.older_torch import activation_bytes_here, narrower_norm_bytes
from test_claims.oracles import memory as tensors
from test_claims.strategies import TORCH_DTYPES, dtypes, shapes, sizes

MIB = 2**20

# ---- tensors and storages --------------------------------------------------------------------------------------------


@given(shape=shapes(), dtype=dtypes)
def test_tensor_bytes_are_those_of_a_real_tensor(shape, dtype):
    got, real = memory.tensor_bytes(shape, dtype), torch.empty(shape, dtype=TORCH_DTYPES[dtype]).nbytes
    assert got == real, f"tensor_bytes={got}, but should be {real} [{shape=}, {dtype=}]"


@given(dims=st.lists(st.tuples(sizes(0, 5), sizes(0, 7)), max_size=4), dtype=dtypes)
def test_storage_bytes_are_what_torch_allocates_for_these_strides(dims, dtype):
    shape, strides = [size for size, _ in dims], [stride for _, stride in dims]
    real = torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[dtype]).untyped_storage().nbytes()
    got = memory.storage_bytes(shape, strides, dtype)
    assert got == real, f"storage_bytes={got}, but should be {real} [{shape=}, {strides=}, {dtype=}]"


def test_an_expanded_tensor_has_more_bytes_than_its_storage_and_a_slice_fewer():
    expanded, row = torch.zeros(1).expand(1000), torch.zeros(4, 8)[3]
    assert memory.tensor_bytes((1000,)) == expanded.nbytes == 4000
    assert memory.storage_bytes((1000,), (0,)) == expanded.untyped_storage().nbytes() == 4
    assert memory.tensor_bytes((8,)) == row.nbytes == 32
    assert memory.storage_bytes((8,), (1,), offset=24) == row.untyped_storage().nbytes() == 128


@pytest.mark.parametrize(("dtype", "elements", "packed"), [("fp4_e2m1", 3, 2), ("int4", 8, 4), ("tf32", 2, 8)])
def test_formats_below_a_byte_are_packed_and_tf32_is_stored_in_four(dtype, elements, packed):
    got = memory.element_bytes(elements, dtype)
    assert got == packed, f"element_bytes={got}, but should be {packed} [{elements=}, {dtype=}]"


# ---- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", memory.OPTIMIZERS)
def test_state_appears_when_torch_allocates_it_under_the_names_torch_gives_it(optimizer):
    parameters = [torch.nn.Parameter(torch.ones(3, 5)), torch.nn.Parameter(torch.ones(2))]
    stepper = tensors.OPTIMIZERS[optimizer](parameters)
    for steps in range(3):
        got = tensors.state_bytes(stepper, step_counts=True)
        formula = memory.optimizer_state_bytes(17, optimizer, tensors=2, steps=steps)
        assert got == formula, f"state is {got} bytes, but should be {formula} [{optimizer}, {steps=}]"
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        stepper.step()
    kept = memory.OPTIMIZERS[optimizer]
    names = {name for name, value in stepper.state[parameters[0]].items() if value is not None}
    assert names == {*kept.buffers, *(["step"] if kept.step else [])}, f"{optimizer} keeps {names}"


def test_a_fused_step_needs_no_scratch():
    sizes_of_tensors = (700, 10_000, 30)
    with measured.memory("cpu") as held:
        parameters = [torch.nn.Parameter(torch.ones(size)) for size in sizes_of_tensors]
        stepper = torch.optim.AdamW(parameters, fused=True)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        stepper.step()
    formula = memory.optimizer_step_peak_bytes(sizes_of_tensors, "fused")
    assert formula <= held.peak_bytes <= formula + 12, f"the peak is {held.peak_bytes}, but should be {formula}"


# ---- activations, as torch runs the nets on the CPU ------------------------------------------------------------------


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


def saved_by(workloads, model, batch, sequence=1, dtype="fp32", attention="flash", autocast=None):
    """Bytes that autograd keeps in a real forward pass, the batch and the parameters excepted."""
    net = workloads.build(model, dtype=TORCH_DTYPES[dtype])
    x = workloads.inputs(model, batch, sequence)
    if x.is_floating_point():
        x = x.to(TORCH_DTYPES[dtype])
    cast = torch.autocast("cpu", TORCH_DTYPES[autocast]) if autocast else nullcontext()
    with cast, sdpa_kernel(SDPBackend.MATH) if attention == "math" else nullcontext():
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("preset", [GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B], ids=["gpt2", "llama3", "mixtral"])
def test_activations_of_published_architectures_are_what_autograd_keeps(workloads, preset, dtype, attention):
    model = replace(workloads.reduced(preset, layers=2, head_dim=4), vocab_size=64)
    got = saved_by(workloads, model, 2, 6, dtype, attention)
    formula = activation_bytes_here(model, 2, 6, dtype, attention)
    assert got == formula, f"{got} bytes are kept, but should be {formula} [{model}, {dtype=}, {attention=}]"


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


def test_the_saved_tensors_sum_to_the_activations_by_part():
    parts = {}
    for tensor in saved_tensors(MIXTRAL_8X7B, 1, 4096, "bf16"):
        parts[tensor.part] = parts.get(tensor.part, 0) + tensor.bytes
    assert set(parts) == {"attention", "router", "mlp", "head"}
    assert sum(parts.values()) == activation_bytes(MIXTRAL_8X7B, 1, 4096, "bf16")


def test_the_random_state_that_a_checkpoint_keeps_has_the_stated_size():
    got = torch.get_rng_state().nbytes
    assert got == RANDOM_STATE_BYTES, f"the CPU's random state has {got} bytes, but should have {RANDOM_STATE_BYTES}"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_kv_cache_holds_the_keys_and_values_of_every_layer(workloads, dtype):
    model = Transformer(vocab_size=9, layers=3, dim=8, heads=4, kv_heads=2, head_dim=6, hidden=12)
    net = workloads.build(model, dtype=TORCH_DTYPES[dtype])
    produced = []
    for layer in net.layers:
        for projection in (layer.attention.key, layer.attention.value):
            projection.register_forward_hook(lambda module, inputs, output: produced.append(output.nbytes))
    net(workloads.inputs(model, 2, 5))
    formula = memory.kv_cache_bytes(3, 2, 5, 2, 6, dtype)
    assert sum(produced) == formula, f"keys and values take {sum(produced)} bytes, but should take {formula}"


# ---- the CUDA caching allocator --------------------------------------------------------------------------------------
# Without a device the rules can only be held against worked cases and torch's own header; a simulation written from
# the same rules would prove nothing. The tests that need CUDA hold them against the allocator itself; not yet run.


@pytest.mark.parametrize(
    ("request_bytes", "charge", "segment"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),  # a small block's worth too much for the small pool
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (21 * MIB // 2, 21 * MIB // 2, 12 * MIB),  # 1.5 MiB remain: split
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB remains: not more than 1 MiB, so the whole segment
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    ],
)
def test_a_request_from_a_fresh_segment_is_charged_as_the_rules_say(request_bytes, charge, segment):
    got = allocator.charged_bytes(request_bytes), allocator.segment_bytes(request_bytes)
    assert got == (charge, segment), f"charge and segment are {got}, but should be {(charge, segment)}"


@pytest.mark.parametrize(
    ("block", "charge"), [(12 * MIB, 12 * MIB), (12 * MIB + 512, 11 * MIB), (40 * MIB, 11 * MIB), (11 * MIB, 11 * MIB)]
)
def test_a_reused_block_is_charged_whole_unless_more_than_a_mebibyte_remains(block, charge):
    got = allocator.charged_bytes(11 * MIB, block)
    assert got == charge, f"charged_bytes={got}, but should be {charge} [{block=}]"
    assert allocator.charged_bytes(11 * MIB, block, expandable_segments=True) == 11 * MIB


@given(request_bytes=st.integers(0, 64 * MIB), spare=st.integers(0, 100_000))
def test_every_charge_lies_between_its_bounds(request_bytes, spare):
    least, greatest = allocator.charge_bounds(request_bytes)
    block = allocator.rounded_bytes(request_bytes) + spare * allocator.BLOCK_BYTES
    for charge in (allocator.charged_bytes(request_bytes), allocator.charged_bytes(request_bytes, block)):
        assert request_bytes <= least <= charge <= greatest, f"{charge=}, but should be in [{least}, {greatest}]"
        assert charge % 512 == 0, f"{charge=}, but should be a multiple of 512"


def test_the_allocators_constants_are_those_of_the_installed_torch():
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    if not header.exists():
        pytest.skip("this torch keeps the constants in a source file that is not installed")
    constants = dict(re.findall(r"constexpr size_t (k\w+) = (\d+);", header.read_text()))
    ours = {
        "kMinBlockSize": allocator.BLOCK_BYTES,
        "kSmallSize": allocator.SMALL_REQUEST_BYTES,
        "kSmallBuffer": allocator.SMALL_SEGMENT_BYTES,
        "kMinLargeAlloc": allocator.LARGE_REQUEST_BYTES,
        "kRoundLarge": allocator.SEGMENT_ROUNDING_BYTES,
    }
    theirs = {name: int(constants[name]) for name in ours}
    assert ours == theirs, f"the constants are {ours}, but should be {theirs}"


@pytest.fixture
def default_allocator(device):
    """The CUDA device with an empty cache, under the default configuration."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        if os.environ.get(variable):
            pytest.skip(f"{variable} is set: another rule than the default applies")
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return device


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("request_bytes", [1, 512, 513, MIB, MIB + 1, 3 * MIB, 10 * MIB, 21 * MIB // 2, 11 * MIB])
def test_memory_allocated_grows_by_the_charge(default_allocator, request_bytes):
    def held():
        return torch.cuda.memory_allocated(default_allocator), torch.cuda.memory_reserved(default_allocator)

    allocated, reserved = held()
    kept = torch.empty(request_bytes, dtype=torch.uint8, device=default_allocator)
    charge, segment = (after - before for after, before in zip(held(), (allocated, reserved), strict=True))
    least, greatest = allocator.charge_bounds(kept.nbytes)
    assert least <= charge <= greatest, f"{charge} bytes are charged, but should be from {least} to {greatest}"
    if segment:
        formula = allocator.charged_bytes(request_bytes), allocator.segment_bytes(request_bytes)
        assert (charge, segment) == formula, f"charge and segment are {charge, segment}, but should be {formula}"


@pytest.mark.needs("cuda")
def test_a_freed_segment_is_handed_out_whole(default_allocator):
    block, request_bytes = 40 * MIB, 40 * MIB - 4096
    torch.empty(block, dtype=torch.uint8, device=default_allocator)
    allocated = torch.cuda.memory_allocated(default_allocator)
    kept = torch.empty(request_bytes, dtype=torch.uint8, device=default_allocator)
    charge = torch.cuda.memory_allocated(default_allocator) - allocated
    formula = allocator.charged_bytes(kept.nbytes, block)
    assert charge == formula == block, f"{charge} bytes are charged, but should be {formula}"


@pytest.mark.needs("cuda")
def test_the_first_product_takes_the_workspace_of_cublas(default_allocator):
    if torch.version.hip:
        pytest.skip("ROCm has workspaces of its own")
    torch._C._cuda_clearCublasWorkspaces()
    x = torch.ones(64, 64, device=default_allocator)
    with measured.memory(default_allocator) as held:
        y = x @ x
    capability = torch.cuda.get_device_capability(default_allocator)
    formula = allocator.cublas_workspace_bytes(capability, os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
    got = held.peak_bytes - y.nbytes
    assert got == formula, f"the workspace has {got} bytes, but should have {formula} [{capability=}]"


@pytest.mark.parametrize(
    ("capability", "config", "workspace"),
    [
        ((8, 0), None, 8_519_680),
        ((8, 9), None, 8_519_680),
        ((9, 0), None, 33_554_432),
        ((10, 0), None, 33_554_432),
        ((12, 0), None, 33_554_432),
        ((8, 0), ":16:8", 131_072),
        ((9, 0), ":4096:2:16:8", 8_519_680),
    ],
)
def test_the_workspace_of_cublas_follows_capability_and_config(capability, config, workspace):
    got = allocator.cublas_workspace_bytes(capability, config)
    assert got == workspace, f"cublas_workspace_bytes={got}, but should be {workspace} [{capability=}, {config=}]"


# ---- errors ----------------------------------------------------------------------------------------------------------

NET = DeepLinear(dim=4, layers=2)
SMALL_TRANSFORMER = Transformer(vocab_size=9, layers=1, dim=4, heads=1, hidden=4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: memory.tensor_bytes((2, -1)), ValueError, ["shape", "-1"]),
        (lambda: memory.tensor_bytes((2, 1.5)), TypeError, ["shape", "1.5"]),
        (lambda: memory.tensor_bytes((2,), "float32"), ValueError, ["float32", "fp32", "bf16"]),
        (lambda: memory.storage_bytes((2,), (1, 1)), ValueError, ["strides", "(1, 1)"]),
        (lambda: memory.storage_bytes((2,), (1,), offset=-1), ValueError, ["offset", "-1"]),
        (lambda: memory.optimizer_state_bytes(10, "adamm"), ValueError, ["optimizer", "adamm", "did you mean 'adam'"]),
        (lambda: memory.optimizer_state_bytes(-1), ValueError, ["parameters", "-1"]),
        (lambda: memory.optimizer_state_bytes(True), TypeError, ["parameters", "True"]),
        (lambda: memory.optimizer_state_bytes(10, tensors=-2), ValueError, ["tensors", "-2"]),
        (lambda: memory.optimizer_state_bytes(10, steps=-1), ValueError, ["steps", "-1"]),
        (lambda: memory.model_state(-1), ValueError, ["parameters", "-1"]),
        (lambda: memory.model_state(10, recipe="bf16-master"), ValueError, ["recipe", "bf16-master", "bf16-fp32-mas"]),
        (lambda: memory.Recipe("fp32", "fp32", "fp31"), ValueError, ["fp31", "fp32"]),
        (lambda: memory.training_bytes(10, -5), ValueError, ["activations", "-5"]),
        (lambda: memory.optimizer_step_peak_bytes([3], "triton"), ValueError, ["implementation", "triton", "foreach"]),
        (lambda: memory.optimizer_step_peak_bytes([3, -1]), ValueError, ["sizes", "-1"]),
        (lambda: memory.kv_cache_bytes(2, 1, -8, 1, 4), ValueError, ["tokens", "-8"]),
        (lambda: activation_bytes(NET, 0), ValueError, ["batch", "0"]),
        (lambda: activation_bytes(NET, 2, dtype="int8"), ValueError, ["dtype", "int8", "bf16"]),
        (lambda: activation_bytes(NET, 2, checkpoint_every=-1), ValueError, ["checkpoint_every", "-1"]),
        (lambda: activation_bytes(NET, 2, micro_batches=0), ValueError, ["micro_batches", "0"]),
        (lambda: activation_bytes(SMALL_TRANSFORMER, 2, 0), ValueError, ["sequence", "0"]),
        (lambda: activation_bytes(SMALL_TRANSFORMER, 2, 3, attention="paged"), ValueError, ["attention", "paged"]),
        (lambda: activation_bytes(SMALL_TRANSFORMER, 2, 3, autocast="bf16"), ValueError, ["autocast", "bf16"]),
        (lambda: recomputed_bytes(NET, 2, checkpoint_every=0), ValueError, ["checkpoint_every", "0"]),
        (lambda: deep_linear_peak_bytes(replace(NET, bias=True), 2), ValueError, ["bias"]),
        (lambda: allocator.rounded_bytes(-1), ValueError, ["request", "-1"]),
        (lambda: allocator.charged_bytes(1000, block=512), ValueError, ["block", "512", "1024"]),
        (lambda: allocator.charged_bytes(10, block=1000), ValueError, ["block", "1000", "512"]),
        (lambda: allocator.cublas_workspace_bytes((9, 0), "32MiB"), ValueError, ["config", "32MiB", ":4096:2:16:8"]),
    ],
)
def test_bad_input_is_named_with_its_value_and_the_valid_ones(call, error, words):
    with pytest.raises(error) as raised:
        call()
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"the error is {str(raised.value)!r}, but should name {missing}"
