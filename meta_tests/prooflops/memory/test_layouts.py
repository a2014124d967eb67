"""Inputs, targets and parameters are predicted as they lie in memory, or refused by name."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import prooflops
from prooflops.memory import TrainingStep, copy_of, predicted_memory
from prooflops.timing import one_thread


def convolution(last=False):
    net = nn.Conv2d(64, 64, 3, padding=1)
    return net.to(memory_format=torch.channels_last) if last else net


@pytest.mark.parametrize("of_weights", [False, True])
@pytest.mark.parametrize("of_inputs", [False, True])
def test_channels_last_reaches_the_report(of_weights, of_inputs):
    inputs = torch.randn(8, 64, 32, 32)
    if of_inputs:
        inputs = inputs.to(memory_format=torch.channels_last)
    report = prooflops.model_report(convolution(of_weights), inputs)
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    if of_weights and of_inputs:
        # Measured without this suite, by torch's profiler.
        assert report.measured_peak_bytes == 5_080_336


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second row": lambda x: x.repeat(2, 1)[::2],
    "columns of a wider one": lambda x: x.repeat(1, 3)[:, 64:128],
    "rows behind others": lambda x: x.repeat(3, 1)[128:],
    "expanded": lambda x: x[:1].expand_as(x),
    "strides of 3": lambda x: torch.zeros(64 * 64 * 3).as_strided((64, 64), (192, 3)),
}


@pytest.mark.parametrize("name", LAYOUTS)
@one_thread()
def test_any_stride_and_offset_of_the_data_reaches_the_prediction(name):
    inputs = LAYOUTS[name](torch.randn(64, 64))
    targets = LAYOUTS[name](torch.randn(64, 64))
    loss = nn.functional.l1_loss
    step = TrainingStep(nn.Linear(64, 64), inputs, loss, targets)
    guess = step.predict(scratch=True)
    held = step.measure()
    storages = inputs.untyped_storage().nbytes() + targets.untyped_storage().nbytes()
    assert held.phases["inputs"].allocated_bytes == storages
    for phase, real in held.phases.items():
        if phase == "built":
            continue
        # The module is built already, so its parameters are not among the measured bytes.
        ours = guess.phases[phase].live_bytes - guess.phases["built"].live_bytes
        assert ours == real.live_bytes, phase


@one_thread()
def test_views_of_one_storage_hold_it_once():
    tokens = torch.randn(64, 65)
    step = TrainingStep(nn.Linear(64, 64), tokens[:, :-1], nn.functional.l1_loss, tokens[:, 1:])
    for found in (step.predict(), step.measure()):
        assert found.phases["inputs"].allocated_bytes == tokens.nbytes


# Of fewer elements than the block through which a matrix is copied transposed.
def with_weight(weight):
    net = nn.Linear(48, 48)
    net.weight = nn.Parameter(weight)
    return net


def with_buffer_of_weight():
    net = nn.Linear(48, 48)
    net.register_buffer("rows", net.weight.detach()[:8])
    return net


PARAMETERS = {
    "rows of a larger one": lambda: with_weight(torch.randn(144, 48)[48:96]),
    "every second element": lambda: with_weight(torch.randn(96, 96)[::2, ::2]),
    "parts of complex numbers": lambda: with_weight(torch.randn(48, 48, dtype=torch.cfloat).imag),
    "a buffer within a parameter": with_buffer_of_weight,
}


@pytest.mark.parametrize("name", PARAMETERS)
@one_thread()
def test_parameters_lie_in_the_report_as_in_the_module(name):
    report = prooflops.model_report(PARAMETERS[name](), torch.randn(48, 48), "SGD")
    assert report.predicted_peak_bytes == report.measured_peak_bytes


def test_what_is_to_be_conjugated_or_negated_stays_so():
    conjugated = torch.randn(3, dtype=torch.cfloat).conj()
    negated = conjugated.imag
    copies = copy_of([conjugated, negated], "cpu")
    assert (copies[0].is_conj(), copies[1].is_neg()) == (True, True)
    assert torch.equal(copies[0], conjugated)
    assert torch.equal(copies[1], negated)


def test_inputs_without_values_become_zeros():
    report = prooflops.model_report(nn.Linear(64, 64), torch.empty(8, 64, device="meta"))
    assert report.flops_forward == 2 * 8 * 64 * 64


def csr(x):
    return x.relu().to_sparse_csr()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda x: x.relu().to_sparse(), r"sparse Tensor \(torch\.sparse_coo\)"),
        (csr, r"sparse Tensor \(torch\.sparse_csr\)"),
        (lambda x: x.to_mkldnn(), r"Tensor in layout torch\._mkldnn"),
        (
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
            r"quantised Tensor \(torch\.quint8\)",
        ),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), "nested Tensor"),
        (lambda x: torch.nested.nested_tensor([x], layout=torch.jagged), "nested NestedTensor"),
    ],
)
def test_another_layout_is_refused_by_name(made, kind):
    inputs = made(torch.randn(8, 64))
    message = f"a tensor of the inputs or targets must be plain and strided, got a {kind}"
    with pytest.raises(TypeError, match=message):
        TrainingStep(nn.Linear(64, 64), inputs, torch.mean).predict()
    with pytest.raises(ValueError, match=message):
        prooflops.model_report(nn.Linear(64, 64), inputs)


ACTIVATIONS = {
    name: getattr(nn.functional, name)
    for name in ("relu", "leaky_relu", "rrelu", "logsigmoid", "elu", "silu", "softplus", "tanh")
}
ACTIVATIONS["rrelu in training"] = partial(nn.functional.rrelu, training=True)
ACTIVATIONS["prelu of one weight"] = lambda x: nn.functional.prelu(x, torch.ones(1))
ACTIVATIONS["prelu"] = lambda x: nn.functional.prelu(x, torch.ones(6))
ACTIVATIONS["prelu of a weight an element"] = lambda x: torch._prelu_kernel(
    x, torch.ones(8, 4, 6).permute(1, 2, 0)
)
LOSSES = ["mse_loss", "huber_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"]
ORDERS = {
    "rows": lambda: torch.ones(4, 6, 8),
    "turned": lambda: torch.ones(6, 4, 8).transpose(0, 1),
    "columns": lambda: torch.ones(4, 8, 6).mT,
    "repeated rows": lambda: torch.ones(4, 1, 8).expand(4, 6, 8),
    "expanded": lambda: torch.ones(1, 1, 1).expand(4, 6, 8),
}


def strides_of_gradients(of):
    """The strides of the input's gradients, for each pair of orders."""
    found = []
    for first in ORDERS.values():
        for second in ORDERS.values():
            x = first().requires_grad_()
            if of in LOSSES:
                y, grad = getattr(nn.functional, of)(x, second()), torch.ones(())
            else:
                y, grad = ACTIVATIONS[of](x), second()
            found += [each.stride() for each in torch.autograd.grad(y, x, grad)]
    return found


@pytest.mark.parametrize("of", [*ACTIVATIONS, *LOSSES])
def test_a_gradient_lies_as_its_kernel_leaves_it(of):
    with predicted_memory():
        guess = strides_of_gradients(of)
    assert guess == strides_of_gradients(of)


def planes(x):
    return x.reshape(4, 2, 3, 8).contiguous(memory_format=torch.channels_last)


OPERATORS = {
    "add": torch.add,
    "multiply": torch.mul,
    "maximum": torch.maximum,
    "compare": torch.eq,
    "power": torch.pow,
    "power of a number": lambda x, y: 2**x,
    "logarithm": torch.xlogy,
    "gamma": lambda x, y: torch.mvlgamma(x, 1),
    "choose": lambda x, y: torch.where(x > 0, x, y),
    "mask": lambda x, y: x.masked_fill(y > 0, 0.0),
    "interpolate": lambda x, y: torch.lerp(x, y, 0.3),
    "add product": lambda x, y: torch.addcmul(x, y, y),
    "of two dtypes": lambda x, y: x + y.double(),
    "of a mask": lambda x, y: (x > 0) * y,
    "of integers": lambda x, y: torch.sigmoid(x.long() + y.long()),
    "in place": lambda x, y: x.contiguous()[:, ::2].add_(y[:, ::2]),
    "clone": lambda x, y: x.clone(memory_format=torch.contiguous_format) + y,
    "among": torch.isin,
    "log sigmoid": lambda x, y: nn.functional.logsigmoid(x),
    "huber": partial(nn.functional.huber_loss, reduction="none"),
    "roll": lambda x, y: planes(x).roll(1, -1),
    "roll back": lambda x, y: planes(x).roll(-2, 1),
    "roll twice": lambda x, y: planes(x).roll((1, 2), (1, 3)),
    "roll flat": lambda x, y: planes(x).roll(3),
    "channel shuffle": lambda x, y: nn.functional.channel_shuffle(planes(x), 2),
    "layer norm": lambda x, y: nn.functional.layer_norm(planes(x), (8,)),
}


def strides_of_outputs(of, dtype):
    """The strides of the output, for each pair of orders."""
    given = []
    for order in ORDERS.values():
        like = order()
        given.append(torch.ones(4 * 6 * 8, dtype=dtype).as_strided(like.shape, like.stride()))
    return [OPERATORS[of](first, second).stride() for first in given for second in given]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of", OPERATORS)
def test_an_output_lies_as_its_kernel_leaves_it(of, dtype):
    with predicted_memory():
        guess = strides_of_outputs(of, dtype)
    assert guess == strides_of_outputs(of, dtype)
