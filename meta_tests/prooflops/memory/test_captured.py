"""Real tensors that a model or a loss has from elsewhere are predicted as if they were given."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from prooflops.memory import TrainingStep

WIDTH, CLASSES, BATCH = 64, 1000, 32
TARGETS = torch.zeros(BATCH, CLASSES)


class Holder:
    """An object that torch knows nothing of."""

    targets = TARGETS

    def loss(self, output):
        return error(output, self.targets)


class Regularized(nn.Linear):
    """Adds the norm of its weight to its output."""

    def forward(self, x):
        return super().forward(x) + self.weight.square().sum()


def error(output, targets):
    return functional.cross_entropy(output, targets)


def through_a_function(output):
    return Holder().loss(output)


WAYS = {
    "a closure": lambda output, targets=[TARGETS]: error(output, *targets),
    "a global of a function that it calls": through_a_function,
    "a partial": partial(functional.cross_entropy, target=TARGETS),
    "an object whose method it is": Holder().loss,
}


def bytes_of(step):
    held = step.predict(workspaces=False)
    return {
        name: (phase.peak_bytes, phase.live_by_class)
        for name, phase in held.phases.items()
        if name.startswith("second")
    }


def step_of(net, device, loss, **options):
    return TrainingStep(net, torch.ones(BATCH, WIDTH), loss, device=device, **options)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("way", WAYS)
def test_a_loss_may_have_its_targets_from_anywhere(way, device):
    net = nn.Linear(WIDTH, CLASSES)
    captured = bytes_of(step_of(net, device, WAYS[way]))
    assert captured == bytes_of(step_of(net, device, error, targets=TARGETS))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loss_may_name_the_parameters_of_the_net(device):
    net, regularized = nn.Linear(WIDTH, CLASSES), Regularized(WIDTH, CLASSES)
    penalised = lambda output: (output + net.weight.square().sum()).mean()  # noqa: E731
    assert bytes_of(step_of(net, device, penalised)) == bytes_of(
        step_of(regularized, device, torch.mean)
    )
    assert net.weight.grad is None


def test_another_net_and_its_gradients_are_counted():
    net, judge = nn.Linear(WIDTH, CLASSES, bias=False), nn.Linear(CLASSES, 1, bias=False)
    held = bytes_of(step_of(net, "cuda", lambda output: judge(output).mean()))
    _, classes = held["second backward"]
    assert classes["inputs"] == 4 * (BATCH * WIDTH + CLASSES)
    assert classes["gradients"] == 4 * (WIDTH * CLASSES + CLASSES)
    assert judge.weight.grad is None


class Again(nn.Module):
    """Adds a tensor that no part of it registers, once more in the backward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return checkpoint(lambda x: self.layer(x).add(TARGETS).tanh(), x, use_reentrant=False)


def test_a_layer_that_is_recomputed_may_capture_tensors():
    _, classes = bytes_of(step_of(Again(), "cuda", torch.mean))["second backward"]
    assert classes["inputs"] == 4 * BATCH * (WIDTH + CLASSES)


def test_a_module_may_keep_tensors_in_objects_of_its_own():
    net = nn.Linear(WIDTH, CLASSES)
    net.holder = [Holder()]
    net.holder[0].targets = TARGETS.clone()
    assert bytes_of(step_of(net, "cuda", torch.mean))


class PerExample(nn.Linear):
    """Returns the gradient of each example by torch.func."""

    def forward(self, x):
        def loss(row):
            return super(PerExample, self).forward(row).tanh().sum()

        return torch.func.vmap(torch.func.grad(loss))(x)


def test_what_torch_func_wraps_is_no_captured_tensor():
    step = step_of(PerExample(WIDTH, WIDTH), "cpu", torch.sum)
    guess, held = step.predict(), step.measure()
    forward = "second forward"
    ours = guess.phases[forward].live_bytes - guess.phases["built"].live_bytes
    assert ours == held.phases[forward].live_bytes
