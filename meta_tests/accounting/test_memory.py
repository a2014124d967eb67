"""The byte formulas beside the claims: tensors and storages, optimizer state, KV cache; and bad input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import memory
from accounting.models import Transformer, cache_bytes
from meta_tests.accounting.refusals import refuses
from test_claims.strategies import TORCH_DTYPES, dtypes, shapes, sizes

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


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_kv_cache_holds_the_keys_and_values_of_every_layer(workloads, dtype):
    model = Transformer(vocab_size=9, layers=3, dim=8, heads=4, kv_heads=2, head_dim=6, hidden=12)
    net = workloads.build(model, dtype=TORCH_DTYPES[dtype])
    produced = []
    for layer in net.layers:
        for projection in (layer.attention.key, layer.attention.value):
            projection.register_forward_hook(lambda module, inputs, output: produced.append(output.nbytes))
    net(workloads.inputs(model, 2, 5))
    formula = cache_bytes(model, 2, 5, dtype)
    assert sum(produced) == formula, f"keys and values take {sum(produced)} bytes, but should take {formula}"


def test_the_history_of_lbfgs_grows_by_two_buffers_and_two_numbers_an_iteration():
    held = [memory.optimizer_state_bytes([(10,)], "lbfgs", steps=steps) for steps in (0, 1, 2, None)]
    pairs = [19, 39, 100]  # of 20 iterations a step all but the first
    assert held == [0, *(4 * ((2 + 2 * n) * 10 + 2 * n + 1) for n in pairs)]


@pytest.mark.parametrize(("elements", "held"), [(4095, 8 * 4095), (4096, 2 * (4096 + 4 * 16 + 1024))])
def test_tensors_of_4096_elements_and_more_are_kept_in_8_bits(elements, held):
    assert memory.optimizer_state_bytes([(elements,)], "adam-8bit") == held


# ---- errors ----------------------------------------------------------------------------------------------------------


test_bad_input_is_named_with_its_value_and_the_valid_ones = refuses(
    (lambda: memory.tensor_bytes((2, -1)), ValueError, ["shape", "-1"]),
    (lambda: memory.tensor_bytes((2, 1.5)), TypeError, ["shape", "1.5"]),
    (lambda: memory.tensor_bytes((2,), "flaot32"), ValueError, ["flaot32", "fp32", "bf16"]),
    (lambda: memory.storage_bytes((2,), (1, 1)), ValueError, ["strides", "(1, 1)"]),
    (lambda: memory.storage_bytes((2,), (1,), offset=-1), ValueError, ["offset", "-1"]),
    (lambda: memory.optimizer_state_bytes(10, "adamm"), ValueError, ["optimizer", "adamm", "did you mean 'adam'"]),
    (lambda: memory.optimizer_state_bytes(-1), ValueError, ["parameters", "-1"]),
    (lambda: memory.optimizer_state_bytes([(3, -1)]), ValueError, ["parameters[0][1]", "-1"]),
    (lambda: memory.optimizer_state_bytes(9, "adafactor"), ValueError, ["shapes of tensors", "Adafactor", "9"]),
    (lambda: memory.optimizer_state_bytes([(3,)], "muon"), ValueError, ["shapes of matrices", "Muon", "(3,)"]),
    (lambda: memory.optimizer_state_bytes(True), TypeError, ["parameters", "True"]),
    (lambda: memory.optimizer_state_bytes(10, tensors=-2), ValueError, ["tensors", "-2"]),
    (lambda: memory.optimizer_state_bytes(10, steps=-1), ValueError, ["steps", "-1"]),
    (lambda: memory.model_state(-1), ValueError, ["parameters", "-1"]),
    (lambda: memory.model_state(10, recipe="bf16-master"), ValueError, ["recipe", "bf16-master", "bf16-fp32-mas"]),
    (lambda: memory.training_bytes(10, -5), ValueError, ["activations", "-5"]),
    (lambda: memory.optimizer_step_peak_bytes([3], "triton"), ValueError, ["implementation", "triton", "foreach"]),
    (lambda: memory.optimizer_step_peak_bytes([3, -1]), ValueError, ["sizes", "-1"]),
    (
        lambda: memory.optimizer_step_peak_bytes([3], "fused", optimizer="asgd"),
        ValueError,
        ["foreach, for-loop", "fused"],
    ),
    (
        lambda: memory.optimizer_step_peak_bytes([3], optimizer="muon"),
        ValueError,
        ["sgd, momentum", "on record", "muon"],
    ),
)
