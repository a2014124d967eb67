"""The byte formulas beside the claims: tensors and storages, optimizer state, KV cache; and bad input."""

import dataclasses
import inspect
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import measured, memory
from accounting.models import Transformer
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import memory as tensors
from test_claims.strategies import TORCH_DTYPES, dtypes, dtypes_among, shapes, sizes

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


def optimizer_class(row):
    """The class that a row is about; the test is skipped where it is absent."""
    module, _, name = row.class_name.rpartition(".")
    module = pytest.importorskip(module or "torch.optim")
    return getattr(module, name, None) or pytest.skip(f"{module.__name__} {module.__version__} has no {name}")


def take_step(stepper, parameters):
    """A step on gradients of w · (parameters - 1)², sparse ones or by a closure where the optimizer needs that."""

    def loss():
        value = 0
        for p in parameters:
            weights = torch.linspace(1, 2, p.numel()).reshape(p.shape).to(p.dtype)
            p.grad = 2 * weights * (p.detach() - 1)
            value += (weights * (p.detach() - 1) ** 2).sum()
        return value

    loss()
    if isinstance(stepper, torch.optim.SparseAdam):
        for p in parameters:
            p.grad = p.grad.to_sparse()
    stepper.step(*[loss] * isinstance(stepper, torch.optim.LBFGS))


def held_bytes(stepper):
    """Bytes of the tensors in an optimizer's state, those in its lists too, each storage once."""
    values = [value for state in stepper.state.values() for value in state.values()]
    each = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return tensors.tensor_sum(one for one in each if isinstance(one, torch.Tensor))


# The shapes that an optimizer takes, where not any; bitsandbytes keeps tensors of 4,096 elements and more in 8 bits.
some_shapes, large = st.lists(shapes(size=(1, 6)), min_size=1, max_size=3), st.tuples(sizes(55, 70), sizes(60, 75))
matrices = st.lists(st.tuples(sizes(1, 7), sizes(1, 9)), min_size=1, max_size=3)
TAKEN = {"muon": matrices, "sparse-adam": matrices, "adafactor": some_shapes, "lbfgs": some_shapes}
TAKEN |= dict.fromkeys(("adam-8bit", "lion-8bit"), st.lists(large, min_size=1, max_size=3))
IMPLEMENTATIONS = ("foreach", "fused", "maximize")
# A history that fills within two steps, none of whose iterations ends early.
SHORT = {"lr": 0.01, "max_iter": 3, "max_eval": 9, "history_size": 4, "tolerance_grad": 0, "tolerance_change": 0}


@pytest.mark.parametrize("name", memory.OPTIMIZERS)
@settings(max_examples=max(3, settings.default.max_examples // 10))
@given(data=st.data(), dtype=dtypes_among(["fp32", "bf16"]), implementation=st.sampled_from(IMPLEMENTATIONS))
def test_state_appears_when_the_optimizer_allocates_it_under_the_names_it_has_there(name, data, dtype, implementation):
    row = memory.OPTIMIZERS[name]
    kind = optimizer_class(row)
    if row.history:  # bf16 rounds curvature away
        row, dtype = dataclasses.replace(row, options=SHORT, history=SHORT["history_size"]), "fp32"
    options = dict(row.options)
    if implementation in inspect.signature(kind).parameters:
        options[implementation] = data.draw(st.booleans())
    tensor_shapes = data.draw(TAKEN.get(name, st.lists(shapes(size=(0, 6)), min_size=1, max_size=4)))
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=TORCH_DTYPES[dtype])) for shape in tensor_shapes]
    stepper = kind(parameters, **options)
    for steps in range(3):
        got = held_bytes(stepper)
        formula = memory.optimizer_state_bytes(tensor_shapes, row, dtype, steps=steps)
        assert got == formula, f"state is {got} bytes, but should be {formula} [{name}, {steps=}, {tensor_shapes}]"
        take_step(stepper, parameters)
    full = memory.optimizer_state_bytes(tensor_shapes, row, dtype)
    assert held_bytes(stepper) == full, f"two steps should fill {full} bytes [{name}, {tensor_shapes}]"
    names = {key for key, value in stepper.state[parameters[0]].items() if isinstance(value, torch.Tensor)}
    own = row.factored if row.factored and parameters[0].dim() > 1 else row.buffers
    if not row.history and not row.block:  # which keep other things besides
        assert names == {*own, *row.scalars}, f"{name} keeps {names}"


@pytest.mark.parametrize("name", memory.OPTIMIZERS)
def test_scalars_are_on_the_cpu_unless_capturable_or_asgds(name):
    row = memory.OPTIMIZERS[name]
    kind, parameter = optimizer_class(row), torch.nn.Parameter(torch.zeros(3, 5, device="meta"))
    for option in {None, "capturable"} & {None, *inspect.signature(kind).parameters}:
        stepper = kind([parameter], **row.options, **({option: True} if option else {}))
        parameter.grad = torch.zeros_like(parameter)
        with suppress(Exception):  # state is made before what the meta device cannot do
            stepper.step()
        places = {stepper.state[parameter][key].device.type for key in row.scalars}
        should = {"meta" if option or name == "asgd" else "cpu"} if row.scalars else set()
        assert places == should, f"{name} has its scalars on {places}, but should on {should} [{option=}]"


# What bitsandbytes 0.50.2 kept after two steps of parameters of these shapes, fp32 or bf16.
KEPT_IN_8_BITS = [
    ([(64, 64)], "adam-8bit", 2 * (4096 + 16 * 4 + 1024)),
    ([(50, 100), (64, 100)], "adam-8bit", 2 * (11_400 + (20 + 25) * 4 + 1024)),
    ([(4095,), (256, 17), (3,)], "adam-8bit", 2 * (4098 * 4 + 4352 + 17 * 4 + 1024)),
    ([(4095,), (256, 17), (3,)], "lion-8bit", 4098 * 4 + 4352 + 17 * 4 + 1024),
]


@pytest.mark.parametrize(("tensor_shapes", "name", "held"), KEPT_IN_8_BITS)
def test_eight_bits_take_codes_scales_and_a_table_a_buffer(tensor_shapes, name, held):
    got = memory.optimizer_state_bytes(tensor_shapes, name, "bf16")
    assert got == held, f"{got} bytes, but bitsandbytes kept {held} [{tensor_shapes}, {name}]"


def test_the_defaults_of_lbfgs_are_torchs():
    defaults = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))]).defaults
    got, should = memory.OPTIMIZERS["lbfgs"], (defaults["max_iter"], defaults["history_size"])
    assert (got.options["max_iter"], got.history) == should, f"{got}, but torch has {should}"


@given(n=st.integers(1, 10**6), name=st.sampled_from(sorted({*memory.OPTIMIZERS} - {"adafactor"})))
def test_a_number_of_parameters_keeps_what_one_tensor_of_them_keeps_but_scalars_and_tables(n, name):
    row = memory.OPTIMIZERS[name]
    n += memory.LEAST_IN_8_BITS * bool(row.block)
    beside = memory.STEP_BYTES * (len(row.scalars) + bool(row.history) * (2 * row.history + 1))
    beside += memory.TABLE_BYTES * len(row.buffers) * bool(row.block)
    got, whole = memory.optimizer_state_bytes(n, row), memory.optimizer_state_bytes([(n, 1)], row)
    assert got + beside == whole, f"{n} parameters keep {got} bytes, one tensor of them {whole} [{name}]"


def test_each_recipe_keeps_parameters_gradients_state_and_master_in_its_dtypes():
    kept = {name: (each.parameters, each.gradients, each.state, each.master) for name, each in memory.RECIPES.items()}
    assert kept == {
        "fp32": ("fp32", "fp32", "fp32", None),
        "bf16": ("bf16", "bf16", "bf16", None),
        "bf16-fp32-state": ("bf16", "bf16", "fp32", None),
        "bf16-fp32-master": ("bf16", "bf16", "fp32", "fp32"),
        "bf16-fp32-gradients-master": ("bf16", "fp32", "fp32", "fp32"),
    }, f"the recipes keep {kept}"


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
    (lambda: memory.Recipe("fp32", "fp32", "fp31"), ValueError, ["fp31", "fp32"]),
    (lambda: memory.training_bytes(10, -5), ValueError, ["activations", "-5"]),
    (lambda: memory.optimizer_step_peak_bytes([3], "triton"), ValueError, ["implementation", "triton", "foreach"]),
    (lambda: memory.optimizer_step_peak_bytes([3, -1]), ValueError, ["sizes", "-1"]),
    (lambda: memory.kv_cache_bytes(2, 1, -8, 1, 4), ValueError, ["tokens", "-8"]),
)
