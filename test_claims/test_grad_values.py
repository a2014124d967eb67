"""Claims about the values of gradients: examples, shapes and dtypes, derivation by hand."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from test_claims.oracles.messages import agree, at_most, close, equal
from test_claims.strategies import covering, in_fp64, with_dtype


@pytest.mark.claim("grad.quadratic-example")
def test_the_gradient_of_x_squared_plus_3x_at_2_is_7(device):
    x = torch.tensor(2.0, device=device, requires_grad=True)
    (x**2 + 3 * x).backward()
    by_hand = 2 * 2 + 3
    # A parabola's difference is exact.
    by_difference = ((2.5**2 + 3 * 2.5) - (1.5**2 + 3 * 1.5)) / (2.5 - 1.5)
    agree("x.grad", got=x.grad.item(), by_hand=by_hand, by_difference=by_difference, stated=7)


@pytest.mark.claim("grad.linear-mse-example")
def test_the_linear_model_with_target_5_has_gradient_1_2_3(device):
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    w = torch.ones(3, device=device, requires_grad=True)
    loss = 0.5 * (x @ w - 5).pow(2)
    loss.backward()
    equal(loss.item(), 0.5, "the loss")

    by_difference = []
    for by in (1, 2, 3):
        # A weight by ±½: exact.
        above = 0.5 * (1 + by / 2) ** 2
        below = 0.5 * (1 - by / 2) ** 2
        by_difference.append(above - below)
    agree("w.grad", got=w.grad.tolist(), by_difference=by_difference, stated=[1, 2, 3])
    equal(x.grad, None, "the gradient of data")


# A module with its arguments, and the shape of its input.
MODULES = {
    "Linear": (partial(torch.nn.Linear, 3, 4), (2, 3)),
    "Conv1d": (partial(torch.nn.Conv1d, 2, 3, 3), (1, 2, 5)),
    "Conv2d": (partial(torch.nn.Conv2d, 2, 4, 3, groups=2), (1, 2, 5, 5)),
    "Conv3d": (partial(torch.nn.Conv3d, 2, 3, 2), (1, 2, 3, 3, 3)),
    "LayerNorm": (partial(torch.nn.LayerNorm, 4), (2, 4)),
    "RMSNorm": (partial(torch.nn.RMSNorm, 4), (2, 4)),
    "GroupNorm": (partial(torch.nn.GroupNorm, 2, 4), (2, 4, 3)),
    "PReLU": (partial(torch.nn.PReLU, 2), (3, 2)),
    "Embedding": (partial(torch.nn.Embedding, 3, 2, sparse=True), (4,)),
    "BatchNorm1d": (partial(torch.nn.BatchNorm1d, 3), (4, 3)),
    "BatchNorm2d": (partial(torch.nn.BatchNorm2d, 3), (4, 3, 2, 2)),
    "ConvTranspose1d": (partial(torch.nn.ConvTranspose1d, 2, 3, 3), (1, 2, 5)),
    "attention": (partial(torch.nn.TransformerEncoderLayer, 4, 2, 8), (3, 2, 4)),
}
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.claim("grad.same-shape")
@pytest.mark.parametrize(
    ("dtype", "low"),
    [*((dtype, None) for dtype in FLOATS), *((torch.float32, low) for low in FLOATS[2:])],
)
@pytest.mark.parametrize("name", MODULES)
def test_a_gradient_has_the_shape_and_dtype_of_its_parameter(device, name, dtype, low):
    device = with_dtype(device, dtype)
    make, shape = MODULES[name]
    module = make().to(device, dtype)
    x = torch.rand(shape, device=device, dtype=dtype)
    sparse = name == "Embedding"
    if sparse:
        x = x.long()
    with torch.autocast(device.type, low, enabled=low is not None):
        y = module(x)
    y.float().square().sum().backward()
    for of, parameter in module.named_parameters():
        gradient = parameter.grad
        got = gradient.shape, gradient.dtype, gradient.is_sparse
        should = parameter.shape, dtype, sparse
        equal(got, should, f"shape, dtype and layout of {of}.grad")


def in_place(x):
    return x.clone().mul_(3).add_(x)


def classes(x):
    return torch.arange(len(x), device=x.device) % x.shape[1]


# Operations on a matrix beside the kernels of `oracles.training_kernels`, those of torch by name.
ELEMENTWISE = ("exp", "softplus", "elu")
BY_ROWS = ("cumsum", "logsumexp", "amax", "var")
OPERATIONS = {name: getattr(torch, name, getattr(functional, name, None)) for name in ELEMENTWISE}
OPERATIONS |= {name: partial(getattr(torch, name), dim=-1) for name in BY_ROWS}
OPERATIONS |= {
    "in place": in_place,
    "sort": lambda x: x.sort(dim=-1).values,
    "max": lambda x: x.max(dim=-1).values,
    "cat": lambda x: torch.cat([x, 2 * x]),
    "stack": lambda x: torch.stack([x, 2 * x]),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0),
    "sqrt": lambda x: (1 + x * x).sqrt(),
    "log": lambda x: (1 + x * x).log(),
    "pow": lambda x: x.pow(3),
    "index": lambda x: x[classes(x)],
    "index_select": lambda x: x.index_select(0, classes(x)),
    "gather": lambda x: x.gather(1, classes(x)[:, None]),
    "expand": lambda x: x[None].expand(2, -1, -1),
    "batch_norm": lambda x: functional.batch_norm(x.mT, None, None, x[:, 0], x[:, 1], True),
    "max_pool1d": lambda x: functional.max_pool1d(x, 2),
    "nll_loss": lambda x: functional.nll_loss(x, classes(x)),
}


@pytest.mark.claim("grad.no-manual")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_gradient_is_the_slope_along_its_signs(device, name):
    """By a difference in fp64; along its signs the slope is the sum of its magnitudes."""
    values = torch.randn(997, generator=torch.Generator().manual_seed(0)).tolist()

    def loss(x):
        return (1 + OPERATIONS[name](x).double()).pow(3).sum()

    for case in covering("grad.no-manual"):
        x = case.tensor(with_dtype(device), values).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x), x)
        step = 1e-6 * gradient.double().sign()
        exact = x.detach().double()
        slope = (loss(exact + step) - loss(exact - step)).item() / 2e-6
        got = gradient.double().abs().sum().item()
        near = 1e-4 + 16 * torch.finfo(x.dtype).eps
        close(got, slope, "the sum of magnitudes", rel=near, within=1e-6, case=case)


def gradients_by_hand(x, *weights):
    """Of the mean of squares behind layers of tanh, by the chain rule."""
    kept = [x]
    for weight in weights:
        kept.append((kept[-1] @ weight).tanh())
    result = kept.pop()
    above = 2 * result / result.numel()
    gradients = []
    for weight in reversed(weights):
        before = kept.pop()
        above = above * (1 - result**2)
        gradients.insert(0, before.T @ above)
        above = above @ weight.T
        result = before
    return gradients


@pytest.mark.claim("grad.no-manual", "grad.w2", "grad.h1", "grad.w1")
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
@pytest.mark.parametrize("batch", [1, 6, 300])
@pytest.mark.parametrize("widths", [[8, 3], [5, 5, 1, 6, 3], [33, 600, 64]], ids=str)
def test_backward_leaves_the_gradients_derived_by_hand_in_a_net(device, widths, batch, dtype, most):
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, widths[0]), *pairwise(widths)]
    there = with_dtype(device, dtype)
    y, *weights = (torch.randn(shape, generator=generator).to(there, dtype) for shape in shapes)
    exact = [in_fp64(x) for x in (y, *weights)]
    for weight in weights:
        y = (y @ weight.requires_grad_()).tanh()
    loss = y.square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    for weight, should in zip(weights, gradients_by_hand(*exact), strict=True):
        within = most * should.abs().max().clamp(min=1).item()
        error = (in_fp64(weight.grad) / 2 - should).abs().max().item()
        at_most(error, within, "the error of half of two gradients")
