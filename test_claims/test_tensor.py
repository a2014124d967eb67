"""Claims about tensors: bytes, dtypes, shapes and contents."""

import itertools
import math
from decimal import Decimal

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from accounting.allocator import charged_bytes
from accounting.layout import broadcast_shape
from accounting.measured import memory
from accounting.memory import storage_bytes, tensor_bytes
from test_claims.oracles.tensors import OPTIMIZERS, metered
from test_claims.strategies import TORCH_DTYPES, dtypes, shapes, sizes, view_chains, with_dtype, with_each_operation

broadcastable = npst.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4)


def storages(kept: list[object], device: torch.device) -> int:
    """Bytes of the storages on `device` under the tensors kept, each storage once; None counts nothing."""
    others = [x for x in kept if x is not None and not isinstance(x, torch.Tensor)]
    assert not others, f"these are kept, but are no tensors: {others}"
    there = [x.untyped_storage() for x in kept if x is not None and x.device.type == device.type]
    return sum({storage.data_ptr(): storage.nbytes() for storage in there}.values())


@pytest.mark.claim("tensor.nbytes-formula")
@given(shape=shapes(), dtype=dtypes)
def test_a_fresh_tensor_takes_its_elements_times_their_bytes(device, shape, dtype):
    x = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device)
    formula, storage = tensor_bytes(shape, dtype), x.untyped_storage().nbytes()
    assert formula == storage, f"tensor_bytes={formula}, but should be {storage} [{shape=}, {dtype=}]"
    assert x.nbytes == storage, f"nbytes={x.nbytes}, but should be {storage} [{shape=}, {dtype=}]"


@pytest.mark.claim("tensor.nbytes-formula")
def test_the_allocator_is_asked_for_exactly_the_bytes_of_the_values(device):
    shape, kept = (3, 5, 7), []
    with memory(metered(device)) as held:
        for name, dtype in TORCH_DTYPES.items():
            kept.append(torch.empty(shape, dtype=dtype, device=metered(device)))
            held.mark(name)
    for name, phase in held.phases.items():
        formula = tensor_bytes(shape, name)
        assert formula == phase.allocated_bytes, f"{formula=}, but should be {phase.allocated_bytes} [{name}]"


@pytest.mark.claim("tensor.nbytes-formula")
def test_views_have_other_bytes_than_their_storage(device):
    expanded = torch.zeros(1, device=device).expand(1000)
    sliced = torch.zeros(4, 8, device=device)[0]
    for x, values, storage in ((expanded, 4000, 4), (sliced, 32, 128)):
        assert tensor_bytes(x.shape) == x.nbytes == values, f"nbytes={x.nbytes}, but should be {values} [{x.shape}]"
        got = x.untyped_storage().nbytes()
        assert got == storage, f"storage={got} bytes, but should be {storage} [{x.shape}]"


@pytest.mark.claim("tensor.nbytes-formula")
@given(chain=view_chains())
@with_each_operation
def test_a_strided_tensor_takes_the_extent_of_its_strides(device, chain):
    x = chain.tensor(device)
    alone = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    formula, storage = storage_bytes(x.shape, x.stride(), "int64"), alone.untyped_storage().nbytes()
    assert formula == storage, f"storage_bytes={formula}, but should be {storage} [{chain!r}]"


@pytest.mark.claim("tensor.example-4x8")
def test_a_4x8_tensor_takes_128_bytes(device):
    x = torch.zeros(4, 8, device=device)
    counted = (x.numel(), x.element_size(), x.untyped_storage().nbytes())
    assert counted == (32, 4, 128), f"elements, their bytes and all bytes are {counted}, but should be (32, 4, 128)"
    assert tensor_bytes((4, 8)) == x.nbytes, f"tensor_bytes={tensor_bytes((4, 8))}, but should be {x.nbytes}"


@pytest.mark.claim("tensor.gpt3-ffn")
def test_a_feed_forward_matrix_of_gpt_3_takes_2304_mib_which_are_2_25_gib_and_2_42_gb():
    counted = torch.empty(12288, 4 * 12288, device="meta").nbytes
    formula = tensor_bytes((12288, 4 * 12288), "fp32")
    assert formula == counted == 2_415_919_104, f"tensor_bytes={formula}, but should be {counted}"
    sizes = [f"{Decimal(counted) / unit:.2f}" for unit in (2**20, 1000 * 2**20, 2**30, 10**9)]
    should = ["2304.00", "2.30", "2.25", "2.42"]
    assert sizes == should, f"MiB, thousands of them, GiB and GB are {sizes}, but should be {should}"


@pytest.mark.claim("tensor.half-and-quarter", "dtype.fp8-bytes", "dtype.bf16-same-bytes")
@given(shape=shapes())
@example(shape=(1000,))
def test_16_bit_floats_take_half_and_8_bit_floats_a_quarter_of_the_bytes_of_fp32(device, shape):
    fp32 = torch.empty(shape, dtype=torch.float32, device=device).untyped_storage().nbytes()
    for dtype, size in (("fp16", 2), ("bf16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)):
        there = with_dtype(device, dtype)
        smaller = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=there).untyped_storage().nbytes()
        assert 4 // size * smaller == fp32, f"{dtype} takes {smaller} bytes of fp32's {fp32} [{shape=}]"
        formula, should = tensor_bytes(shape, dtype), size * math.prod(shape)
        assert formula == smaller == should, f"tensor_bytes={formula}, {smaller=}, not {should} [{shape=}, {dtype=}]"


@pytest.mark.claim("tensor.ex-5x10-fp16")
def test_moving_100_bytes_to_a_gpu_charges_a_block_of_512_and_frees_nothing_here(device):
    here = torch.ones(5, 10, dtype=torch.float16)
    with memory(device) as held:
        there = here.to(device)
    for x, place in ((here, "cpu"), (there, device.type)):
        got, formula = x.untyped_storage().nbytes(), tensor_bytes((5, 10), "fp16")
        assert got == formula == 100, f"{got} bytes on {place} and by formula {formula}, but should be 100"
        assert x.device.type == place, f"the values are on {x.device}, but should be on {place}"
    formula = charged_bytes(100)
    assert held.live_bytes == 100, f"requested {held.live_bytes} bytes, but should 100"
    assert held.charged_live_bytes == formula == 512, f"charged {held.charged_live_bytes}, but should be {formula}"


@pytest.mark.claim("tensor.default-float32")
def test_factories_that_are_told_no_dtype_make_float32(device):
    made = {
        **{name: getattr(torch, name)(2, device=device) for name in ("zeros", "ones", "empty", "rand", "randn")},
        "full(1.0)": torch.full((2,), 1.0, device=device),
        "linspace": torch.linspace(0, 1, 2, device=device),
        "eye": torch.eye(2, device=device),
        "tensor([1.0])": torch.tensor([1.0], device=device),
        "nn.Linear": nn.Linear(2, 2, device=device).weight,
        "nn.Embedding": nn.Embedding(2, 2, device=device).weight,
    }
    for name, x in made.items():
        assert x.dtype == torch.float32, f"{name} made {x.dtype}, but should make torch.float32"


@pytest.mark.claim("tensor.default-float32")
def test_integers_booleans_and_numpy_arrays_keep_a_dtype_of_their_own_and_the_default_can_be_set(default_dtype):
    assert default_dtype == torch.float32, f"the default was {default_dtype}, but should be torch.float32"
    torch.set_default_dtype(torch.bfloat16)
    for made, dtype in (
        (torch.zeros(2), torch.bfloat16),
        (torch.tensor([1]), torch.int64),
        (torch.arange(3), torch.int64),
        (torch.full((2,), 1), torch.int64),
        (torch.tensor([True]), torch.bool),
        (torch.from_numpy(np.ones(2)), torch.float64),
        (torch.tensor(np.ones(2)), torch.float64),
    ):
        assert made.dtype == dtype, f"{made!r} is {made.dtype}, but should be {dtype}"


few = st.sampled_from([1, 7])


@pytest.mark.claim("tensor.everything-is-tensors")
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "rmsprop", "adamw"])
@given(n=few, width=few, hidden=few)
def test_every_byte_that_training_holds_lies_in_a_tensor(device, optimizer, n, width, hidden):
    device = metered(device)

    def trained(mark):
        tokens = torch.arange(n, device=device)
        layers = nn.Linear(width, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, n)
        net = nn.Sequential(nn.Embedding(n, width), *layers).to(device)
        activations: list[object] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: activations.append(x) or x, lambda x: x):
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

    trained(lambda _: None)  # a device's libraries take their workspaces at first use
    with memory(device) as held:
        found = trained(held.mark)
    for phase, in_tensors in found.items():
        live = held.phases[phase].live_bytes
        assert in_tensors == live, f"tensors hold {in_tensors} bytes after {phase}, but {live} are held [{optimizer}]"


@pytest.mark.claim("tensor.uninitialised-then-init")
@given(shape=shapes((2, 2), (1, 16)))
def test_initialisers_fill_the_memory_that_is_there(device, shape):
    initialisers = {
        "constant_": (0.5,), "zeros_": (), "ones_": (), "eye_": (), "uniform_": (), "normal_": (), "trunc_normal_": (),
        "xavier_uniform_": (), "xavier_normal_": (), "kaiming_uniform_": (), "kaiming_normal_": (), "orthogonal_": (),
    }  # fmt: skip
    for name, arguments in initialisers.items():
        x = torch.empty(shape, device=device)
        x.fill_(float("nan"))  # as uninitialised memory may
        place = x.data_ptr()
        getattr(nn.init, name)(x, *arguments)
        assert x.data_ptr() == place, f"{name} moved the tensor"
        assert not x.isnan().any(), f"{name} left {x.isnan().sum()} of {x.numel()} values unset"


@pytest.mark.claim("tensor.shapes-match")
@given(drawn=broadcastable)
def test_the_shape_of_an_elementwise_result_is_the_broadcast_of_its_operands(device, drawn):
    first, second = drawn.input_shapes
    result = tuple((torch.ones(first, device=device) + torch.ones(second, device=device)).shape)
    formula = broadcast_shape(first, second)
    assert formula == result, f"broadcast_shape={formula}, but should be {result} [{first=}, {second=}]"


@pytest.mark.claim("tensor.shapes-match")
@given(batch=shapes((0, 2), (1, 3)), m=sizes(), k=sizes(), n=sizes())
def test_the_shape_of_a_product_or_a_reduction_follows_from_the_operands(device, batch, m, k, n):
    shape = (*batch, m, k)
    x, y = torch.rand(shape, device=device), torch.rand(*batch, k, n, device=device)
    assert (x @ y).shape == (*batch, m, n), f"{shape} by {y.shape} gives {(x @ y).shape}"
    for name, dim in itertools.product(("sum", "mean", "amax"), range(len(shape))):
        got, should = tuple(getattr(x, name)(dim).shape), shape[:dim] + shape[dim + 1 :]
        assert got == should, f"{name} of {shape} over {dim=} gives {got}, but should give {should}"


@pytest.mark.claim("tensor.shapes-match")
@given(values=st.lists(st.booleans(), min_size=1, max_size=9))
def test_how_many_values_are_true_decides_the_shape_of_nonzero_and_of_a_mask(device, values):
    mask = torch.tensor(values, device=device)
    found = mask.nonzero().shape, torch.ones(len(values), device=device)[mask].shape
    assert found == ((sum(values), 1), (sum(values),)), f"of {values} nonzero and a mask have the shapes {found}"


@pytest.mark.claim("tensor.shapes-match")
@given(m=sizes(), k=sizes(), keep=st.booleans())
def test_vectors_lose_their_dimension_in_a_product_and_reductions_keep_it_if_told(device, m, k, keep):
    x, y = torch.rand(m, k, device=device), torch.rand(k, device=device)
    found = (x @ y).shape, (y @ x.T).shape, (y @ y).shape, x.sum(1, keepdim=keep).shape, x.sum((0, 1)).shape
    assert found == ((m,), (m,), (), (m, 1)[: 1 + keep], ()), f"shapes are {found} [{m=}, {k=}, {keep=}]"


@pytest.mark.claim("tensor.shapes-match")
@given(first=shapes(), second=shapes())
@example(first=(2, 3), second=(2,))
@example(first=(2, 3), second=(3,))
def test_shapes_that_do_not_match_are_refused_by_the_formula_exactly_when_torch_refuses_them(device, first, second):
    def refused(result, error):
        try:
            result()
        except error:
            return True
        return False

    torchs = refused(lambda: torch.ones(first, device=device) * torch.ones(second, device=device), RuntimeError)
    formulas = refused(lambda: broadcast_shape(first, second), ValueError)
    assert formulas == torchs, f"broadcast_shape refuses={formulas}, but torch refuses={torchs} [{first=}, {second=}]"
