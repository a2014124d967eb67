"""The pass and operator that a counted figure belongs to, recomputation, the counter's limits.

test_operators.py shows the cost of each operator, test_bytes.py the bytes it moves.
"""

import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accounting.flops import linear_flops
from meta_tests.prooflops.counted.counting import a, b, flops_of, net, products
from meta_tests.prooflops.memory.predicting import unless_torch_fakes_cuda
from meta_tests.prooflops.memory.recorded_nets import NETS, convolutions
from prooflops import counted
from prooflops.memory import fake_copy, predicted_memory


def test_flops_are_separated_by_pass_and_operator():
    count = flops_of(lambda: net()(torch.randn(2, 3)).sum().backward())
    assert products(count.by_operator("forward")) == {"aten.addmm": 48, "aten.mm": 80}
    assert products(count.by_operator("backward")) == {"aten.mm": 160 + 48}
    with pytest.raises(
        ValueError, match="phase must be one of all, forward, backward, recomputed, got 'back'"
    ):
        count.by_operator("back")


def test_nested_counts_count_all_within_and_may_be_read_meanwhile():
    with counted.flops() as outer:
        a @ b
        before = outer.total
        with counted.flops() as inner:
            net()(torch.randn(2, 3)).sum().backward()
    alone = flops_of(lambda: net()(torch.randn(2, 3)).sum().backward())
    assert inner.by_operator() == alone.by_operator()
    assert before == 120
    assert outer.total == 120 + alone.total


@pytest.mark.parametrize("retain_graph", [False, True])
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_recomputes_is_its_own_figure(reentrant, retain_graph):
    layers = net()
    data = torch.randn(2, 3, requires_grad=True)
    plain = flops_of(lambda: layers(data).sum().backward())
    with set_checkpoint_early_stop(False), counted.flops() as count:
        out = checkpoint(layers, data, use_reentrant=reentrant)
        out.sum().backward(retain_graph=retain_graph)
    assert count.recomputed == plain.forward
    assert count.forward == plain.forward
    assert count.backward == plain.backward + plain.forward
    assert count.model == plain.model == plain.total
    assert count.total == count.model + count.recomputed
    assert products(count.by_operator("recomputed")) == products(plain.by_operator("forward"))


def test_a_second_derivative_is_no_recomputation():
    def penalty():
        data = torch.randn(2, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(net()(data).square().sum(), data, create_graph=True)
        gradient.square().sum().backward()

    count = flops_of(penalty)
    assert count.recomputed == 0, "nothing runs twice"
    assert count.backward > 2 * count.forward


# The modules of torch.compile warn by themselves.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True], ids=["first called within", "called before"])
def test_a_compiled_function_is_counted_uncompiled_then_runs_compiled(warm):
    layers = net()
    data = torch.randn(2, 3, requires_grad=True)
    runs = []

    def backend(module, _examples):
        return lambda *arguments: runs.append(module) or module.forward(*arguments)

    torch._dynamo.reset()
    compiled = torch.compile(layers, backend=backend)
    if warm:
        compiled(data)
    before = len(runs)
    with warnings.catch_warnings():
        # The global hooks are the counter's own.
        warnings.filterwarnings("error", message=".* global hooks on modules")
        count = flops_of(lambda: compiled(data).sum().backward())
    plain = flops_of(lambda: layers(data).sum().backward())
    assert count.step == plain.step
    assert len(runs) == before, "beneath the counter it should run uncompiled"
    with pytest.warns(UserWarning, match="the user's own"), counted.flops():
        warnings.warn("the user's own", stacklevel=1)
    compiled(data)
    assert len(runs) == before + 1, "after the block it should run compiled"


def test_autocast_changes_the_bytes_and_not_the_flops():
    layers = net()
    data = torch.randn(2, 3, requires_grad=True)

    def step():
        out = checkpoint(layers, data, use_reentrant=False)
        out.float().sum().backward()

    plain = flops_of(step)
    with torch.autocast("cpu", torch.bfloat16):
        cast = flops_of(step)
    assert cast.step == plain.step
    wide = plain.by_operator("forward")["aten.addmm"]
    narrow = cast.by_operator("forward")["aten.addmm"]
    assert wide.moved_bytes == 2 * narrow.moved_bytes
    assert "aten._to_copy" in cast.by_operator()
    assert not cast.unknown


def step_on(device):
    with torch.device(device):
        layers = nn.Sequential(nn.Conv1d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    return lambda: layers(torch.empty(2, 4, 6, device=device)).sum().backward()


@pytest.mark.parametrize("outside", [True, False], ids=["count in fake mode", "fake mode in count"])
def test_fake_tensors_cost_the_same(outside):
    on_cpu = flops_of(step_on("cpu"))
    if outside:
        with FakeTensorMode(), counted.flops() as count:
            step_on("cpu")()
    else:
        with counted.flops() as count, FakeTensorMode():
            step_on("cpu")()
    assert count.step == on_cpu.step
    assert count.unknown == {}


@unless_torch_fakes_cuda
def test_a_convolution_net_costs_the_same_on_cuda():
    """cuDNN's batch norm costs what torch's own does."""
    with predicted_memory("cuda"), counted.flops() as count:
        step = NETS["conv"].step()
        net = fake_copy(step.build(), "cuda")
        out = net(torch.empty(16, 3, 128, 128, device="cuda"))
        step.loss(out, torch.empty(16, dtype=torch.long, device="cuda")).backward()
    assert count.unknown == {}
    with counted.flops() as on_cpu:
        out = convolutions()(torch.zeros(16, 3, 128, 128))
        step.loss(out, torch.zeros(16, dtype=torch.long)).backward()
    assert count.step == on_cpu.step
    assert count.elementwise == on_cpu.elementwise


@pytest.mark.needs("cuda")
def test_cuda_costs_the_same_and_recognises_what_its_own_threads_recompute(device):
    on_cpu = flops_of(step_on("cpu"))
    on_cuda = flops_of(step_on(device))
    assert on_cuda.step == on_cpu.step
    layers = net().to(device)
    data = torch.randn(2, 3, device=device, requires_grad=True)
    count = flops_of(lambda: checkpoint(layers, data, use_reentrant=False).sum().backward())
    assert count.recomputed == linear_flops(2, 3, 4), "the first layer is recomputed"


@pytest.mark.parametrize(
    ("act", "operator"),
    [
        (lambda: torch.linalg.qr(torch.eye(3)), "aten.linalg_qr"),
        (lambda: a.to_sparse() @ b, "aten.mm"),
    ],
    ids=["without a formula", "a product with a sparse tensor"],
)
def test_an_operator_that_cannot_be_counted_is_listed_with_its_calls(act, operator):
    count = flops_of(lambda: (act(), act()))
    assert (count.total, count.unknown[operator]) == (0, 2)
    assert operator in repr(count)


def test_sequences_in_a_jagged_tensor_are_counted_by_their_own_tokens():
    parts = [torch.randn(tokens, 8) for tokens in (3, 5)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    layer = nn.Linear(8, 4)
    with counted.flops() as count:
        (2 * layer(jagged)).values().sum().backward()
    product = 2 * (3 + 5) * 8 * 4
    assert count.forward == product
    assert count.backward == 2 * product
    assert count.unknown == {}


def test_gradients_per_sample_are_counted_as_those_of_the_whole_batch():
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(16, 8)
    values = {name: value.detach() for name, value in net.named_parameters()}

    def error(values, row):
        return torch.func.functional_call(net, values, (row,)).square().sum()

    with counted.flops() as count:
        torch.func.vmap(torch.func.grad(error), (None, 0))(values, x)
    forward = 2 * 16 * (8 * 4 + 4 * 2)
    assert count.forward == forward
    assert count.backward == forward + 2 * 16 * 4 * 2
    assert count.recomputed == 0
    assert count.unknown == {}
