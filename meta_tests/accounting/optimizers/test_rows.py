"""Each row of the optimizers is what the optimizer itself keeps."""

import dataclasses
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from accounting import memory, optimizers
from test_claims.oracles import tensors
from test_claims.oracles.messages import equal
from test_claims.strategies import TORCH_DTYPES, dtypes_among, shapes, sizes


def optimizer_class(row):
    """The class that a row is about; the test is skipped where it is absent."""
    module, _, name = row.class_name.rpartition(".")
    module = pytest.importorskip(module or "torch.optim")
    return getattr(module, name, None) or pytest.skip(f"this {module.__name__} has no {name}")


def take_step(stepper, parameters):
    """A step on gradients of w · (parameters - 1)².

    They are sparse, or come by a closure, where the optimizer needs that.
    """

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
    kept = tree_leaves([*stepper.state.values()])
    return tensors.tensor_sum(each for each in kept if isinstance(each, torch.Tensor))


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_a_row_is_found_by_its_name_in_any_case_and_by_its_optimizer(name):
    row = optimizers.OPTIMIZERS[name]
    assert optimizers.optimizer_of(name.upper()) is row
    built = optimizer_class(row)([torch.nn.Parameter(torch.ones(2, 3))], **row.options)
    assert optimizers.optimizer_of(built) is row
    assert optimizers.optimizer_of(type(built)).class_name == row.class_name


# The shapes that an optimizer takes, where not any. bitsandbytes keeps tensors of 4,096 elements
# and more in 8 bits.
some_shapes = st.lists(shapes(size=(1, 6)), min_size=1, max_size=3)
large = st.tuples(sizes(55, 70), sizes(60, 75))
matrices = st.lists(st.tuples(sizes(1, 7), sizes(1, 9)), min_size=1, max_size=3)
TAKEN = {"muon": matrices, "sparse-adam": matrices, "adafactor": some_shapes, "lbfgs": some_shapes}
TAKEN |= dict.fromkeys(("adam-8bit", "lion-8bit"), st.lists(large, min_size=1, max_size=3))
IMPLEMENTATIONS = ("foreach", "fused", "maximize")
# A history that fills within two steps, none of whose iterations ends early.
SHORT = {
    "lr": 0.01,
    "max_iter": 3,
    "max_eval": 9,
    "history_size": 4,
    "tolerance_grad": 0,
    "tolerance_change": 0,
}


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@settings(max_examples=max(3, settings.default.max_examples // 10))
@given(
    data=st.data(),
    dtype=dtypes_among(["fp32", "bf16"]),
    implementation=st.sampled_from(IMPLEMENTATIONS),
)
def test_state_appears_when_it_is_allocated_under_the_optimizers_names(
    name, data, dtype, implementation
):
    row = optimizers.OPTIMIZERS[name]
    kind = optimizer_class(row)
    if row.history:
        row = dataclasses.replace(row, options=SHORT, history=SHORT["history_size"])
        # bf16 rounds curvature away.
        dtype = "fp32"
    options = dict(row.options)
    if implementation in inspect.signature(kind).parameters:
        options[implementation] = data.draw(st.booleans())
    tensor_shapes = data.draw(
        TAKEN.get(name, st.lists(shapes(size=(0, 6)), min_size=1, max_size=4))
    )
    parameters = [
        torch.nn.Parameter(torch.zeros(shape, dtype=TORCH_DTYPES[dtype])) for shape in tensor_shapes
    ]
    stepper = kind(parameters, **options)
    for steps in range(3):
        got = held_bytes(stepper)
        formula = memory.optimizer_state_bytes(tensor_shapes, row, dtype, steps=steps)
        equal(got, formula, "bytes of state", steps=steps)
        take_step(stepper, parameters)
    full = memory.optimizer_state_bytes(tensor_shapes, row, dtype)
    equal(held_bytes(stepper), full, "bytes of the full state")
    names = {
        key
        for key, value in stepper.state[parameters[0]].items()
        if isinstance(value, torch.Tensor)
    }
    own = row.factored if row.factored and parameters[0].dim() > 1 else row.buffers
    # A history, and blocks of 8 bits, keep other things besides.
    if not row.history and not row.block:
        assert names == {*own, *row.scalars}


def test_one_vector_among_matrices_is_refused_where_matrices_alone_have_a_state():
    with pytest.raises(ValueError, match="must be shapes of matrices"):
        memory.optimizer_state_bytes([(2, 3), (4,)], "muon")


# What bitsandbytes 0.50.2 kept after two steps of parameters of these shapes, fp32 or bf16.
KEPT_IN_8_BITS = [
    ([(50, 100), (64, 100)], "adam-8bit", 2 * (11_400 + (20 + 25) * 4 + 1024)),
    ([(4095,), (256, 17), (3,)], "lion-8bit", 4098 * 4 + 4352 + 17 * 4 + 1024),
]


@pytest.mark.parametrize(("tensor_shapes", "name", "held"), KEPT_IN_8_BITS)
def test_eight_bits_take_codes_scales_and_a_table_a_buffer(tensor_shapes, name, held):
    got = memory.optimizer_state_bytes(tensor_shapes, name, "bf16")
    assert got == held
