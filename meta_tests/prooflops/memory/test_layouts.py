"""Inputs, targets and parameters are predicted as they lie in memory, or refused by name."""

import threading
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

import prooflops
from prooflops.memory import TrainingStep, copy_of, fake_copy, predicted_memory
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
    report = prooflops.model_report(convolution(of_weights), inputs, measure=True)
    held = report.examination.memory.row("kept for the backward pass")
    assert held.predicted_bytes == held.measured_bytes


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
    guess = step.predict()
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


# What a backward pass holds in passing for the Python numbers in its formulas.
BOXED_NUMBERS_BYTES = 16


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
    # The gradient of this loss is dense, so nothing is copied.
    loss = lambda out: out.square().mean()  # noqa: E731
    net, inputs = PARAMETERS[name](), torch.randn(48, 48)
    report = prooflops.model_report(net, inputs, "SGD", loss, measure=True)
    assert 0 <= report.measured_peak_bytes - report.predicted_peak_bytes <= BOXED_NUMBERS_BYTES


def test_what_is_to_be_conjugated_negated_or_kept_from_training_stays_so():
    conjugated = torch.randn(3, dtype=torch.cfloat).conj()
    negated = conjugated.imag
    counts = nn.Parameter(torch.arange(3), requires_grad=False)
    # Two bytes of its storage are no part of a number.
    first = torch.ones(10, dtype=torch.uint8)[:8].view(torch.float32)
    given = [conjugated, negated, counts, first]
    copies = copy_of([*given, torch.empty(3, device="meta")], "cpu")
    assert (copies[0].is_conj(), copies[1].is_neg()) == (True, True)
    assert isinstance(copies[2], nn.Parameter)
    # Any table can look up zeros.
    assert all(map(torch.equal, copies, [*given, torch.zeros(3)]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda x: x.relu().to_sparse(), r"Tensor \(torch\.sparse_coo"),
        (
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
            r"Tensor \(torch\.strided, torch\.quint8\)",
        ),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), "nested Tensor"),
    ],
)
def test_another_layout_is_refused_by_name(made, kind):
    inputs = made(torch.randn(8, 64))
    message = f"a tensor of the inputs or targets must be plain and strided, got a {kind}"
    with pytest.raises(TypeError, match=message):
        TrainingStep(nn.Linear(64, 64), inputs, torch.mean).predict()


def sharded(part):
    # One process alone makes no group; the class is what is recognised.
    part.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})


def holds_a_lock(part):
    part.kept = {"lock": threading.Lock()}


def traced(part):
    return torch.jit.trace(part, torch.ones(1, 8))


def compiled_in_place(part):
    part.compile(backend="eager")


UNCOPIED = [
    (sharded, "its part 0 is sharded by FSDP and cannot be copied; .* as it was before FSDP"),
    (holds_a_lock, "its part 0 has 'kept' of type dict, which cannot be copied .*_thread.lock"),
    (traced, r"its part 0 is TorchScript, .* pass the torch.nn.Module from"),
    (compiled_in_place, r"its part 0 is compiled in place, .* as before \.compile\(\)"),
]


# torch deprecates TorchScript, which people still bring.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("change", "what"), UNCOPIED)
def test_what_cannot_be_copied_is_refused_by_its_name(change, what):
    part = nn.Linear(8, 1)
    with pytest.raises(TypeError, match=what):
        fake_copy(nn.Sequential(change(part) or part), "cpu")


IMAGES = (4, 6, 8, 8)
# Fake tensors are laid out otherwise by torch's own formulas.
KERNELS = {
    "batch norm": nn.BatchNorm2d(6),
    "layer norm": nn.LayerNorm(8),
    "log softmax": nn.LogSoftmax(-1),
    "ELU": nn.ELU(),
    "softplus": nn.Softplus(),
    "hardswish": nn.Hardswish(),
    "hardtanh": nn.Hardtanh(),
    "log sigmoid": nn.LogSigmoid(),
    "reflection": nn.ReflectionPad2d(1),
    "replication": nn.ReplicationPad2d(1),
}


def ordered(shape, order):
    """A tensor of this shape whose dimensions lie in memory in this order."""
    lying = torch.ones([shape[place] for place in order])
    return lying.permute([order.index(place) for place in range(len(order))])


def strides_behind(net, order, order_of_gradient):
    x = ordered(IMAGES, order).requires_grad_()
    y = net(x)
    y.backward(ordered(y.shape, order_of_gradient))
    return y.stride(), x.grad.stride()


@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_lie_as_the_kernels_lay_them_out(name):
    net = KERNELS[name]
    for order in [*permutations(range(4))][::5]:
        for other in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
            lying = strides_behind(net, order, other)
            with predicted_memory():
                assert strides_behind(fake_copy(net, "cpu"), order, other) == lying, (order, other)


GROUPED = getattr(functional, "grouped_mm", None)


@pytest.mark.skipif(GROUPED is None, reason="torch has no grouped_mm")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_of_any_dtype_are_predicted(dtype):
    def product():
        rows, weights = torch.ones(16, 32, dtype=dtype), torch.ones(2, 6, 32, dtype=dtype)
        ends = torch.tensor([8, 16], dtype=torch.int32)
        return GROUPED(rows, weights.transpose(1, 2), offs=ends)

    with predicted_memory():
        strides = product().stride()
    assert strides == product().stride()
