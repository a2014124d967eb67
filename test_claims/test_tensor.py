"""Claims about tensors: bytes, dtypes, shapes and contents."""

import math
from decimal import Decimal
from functools import partial

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from accounting.layout import broadcast_shape
from accounting.memory import storage_bytes, tensor_bytes
from prooflops.memory import measured_memory
from prooflops.memory.allocator import charged_bytes
from test_claims.oracles.messages import agree, equal
from test_claims.oracles.tensors import OPTIMIZERS, metered, tensor_sum
from test_claims.strategies import (
    SHAPES,
    TORCH_DTYPES,
    covering,
    shapes,
    view_chains,
    with_dtype,
)


def storages(kept, device):
    """Bytes of the storages on `device` under what is kept, each storage once; None has none."""
    tensors = [x for x in kept if x is not None]
    others = [x for x in tensors if not isinstance(x, torch.Tensor)]
    assert not others, f"these are kept, but are no tensors: {others}"

    return tensor_sum(x for x in tensors if x.device.type == device.type)


@pytest.mark.claim("tensor.nbytes-formula")
def test_a_fresh_tensor_takes_its_elements_times_their_bytes(device):
    for case in covering("tensor.nbytes-formula"):
        shape = SHAPES[case.size]
        dtype = TORCH_DTYPES[case.dtype]
        x = torch.empty(shape, dtype=dtype, device=with_dtype(device, dtype))
        storage = x.untyped_storage().nbytes()
        agree("bytes", formula=tensor_bytes(shape, case.dtype), storage=storage, nbytes=x.nbytes)
        large = torch.empty(2**31, *shape, dtype=dtype, device="meta")
        equal(tensor_bytes(large.shape, case.dtype), large.nbytes, "tensor_bytes", case=case)


@pytest.mark.claim("tensor.nbytes-formula")
def test_a_strided_tensor_takes_the_extent_of_its_strides(device):
    for chain in view_chains():
        x = chain.tensor(device)
        alone = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        storage = alone.untyped_storage().nbytes()
        formula = storage_bytes(x.shape, x.stride(), chain.dtype)
        equal(formula, storage, "storage_bytes", chain=chain)


@pytest.mark.claim("tensor.gpt3-ffn")
def test_a_feed_forward_matrix_of_gpt_3_takes_2304_mib():
    counted = torch.empty(12288, 4 * 12288, device="meta").nbytes
    formula = tensor_bytes((12288, 4 * 12288), "fp32")
    agree("bytes", formula=formula, counted=counted, should=2_415_919_104)

    sizes = [f"{Decimal(counted) / unit:.2f}" for unit in (2**20, 1000 * 2**20, 2**30, 10**9)]
    should = ["2304.00", "2.30", "2.25", "2.42"]
    equal(sizes, should, "MiB, thousands of them, GiB and GB")


@pytest.mark.claim("tensor.half-and-quarter", "dtype.fp8-bytes", "dtype.bf16-same-bytes")
def test_16_bit_floats_take_half_the_bytes_8_bit_floats_a_quarter(device):
    for case in covering("tensor.half-and-quarter"):
        dtype = TORCH_DTYPES[case.dtype]
        wide = torch.ones(SHAPES[case.size], device=with_dtype(device, dtype))
        part = 4 // {"fp32": 4, "bf16": 2, "fp16": 2}.get(case.dtype, 1)
        for how, x in {"made": torch.empty_like(wide, dtype=dtype), "cast": wide.to(dtype)}.items():
            smaller = x.untyped_storage().nbytes()
            equal(part * smaller, wide.untyped_storage().nbytes(), "bytes", how=how, case=case)
            equal(tensor_bytes(x.shape, case.dtype), smaller, "tensor_bytes", case=case)


@pytest.mark.claim("tensor.ex-5x10-fp16")
def test_moving_100_bytes_to_a_gpu_charges_a_block_of_512(device):
    here = torch.ones(5, 10, dtype=torch.float16)
    with measured_memory(device) as held:
        there = here.to(device)
    formula = tensor_bytes((5, 10), "fp16")
    for x, place in ((here, "cpu"), (there, device.type)):
        agree("bytes", got=x.untyped_storage().nbytes(), formula=formula, should=100)
        equal(x.device.type, place, "the device")
    equal(held.live_bytes, 100, "bytes requested")
    agree("bytes charged", got=held.charged_live_bytes, formula=charged_bytes(100), should=512)


@pytest.mark.claim("tensor.default-float32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_told_no_dtype_takes_the_default_unless_it_has_one(device, default_dtype, dtype):
    equal(default_dtype, torch.float32, "the default")

    torch.set_default_dtype(dtype)
    with with_dtype(device, dtype):
        made = [getattr(torch, name)(2) for name in "zeros ones empty rand randn eye".split()]
        made += [torch.full((2,), 1.0), torch.linspace(0, 1, 2), torch.arange(2.0)]
        made += [torch.tensor([1, 2.0]), nn.Linear(2, 2).weight, nn.Embedding(2, 2).weight]
        integers = torch.tensor([1]), torch.arange(3), torch.full((2,), 1)
    own = {torch.int64: integers, torch.bool: [torch.tensor([True])]}
    for numpys, torchs in ((np.float64, torch.float64), (np.float32, torch.float32)):
        values = np.ones(2, numpys)
        own[torchs] = torch.from_numpy(values), torch.tensor(values)

    for should, tensors in ((dtype, made), *own.items()):
        for x in tensors:
            equal(x.dtype, should, "the dtype", x=x)


@pytest.mark.claim("tensor.everything-is-tensors")
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "rmsprop", "adamw"])
def test_every_byte_that_training_holds_lies_in_a_tensor(device, optimizer):
    # Each pair of one and several.
    for sizes in ((1, 1, 1), (1, 7, 7), (7, 1, 7), (7, 7, 1)):
        assert_all_in_tensors(metered(device), optimizer, *sizes)


def assert_all_in_tensors(device, optimizer, n, width, hidden):
    """That tensors take all bytes that a step of a small net has allocated."""
    __tracebackhide__ = True

    def trained(mark):
        tokens = torch.arange(n, device=device)
        layers = nn.Linear(width, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, n)
        net = nn.Sequential(nn.Embedding(n, width), *layers).to(device)
        activations = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: activations.append(x) or x, lambda x: x
        ):
            loss = nn.functional.cross_entropy(net(tokens), tokens)
        mark("forward")
        found = {"forward": storages([tokens, loss, *net.parameters(), *activations], device)}
        loss.backward()
        stepper = OPTIMIZERS[optimizer](net.parameters())
        stepper.step()
        activations.clear()
        mark("step")
        state = [value for kept in stepper.state.values() for value in kept.values()]
        gradients = [parameter.grad for parameter in net.parameters()]
        found["step"] = storages([tokens, loss, *net.parameters(), *gradients, *state], device)
        return found

    # A device's libraries allocate their workspaces at first use.
    trained(lambda _: None)
    with measured_memory(device) as held:
        found = trained(held.mark)

    for phase, in_tensors in found.items():
        equal(in_tensors, held.phases[phase].live_bytes, f"bytes in tensors after {phase}")


FIXED = {"constant": (0.5,), "zeros": (), "ones": (), "eye": ()}
DRAWING = (
    "uniform normal trunc_normal xavier_uniform xavier_normal kaiming_uniform kaiming_normal"
    " orthogonal"
)


@pytest.mark.claim("tensor.uninitialised-then-init")
@pytest.mark.parametrize("name", [*FIXED, *DRAWING.split()])
def test_initialisers_fill_the_memory_that_is_there(device, name):
    for case in covering("tensor.uninitialised-then-init"):
        # NaN may be left in memory.
        x = case.tensor(device, values=[math.nan])
        # torch factorises no matrices of 16 bits, and takes long over large ones.
        if name == "orthogonal" and (x.dtype.itemsize == 2 or case.size == "many"):
            continue
        place = x.data_ptr(), x.stride()
        fill = partial(getattr(nn.init, f"{name}_"), x, *FIXED.get(name, ()))
        fill()
        first = x.clone()
        fill()
        assert not first.isnan().any(), f"{name} left {first.isnan().sum()} values unset [{case}]"
        equal((x.data_ptr(), x.stride()), place, "address and strides", name=name, case=case)
        equal(torch.equal(first, x), name in FIXED, "the same values twice", name=name, case=case)


@pytest.mark.claim("tensor.uninitialised-then-init")
def test_allocating_without_values_writes_none(device, sizing, speed):
    wanted = (
        2**22 if device.type == "cpu" else 2 ** round(math.log2(sizing.bytes_moved_in(5e-4) / 4))
    )
    elements = sizing.fitting(wanted, lambda elements: 4 * 2 * elements, least=2**22)
    empty, filled = (partial(make, elements, device=device) for make in (torch.empty, torch.ones))
    speed.assert_slower(
        filled, empty, f"making {elements:,} ones over making as many without values", at_least=4
    )


@pytest.mark.claim("tensor.shapes-match")
def test_the_shape_of_a_result_follows_in_any_dtype_layout_and_size(device):
    for case in covering("tensor.shapes-match"):
        x = case.tensor(device)
        rows, columns = x.shape
        each = x + x, x - x, x * x, x / x, x.maximum(x), torch.where(x > 1, x, x), x.eq(x)
        true = (x != 0).sum().item()
        scalar = x.sum()
        results = {
            x.shape: each,
            (columns,): (x.sum(0),),
            (): (scalar, x.prod(), scalar.sum(), scalar.prod()),
            (2 * rows, columns): (torch.cat([x, x]),),
            (2, rows, columns): (torch.stack([x, x]),),
            (true, 2): (x.nonzero(),),
        }
        equal(x[x != 0].shape, (true,), "the shape of what a mask indexes", case=case)
        for should, of_shape in results.items():
            for result in of_shape:
                equal(result.shape, should, "the shape", case=case)


@pytest.mark.claim("tensor.shapes-match")
@given(shape=shapes((1, 4), (1, 4)), keep=st.booleans(), data=st.data())
def test_a_reduction_lacks_the_dimensions_reduced_or_has_1_there(device, shape, keep, data):
    x = torch.ones(shape, device=device)
    dims = data.draw(npst.valid_tuple_axes(len(shape), min_size=1))
    over = dict.fromkeys(["sum", "mean", "amax", "logsumexp"], dims)
    over |= dict.fromkeys(["prod", "argmax", "all"], dims[0])

    for name, of in over.items():
        should = np.sum(np.ones(shape), of, keepdims=keep).shape

        got = getattr(x, name)(of, keepdim=keep).shape
        equal(got, should, f"the shape of {name} over {of}", keep=keep)


def outcome(function, *operands):
    """The result of a function, None where it refuses the operands."""
    try:
        return function(*operands)
    except (RuntimeError, ValueError):
        return None


# The keys are the numbers of operands.
ELEMENTWISE = {
    2: (torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.eq, torch.maximum),
    3: (torch.addcmul, torch.lerp, torch.clamp, lambda x, y, z: torch.where(x > y, y, z)),
}
# Three shapes that broadcast, and any three.
BROADCASTING = npst.mutually_broadcastable_shapes(
    num_shapes=3, max_dims=4, min_side=0, max_side=4
).map(lambda drawn: drawn.input_shapes)


@pytest.mark.claim("tensor.shapes-match")
@given(each=BROADCASTING | st.tuples(shapes(), shapes(), shapes()))
@example(each=((2, 3), (2,), ()))
@example(each=((2, 3), (3,), (2,)))
def test_an_elementwise_result_has_the_broadcast_shape(device, each):
    """Or is refused, by the formula as by torch."""
    operands = [torch.ones(shape, device=device) for shape in each]
    for count, functions in ELEMENTWISE.items():
        should = outcome(np.broadcast_shapes, *each[:count])
        equal(outcome(broadcast_shape, *each[:count]), should, "broadcast_shape")
        for function in functions:
            result = outcome(function, *operands[:count])
            got = None if result is None else result.shape
            equal(got, should, "the shape", function=function)


@pytest.mark.claim("tensor.shapes-match")
@given(npst.mutually_broadcastable_shapes(signature=np.matmul.signature, min_side=0, max_side=4))
def test_a_product_has_the_shape_of_rows_and_columns(device, drawn):
    x, y = (torch.ones(shape, device=device) for shape in drawn.input_shapes)
    equal((x @ y).shape, drawn.result_shape, "the shape", of=drawn.input_shapes)
