"""Claims about parameters and modules: tracking, counts, and the value of a forward pass."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from accounting.devices import has_dtype
from accounting.models import DeepLinear, parameter_count
from test_claims.oracles.messages import agree, equal
from test_claims.strategies import TORCH_DTYPES, covering, dtypes_among, seeds, shapes, sizes


def exact_dtype(device):
    """fp64, or fp32 where the device has none.

    fp32 is exact up to 2^24, and the sums of products here stay below that.
    """
    return torch.float64 if has_dtype(device.type, torch.float64) else torch.float32


def small_integers(device, seed, *shape):
    """Integers from -3 to 3, sums of whose products are exact on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(exact_dtype(device)).to(device)


def product(a, b):
    """The matrix product by its definition, on the host."""
    terms = a.cpu()[..., None] * b.cpu()
    return terms.sum(-2)


def real_parameter_count(net):
    return sum(parameter.numel() for parameter in net.parameters())


class Holder(nn.Module):
    """Keeps the same values in every way there is, and sums them with its input."""

    def __init__(self, values):
        super().__init__()
        self.tracked = nn.Parameter(values.clone())
        self.frozen = nn.Parameter(values.clone(), requires_grad=False)
        self.plain = values.clone().requires_grad_()
        self.hidden = [nn.Parameter(values.clone())]
        self.listed = nn.ParameterList([values.clone()])
        self.named = nn.ParameterDict({"a": values.clone()})
        self.register_parameter("tied", self.frozen)
        self.dropped = nn.Parameter(values.clone())
        del self.dropped
        self.register_buffer("buffer", values.clone())

    def forward(self, x):
        y = x + self.tracked + self.frozen + self.plain
        return y + self.hidden[0] + self.listed[0] + self.named["a"] + self.buffer


@pytest.mark.claim("module.parameter")
def test_a_parameter_is_a_tensor_that_needs_a_gradient_and_shares_its_data(device):
    for case in covering("module.parameter"):
        x = case.tensor(device)
        parameter = nn.Parameter(x)
        got = parameter.requires_grad, parameter.is_leaf, x.requires_grad
        equal(got, (True, True, False), "needs a gradient, is a leaf, changed its data", case=case)
        got = parameter.data_ptr(), parameter.stride(), parameter.dtype
        equal(got, (x.data_ptr(), x.stride(), x.dtype), "address, strides and dtype", case=case)
        equal(parameter.shape, x.shape, "the shape", case=case)


@pytest.mark.claim("module.parameter")
def test_a_module_lists_loads_and_moves_parameters_but_no_plain_tensors(device):
    holder = Holder(torch.ones(3, device=device))
    net = nn.Sequential(nn.ModuleDict({"in": nn.ModuleList([holder])}))
    # The new parameter replaces the first.
    holder.tracked = nn.Parameter(2 * holder.tracked.detach())
    named = sorted(name for name, _ in net.named_parameters())
    equal(len([*net.parameters()]), len(named), "the number of parameters")
    saved = sorted(net.state_dict())
    should = [f"0.in.0.{name}" for name in ("frozen", "listed.0", "named.a", "tracked")]

    equal(named, should, "names of parameters")
    equal(saved, sorted([*should, "0.in.0.buffer", "0.in.0.tied"]), "names of saved tensors")

    net.load_state_dict({name: 5 * value for name, value in net.state_dict().items()})
    moved = dict.fromkeys(("buffer", "frozen", "listed.0", "named.a", "tied"), 5) | {"tracked": 10}
    net.half()
    equal(holder.state_dict().keys(), moved.keys(), "names of cast tensors")
    for name, value in holder.state_dict().items():
        equal(value, torch.full_like(value, moved[name]), f"{name}, loaded")
        equal(value.dtype, torch.float16, f"the dtype of {name}")
    for x in (holder.plain, holder.hidden[0]):
        equal(x.dtype, torch.float32, "the dtype of a plain tensor")
        equal(x, torch.ones(3), "a plain tensor")


@pytest.mark.claim("module.parameter")
@given(values=st.integers(-8, 8) | st.lists(st.integers(-8, 8), max_size=5))
def test_a_step_trains_what_is_tracked_and_nothing_else(device, values):
    start = torch.tensor(values, dtype=torch.float32, device=device)
    holder = Holder(start)
    holder(torch.zeros_like(start)).sum().backward()
    torch.optim.SGD(holder.parameters(), lr=0.1).step()

    # The loss is the sum, so that each gradient is 1.
    for name, value in holder.state_dict().items():
        trained = name in ("listed.0", "named.a", "tracked")
        equal(value, start - 0.1 if trained else start, f"{name} after a step")

    for untracked in (holder.plain, holder.hidden[0]):
        assert untracked.grad is not None, "a plain tensor got no gradient"
        equal(untracked, start, "a plain tensor after a step")


@pytest.mark.claim("module.cruncher-params")
@given(dim=sizes(most=40) | st.integers(1, 10**5), layers=sizes(most=8))
def test_a_deep_linear_net_has_d_squared_l_plus_d_parameters(workloads, dim, layers):
    model = DeepLinear(dim, layers)
    counted = real_parameter_count(workloads.build(model, device="meta"))
    lecture = dim * dim * layers + dim
    agree("parameters", counted=counted, formula=parameter_count(model), lecture=lecture)


def linear_layers(widths, bias):
    layers = [nn.Linear(m, n, bias=bias, device="meta") for m, n in pairwise(widths)]
    return nn.Sequential(*layers)


@pytest.mark.claim("module.param-formula-notes")
@given(inputs=sizes(), dim=sizes(most=12), layers=sizes(), outputs=sizes(), bias=st.booleans())
@example(inputs=4, dim=8, layers=1, outputs=3, bias=True)
def test_each_layer_with_a_bias_adds_its_outputs(inputs, dim, layers, outputs, bias):
    widths = [inputs, *[dim] * layers, outputs]
    net = DeepLinear(dim, layers, outputs, inputs, bias)
    counted = real_parameter_count(linear_layers(widths, bias))
    # The formula as written counts the outputs once: for the example 59, where there are 67.
    weights = sum(m * n for m, n in pairwise(widths))
    corrected = weights + sum(widths[1:]) if bias else weights

    agree("parameters", counted=counted, corrected=corrected, formula=parameter_count(net))

    assert weights + outputs != counted, "as written the formula gives the same"


class Linear(nn.Module):
    """The lecture's layer, with a bias."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x):
        return x @ self.weight + self.bias


@pytest.mark.claim("module.linear-class")
@given(
    seed=seeds,
    rows=shapes((0, 3), (0, 3)),
    fan_in=sizes(most=20),
    fan_out=sizes(most=20) | st.just(600),
    dtype=dtypes_among(["fp32", "fp64", "bf16", "fp16"]),
)
@example(seed=0, rows=(2, 300), fan_in=20, fan_out=20, dtype="bf16")
@example(seed=0, rows=(3,), fan_in=2, fan_out=600, dtype="fp32")
def test_a_linear_layer_is_x_w_plus_b_and_torchs_holds_the_transpose(
    device, seed, rows, fan_in, fan_out, dtype
):
    """Sums of 20 products and a bias are integers up to 183, which 16 bits hold."""
    dtype = TORCH_DTYPES[dtype]
    x = small_integers(device, seed, *rows, fan_in).to(dtype)
    if dtype == torch.float64:
        # Bits that fp32 does not hold.
        x *= 1 + 2**-40
    weight = small_integers(device, seed + 1, fan_in, fan_out).to(dtype)
    bias = small_integers(device, seed + 2, fan_out).to(dtype)
    should = product(x, weight) + bias.cpu()
    ours = Linear(weight, bias)
    torchs = nn.Linear(fan_in, fan_out, dtype=dtype, device=device)
    torchs.load_state_dict({"weight": weight.T, "bias": bias})

    equal(ours(x), should, "x @ W + b")
    equal(torchs(x), should, "nn.Linear")
    equal(ours.weight.shape, (fan_in, fan_out), "the shape of our weight")
    equal(torchs.weight.shape, (fan_out, fan_in), "the shape of torch's weight")


@pytest.mark.claim("module.forward-through-layers")
@given(
    model=st.builds(DeepLinear, sizes(), sizes(most=4), inputs=sizes()), batch=sizes(), seed=seeds
)
def test_the_output_is_the_product_with_each_matrix_and_the_heads(
    workloads, device, model, batch, seed
):
    net = workloads.build(model, device=device, dtype=exact_dtype(device))
    for index, parameter in enumerate(net.parameters()):
        parameter.data.copy_(small_integers(device, seed + index, *parameter.shape))
    x = small_integers(device, seed + 100, batch, model.inputs)
    layers = nn.Sequential(*net.layers, net.head)
    should = x
    for layer in layers:
        should = product(should, layer.weight.T)

    equal(should.shape, (batch, 1), "the shape")
    equal(net(x), should, "the net's output")
    equal(layers(x), should, "nn.Sequential")
