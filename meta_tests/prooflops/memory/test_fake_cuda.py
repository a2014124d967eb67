"""Predictions for CUDA without a GPU, compared with the CPU and with formulas."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from meta_tests.prooflops.memory.predicting import (
    OPTIMIZERS,
    Grouped,
    few,
    unless_torch_fakes_cuda,
    wrapped,
)
from prooflops.memory import TrainingStep, predicted_memory
from prooflops.trace import Trace

pytestmark = unless_torch_fakes_cuda

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
RANDOM_STATE_BYTES_OF_FLASH = 24
# Layers that dispatch the same operators on both devices, and save no boxed numbers, which are on
# the CPU always.
ALIKE = {
    "linear": partial(nn.Linear, 64, 64),
    "layer norm": partial(nn.LayerNorm, 64),
    "softmax": partial(nn.Softmax, -1),
    **{each.__name__: each for each in (nn.GELU, nn.SiLU, nn.Tanh, nn.ReLU)},
}

FUSED = [name for name in OPTIMIZERS if name.endswith(" fused")]


@few
@given(
    layers=st.lists(st.sampled_from(sorted(ALIKE)), min_size=1, max_size=6),
    checkpointed=st.booleans(),
    optimizer=st.sampled_from(["sgd for-loop", "momentum foreach", "adamw foreach", *FUSED]),
    micro_batches=st.integers(1, 3),
)
def test_what_cuda_holds_of_alike_operators_is_measured_on_the_cpu(
    layers, checkpointed, optimizer, micro_batches
):
    given = {"loss": torch.mean, "optimizer": OPTIMIZERS[optimizer], "micro_batches": micro_batches}
    ways = ["residual", "checkpoint" if checkpointed else ""]
    build = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(32, 64),
        *(wrapped(ways[index % 2], ALIKE[name]) for index, name in enumerate(layers)),
    )
    batch = torch.empty(100, 32)
    guess = TrainingStep(build, batch, device="cuda", **given).predict()
    held = TrainingStep(build, batch, **given).measure()
    assert not any("fused" in name for name in guess.unknown)
    tensors = len(list(build().parameters()))
    checkpoints = len(layers) // 2 if checkpointed else 0
    stepped = False
    for name, real in held.phases.items():
        stepped = stepped or name == "step"
        # On CUDA foreach keeps the step counts on the CPU, where random states are always.
        elsewhere = 4 * tensors if stepped and optimizer == "adamw foreach" else 0
        elsewhere += 5056 * checkpoints if "forward" in name else 0
        got = guess.phases[name].live_bytes
        should = real.live_bytes - elsewhere
        assert got == should, (
            f"{name}: {got} bytes on CUDA, but should be {should} "
            f"[{layers=}, {checkpointed=}, {optimizer=}]"
        )
        phase = guess.phases[name]
        assert got <= phase.charged_live_bytes <= phase.reserved_live_bytes, name


def kept_by_attention(
    dtype, kv_heads=4, mask=None, width=16, capability=None, masks=(), value_width=None
):
    """The operators of a step of attention, and the bytes that it keeps beside its operands."""
    value_width = value_width or width
    with predicted_memory("cuda", compute_capability=capability) as held:
        query = torch.empty(2, 4, 10, width, dtype=dtype, device="cuda", requires_grad=True)
        key = torch.empty(2, kv_heads, 10, width, dtype=dtype, device="cuda")
        value = torch.empty(2, kv_heads, 10, value_width, dtype=dtype, device="cuda")
        mask = None if mask is None else torch.empty(*masks, 10, 10, dtype=mask, device="cuda")
        held.mark("operands")
        out = functional.scaled_dot_product_attention(
            query, key, value, mask, enable_gqa=kv_heads != 4
        )
        held.mark("out")
        assert out.shape == (2, 4, 10, value_width)
        ran = []
        with Trace(lambda operation: ran.append(str(operation.operator))):
            out.sum().backward()
    kept = held.phases["out"].live_bytes - held.phases["operands"].live_bytes
    return " ".join(ran), kept


def test_a_root_mean_square_norm_keeps_its_input_and_a_number_for_each_row():
    with predicted_memory("cuda") as held:
        x, weight = (torch.empty(shape, dtype=LOW, device="cuda") for shape in ((4, 8), 8))
        out = functional.rms_norm(x.requires_grad_(), (8,), weight)
        held.mark("forward")
        out.backward(out)
    assert held.phases["forward"].live_bytes == 2 * (4 * 8 + 8 + 4 * 8) + 4 * 4
    assert (x.grad.shape, weight.grad) == (x.shape, None)


@pytest.mark.parametrize(
    ("dtype", "shape", "options", "is_cudnn"),
    [
        (WIDE, (880_801, 1, 1), {}, True),
        (WIDE, (880_802, 1, 1), {}, False),
        (HALF, (4, 3, 5), {}, True),
        (LOW, (4, 3, 5), {}, False),
        (WIDE, (4, 3), {}, False),
        (WIDE, (4, 3, 5), {"training": False}, False),
        (WIDE, (4, 3, 5), {"weight": None}, False),
        (WIDE, (4, 3, 5), {"bias": None}, False),
        (WIDE, (4, 3, 5), {"enabled": False}, False),
    ],
)
def test_cudnn_normalises_the_batches_that_it_accepts(dtype, shape, options, is_cudnn):
    ran = []
    names = ("running_mean", "running_var", "weight", "bias")
    of_weight = LOW if dtype == LOW else WIDE
    with predicted_memory("cuda"), Trace(lambda operation: ran.append(str(operation.operator))):
        given = {name: torch.empty(shape[1], dtype=of_weight, device="cuda") for name in names}
        given |= {"training": True, "enabled": True, **options}
        with torch.backends.cudnn.flags(enabled=given.pop("enabled")):
            functional.batch_norm(torch.empty(shape, dtype=dtype, device="cuda"), **given)
    assert ("aten.cudnn_batch_norm.default" in ran) == is_cudnn, ran


@pytest.mark.parametrize(
    ("call", "dtype", "expected"),
    [
        (lambda x: x @ x, WIDE, LOW),
        (lambda x: x @ x, DOUBLE, DOUBLE),
        (lambda x: x.exp(), DOUBLE, DOUBLE),
        (lambda x: x.softmax(1), LOW, WIDE),
        (lambda x: x.softmax(1, LOW), LOW, LOW),
        (lambda x: torch.tensordot(x, x, 1), LOW, LOW),
        (lambda x: torch.tensordot(x, x.to(LOW), 1), WIDE, WIDE),
    ],
)
def test_autocast_on_an_absent_card_chooses_the_dtypes_of_a_card(call, dtype, expected):
    with predicted_memory("cuda"), torch.autocast("cuda", LOW):
        assert call(torch.empty(8, 8, dtype=dtype, device="cuda")).dtype == expected


FLASH = "flash_attention_backward"
EFFICIENT = "efficient_attention_backward"
CUDNN = "cudnn_attention_backward"
MATH = "bmm"
SEQUENCES, HEADS, QUERIES = 2, 4, 10
ROWS = SEQUENCES * HEADS * QUERIES
# Numbers in fp32 that a kernel keeps beside its result: one for each row, in blocks of 32 for
# memory-efficient attention.
BESIDE_RESULT_BYTES = {
    FLASH: ROWS * 4 + RANDOM_STATE_BYTES_OF_FLASH,
    EFFICIENT: SEQUENCES * HEADS * 32 * 4,
}


@pytest.mark.parametrize(
    ("dtype", "options", "operator", "numbers"),
    [
        (LOW, {}, FLASH, ROWS * 16),
        (LOW, {"kv_heads": 2}, FLASH, ROWS * 16),
        # Operands and result in rows of a multiple of 8.
        (LOW, {"width": 19}, FLASH, 4 * ROWS * 24),
        (LOW, {"width": 257}, MATH, None),
        (WIDE, {}, EFFICIENT, ROWS * 16),
        # A mask is kept as numbers, in rows of a multiple of 8.
        (WIDE, {"mask": torch.bool}, EFFICIENT, ROWS * 16 + 10 * 16),
        (WIDE, {"mask": WIDE}, EFFICIENT, None),
        (WIDE, {"mask": torch.bool, "masks": (2, 4)}, EFFICIENT, ROWS * 16 + ROWS * 16),
        (LOW, {"mask": torch.bool}, EFFICIENT, ROWS * 16 + 10 * 16),
        (HALF, {"capability": (7, 5)}, EFFICIENT, ROWS * 16),
        (LOW, {"capability": (7, 5)}, MATH, None),
        (WIDE, {"kv_heads": 2}, MATH, None),
        (LOW, {"kv_heads": 2, "mask": torch.bool}, MATH, None),
        (DOUBLE, {}, MATH, None),
        (LOW, {"value_width": 8}, EFFICIENT, None),
        (LOW, {"capability": (9, 0), "value_width": 128}, CUDNN, None),
        (LOW, {"capability": (10, 0), "kv_heads": 2, "mask": LOW}, CUDNN, None),
        (LOW, {"capability": (9, 0), "width": 20}, FLASH, None),
        (LOW, {"capability": (9, 0), "value_width": 136}, EFFICIENT, None),
    ],
)
def test_dtype_mask_and_heads_decide_which_attention_takes_them(dtype, options, operator, numbers):
    operators, kept = kept_by_attention(dtype, **options)
    assert operator in operators
    assert numbers is None or kept == numbers * dtype.itemsize + BESIDE_RESULT_BYTES[operator]


def attended(heads, mask):
    """Attention with a mask, which flash attention does not take."""
    return functional.scaled_dot_product_attention(heads, heads, heads, mask)


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss])
def test_a_loss_peaks_as_the_mean_of_its_terms_and_keeps_their_storage(loss):
    batch = torch.empty(64, 512)
    step = partial(TrainingStep, partial(nn.Linear, 512, 512), batch, targets=batch, device="cuda")
    terms = partial(loss, reduction="none")
    mean = step(loss=lambda output, targets: terms(output, targets).mean())
    guess = step(loss=loss).predict(workspaces=False)
    assert guess.unknown == []
    kept = batch.nbytes - batch.element_size()
    assert guess.peak_bytes == mean.predict(workspaces=False).peak_bytes + kept


@pytest.mark.parametrize(
    ("call", "dtype", "shapes", "scratch"),
    [
        # Every second column cannot be read by rows; one row that is repeated can.
        (lambda x, y: x[:, ::2] @ y, WIDE, ((64, 64), (32, 8)), 4 * 64 * 32),
        (lambda x, y: x.expand(64, 64) @ y, WIDE, ((1, 64), (64, 8)), 0),
        # Sixteen bits, wider than 128, are added up in fp32.
        (attended, LOW, ((1, 1, 64, 136), (64, 64)), 4 * 64 * 136),
        (attended, LOW, ((1, 1, 64, 128), (64, 64)), 0),
    ],
)
def test_a_kernel_holds_scratch_for_what_it_cannot_read_or_add_up(call, dtype, shapes, scratch):
    with predicted_memory("cuda", workspaces=False) as held:
        given = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        held.mark("operands")
        _kept = call(*given)
        held.mark("call")
    assert held.phases["call"].peak_by_class.get("temporaries", 0) == scratch
    assert not held.unknown


@pytest.mark.parametrize(
    ("net", "batch"),
    [
        (partial(nn.LayerNorm, 1), torch.zeros(65_535 * 2, 1)),
        (partial(nn.Embedding, 3, 1), torch.zeros(3073, dtype=torch.long)),
    ],
)
def test_scratch_that_depends_on_the_card_or_the_values_is_named(net, batch):
    assert TrainingStep(net, batch, torch.mean, device="cuda").predict().unknown


@pytest.mark.parametrize(
    ("call", "semaphores_bytes"),
    [
        (lambda x: x.sum(0), 8),
        (lambda x: x.sum([]), 4),
        (torch.mean, 4),
        (torch.linalg.vector_norm, 4),
        (lambda x: functional.mse_loss(x, x), 4),
        (lambda x: functional.smooth_l1_loss(x, x), 4),
    ],
)
def test_a_reduction_stages_its_sums_in_fp32_or_wider(call, semaphores_bytes):
    staged = {}
    for dtype in (LOW, WIDE, DOUBLE):
        with predicted_memory("cuda") as held:
            numbers = torch.empty(2048, 256, dtype=dtype, device="cuda")
            held.mark("numbers")
            reduced = call(numbers)
            held.mark("reduced")
        assert reduced.dtype == dtype
        found = held.phases["reduced"].peak_by_class["temporaries"]
        staged[dtype] = found - semaphores_bytes
    assert staged[LOW] == staged[WIDE] == staged[DOUBLE] // 2 > 0


def test_a_row_added_to_batched_products_takes_no_workspace_of_cublaslt():
    with predicted_memory("cuda", compute_capability=(9, 0)) as held:
        row, batch = torch.empty(8, device="cuda"), torch.empty(8, 8, 8, device="cuda")
        torch.baddbmm(row, batch, batch)
        held.mark("product")
    assert held.phases["product"].live_by_class["workspaces"] == 2**25


def test_a_tensor_left_on_the_cpu_is_refused_with_what_to_do():
    loss = lambda y: functional.cross_entropy(y, torch.zeros(4, dtype=torch.long))  # noqa: E731
    step = TrainingStep(nn.Linear(8, 2), torch.empty(4, 8), loss, device="cuda")
    with pytest.raises(RuntimeError, match=r"on another device .* make it with device=x\.device"):
        step.predict()


def test_what_is_known_of_one_device_is_not_taken_for_another():
    devices = []
    for device in ("cuda", "cpu", "cuda"):
        with predicted_memory(device):
            devices.append(torch.empty(7, 11, device="meta").device.type)
    assert devices == ["cuda", "meta", "cuda"], "C++ creates on meta what belongs on the card"


def test_code_may_ask_the_absent_card_for_its_capability():
    with predicted_memory("cuda", compute_capability=(9, 0)):
        assert torch.cuda.get_device_capability() == (9, 0)


def test_grouped_heads_in_fp32_are_composed_as_on_the_cpu():
    build, batch = partial(Grouped, 64, 12 * 16), torch.empty(2, 128, 64)
    step = TrainingStep(build, batch, device="cuda", loss=torch.mean)
    composed = step.predict(workspaces=False)
    held = TrainingStep(build, batch, loss=torch.mean).measure()
    for name in ("second forward", "second backward"):
        got, should = composed.phases[name], held.phases[name]
        assert (got.live_bytes, got.peak_bytes) == (should.live_bytes, should.peak_bytes), name


@pytest.mark.parametrize(
    ("dtype", "width", "kv_heads", "is_masked", "scratch"),
    # 2 · 4 · 256 row sums are kept as well.
    [
        # The gradient of the queries, in rows of 64, in fp32.
        (LOW, 64, 4, False, 4 * 2048 * 64),
        # It, and gradients of keys and values for each of four heads, in bf16.
        (LOW, 64, 1, False, 8 * 2048 * 64),
        # They again and a product of 2048 · 64 numbers, which are larger than the tiles.
        (WIDE, 64, 4, False, 4 * 2048 * 65),
        # A width of 136 is rounded up to 192.
        (LOW, 136, 4, False, 4 * 2048 * 192),
        # For each of 8 heads, 2 · 2 tiles of 128 queries and 64 columns, with a lock.
        (LOW, 128, 4, True, 32 * (4 * 128 * 64 + 16)),
    ],
)
def test_attention_backward_holds_scratch_beside_its_gradients(
    dtype, width, kv_heads, is_masked, scratch
):
    with predicted_memory("cuda", compute_capability=(8, 0), workspaces=False) as held:
        # Tokens before heads in memory, as layers have them: then nothing is copied.
        options = {"dtype": dtype, "device": "cuda"}
        numbers = (4, kv_heads, kv_heads)
        heads = [torch.empty(2, 256, each, width, **options).transpose(1, 2) for each in numbers]
        mask = torch.empty(256, 256, **options) if is_masked else None
        leaves = [head.requires_grad_() for head in heads]
        out = functional.scaled_dot_product_attention(*leaves, mask, enable_gqa=kv_heads < 4)
        gradient = torch.empty_like(out)
        held.mark("forward")
        out.backward(gradient)
        held.mark("backward")
    found = held.phases["backward"].peak_by_class
    assert found["temporaries"] == 4 * 2048 + scratch, found
