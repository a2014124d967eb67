"""Claims about the training loop: the order of its calls, zeroed gradients, modes, its start."""

import math
from functools import partial
from itertools import cycle, permutations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    StepLR,
)

from accounting.activations import activation_bytes
from accounting.models import DeepLinear
from test_claims.oracles.dispatched import linear_net
from test_claims.oracles.low_precision import ADAM, SGD, trained_net
from test_claims.oracles.messages import at_most, close, equal
from test_claims.oracles.tensors import OPTIMIZERS, held_after
from test_claims.oracles.training import Training, generators_kept
from test_claims.strategies import (
    covering,
    fewer,
    seeds,
    sizes,
    with_dtype,
)

RATE = 0.05
BIAS_RATE = 0.02


class Regression:
    """Linear regression in fp64 with a bias, and the calls of a training step by name.

    Each weight is a parameter of its own, in two groups of several. All examples are the batch
    until one is fetched.
    """

    def __init__(self, device, seed, examples=32, features=4, batch=32, most=0.0, momentum=0.0):
        generator = torch.Generator().manual_seed(seed)
        device = with_dtype(device)
        x = torch.randn(examples, features, generator=generator, dtype=torch.float64)
        noise = torch.randn(examples, generator=generator, dtype=torch.float64)
        self.x = x.to(device)
        self.y = (20 * x.sum(dim=1) + 5 + 0.1 * noise).to(device)
        zeros = torch.zeros(features + 1, dtype=torch.float64, device=device)
        *self.weights, self.bias = map(nn.Parameter, zeros.split(1))
        self.parameters = [*self.weights, self.bias]
        groups = [
            {"params": self.weights[:2]},
            {"params": self.weights[2:]},
            {"params": [self.bias], "lr": BIAS_RATE},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=RATE, momentum=momentum)
        self.batches = cycle(zip(self.x.split(batch), self.y.split(batch), strict=True))
        self.most = most
        self.calls = {
            "fetch": self.fetch,
            "forward": self.forward,
            "backward": lambda: self.loss.backward(),
            "clip": self.clip,
            "step": self.optimizer.step,
            "zero_grad": self.optimizer.zero_grad,
        }
        self.batch = self.x, self.y

    def fetch(self):
        self.batch = next(self.batches)

    def forward(self):
        x, y = self.batch
        self.loss = (x @ torch.cat(self.weights) + self.bias - y).square().mean()

    def clip(self):
        nn.utils.clip_grad_norm_(self.parameters, self.most)

    def run(self, calls, steps):
        """The weights, the bias behind them, after these calls `steps` times over."""
        for _ in range(steps):
            for call in calls:
                self.calls[call]()
        return np.array(torch.cat(self.parameters).tolist())

    def gradient_descent(self, steps, momentum=0.0, most=math.inf, batch=32):
        """The same weights by numpy: w − rate · gradient, of norm `most` at most.

        The bias has a rate of its own. A momentum of 1 sums all gradients so far.
        """
        x = np.column_stack([np.array(self.x.tolist()), np.ones(len(self.x))])
        y = np.array(self.y.tolist())
        weights = np.zeros(x.shape[1])
        total = np.zeros(x.shape[1])
        rates = np.append(np.full(x.shape[1] - 1, RATE), BIAS_RATE)
        for step in range(steps):
            first = step % math.ceil(len(y) / batch) * batch
            some = x[first : first + batch]
            of = y[first : first + batch]
            gradient = 2 / len(of) * some.T @ (some @ weights - of)
            gradient *= min(1.0, most / max(np.linalg.norm(gradient), 1e-300))
            total = momentum * total + gradient
            weights = weights - rates * total

        return weights


def assert_close(got, should, what, tolerance=1e-9):
    __tracebackhide__ = True
    off = np.abs(got - should).max()
    assert off <= tolerance * (1 + np.abs(should).max()), f"{what}: {got}, but should be {should}"


POSITIONS = {
    "at the end": ("forward", "backward", "step", "zero_grad"),
    "before backward": ("forward", "zero_grad", "backward", "step"),
    "before forward": ("zero_grad", "forward", "backward", "step"),
}
ORDER = POSITIONS["before backward"]


FORWARD = ("forward",)
BACKWARD = ("zero_grad", "backward")
IN_ORDER = [("fetch",), FORWARD, BACKWARD, ("step",)]
# A backward pass needs the forward pass before it.
OTHER_ORDERS = [
    list(parts)
    for parts in permutations(IN_ORDER)
    if list(parts) != IN_ORDER and parts.index(FORWARD) < parts.index(BACKWARD)
]


@pytest.mark.claim("loop.order")
@given(
    other=st.sampled_from(OTHER_ORDERS),
    seed=seeds,
    batch=sizes(1, 9),
    more=sizes(1, 5),
    steps=sizes(1, 6),
    momentum=st.sampled_from([0.0, 0.5]),
)
def test_fetch_forward_backward_step_is_gradient_descent_alone(
    device, other, seed, batch, more, steps, momentum
):
    for parts in (IN_ORDER, other):
        task = Regression(device, seed, examples=batch + more, batch=batch, momentum=momentum)
        got = task.run([call for part in parts for call in part], steps)
        should = task.gradient_descent(steps, momentum, batch=batch)
        same = np.allclose(got, should, rtol=1e-9, atol=1e-9)
        equal(same, parts == IN_ORDER, "whether this is gradient descent", parts=parts)


def net_after(device, calls, optimizer, steps):
    """All weights of a net in fp32 after these calls."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 2))
    net.to(device)
    x = torch.randint(9, (16,), device=device)

    first, *others = net.parameters()
    groups = [{"params": [first]}, {"params": others}]
    stepper = OPTIMIZERS[optimizer](groups, lr=RATE)
    for _ in range(steps):
        for call in calls:
            if call == "forward":
                loss = net(x).square().mean()
            elif call == "backward":
                loss.backward()
            elif call == "zero_grad":
                stepper.zero_grad()
            else:
                stepper.step()

    return nn.utils.parameters_to_vector(net.parameters()).tolist()


@pytest.mark.claim("loop.zero-grad-position")
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("steps", [1, 4])
def test_three_places_for_zero_grad_train_alike_and_a_fourth_not_at_all(device, optimizer, steps):
    ends = [net_after(device, calls, optimizer, steps) for calls in POSITIONS.values()]
    first, *others = ends
    start = net_after(device, (), optimizer, 1)
    assert first != start, "the first loop did not train"
    equal(others, [first] * len(others), "the weights of the other loops")

    dropped = ("forward", "backward", "zero_grad", "step")
    # Not AdamW, whose decay of the weights needs no gradient.
    if optimizer != "adamw":
        end = net_after(device, dropped, optimizer, steps)
        equal(end, start, "weights whose gradients were dropped")


@pytest.mark.claim("loop.zero-grad-position")
@fewer
@given(seed=seeds, steps=sizes(2, 6))
def test_without_zero_grad_a_step_takes_the_sum_of_all_gradients(device, seed, steps):
    task = Regression(device, seed)
    got = task.run(("forward", "backward", "step"), steps)
    assert_close(got, task.gradient_descent(steps, momentum=1), "weights")
    same = np.allclose(got, task.gradient_descent(steps))
    assert not same, "the loop without zero_grad ends where the right one does"


@pytest.mark.claim("loop.clipping")
@fewer
@given(seed=seeds, steps=sizes(1, 6), most=st.floats(0.1, 50))
def test_only_between_backward_and_step_clipping_bounds_the_gradient(device, seed, steps, most):
    for place in range(1, 5):
        task = Regression(device, seed, most=most)
        got = task.run((*ORDER[:place], "clip", *ORDER[place:]), steps)
        should = task.gradient_descent(steps, most=most if place == 3 else math.inf)
        # torch adds 1e-6 to the norm.
        assert_close(got, should, f"weights, clipped before call {place} of {ORDER}", 1e-6)


@pytest.mark.claim("loop.clipping", "kernel.optimizer")
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping_scales_all_gradients_alike_to_the_norm_asked_for(device, norm_type, foreach):
    for case in covering("loop.clipping"):
        gradients = [case.tensor(device, values) for values in ((1, -2, 3), (0, 4))]
        values = torch.cat([each.flatten().double() for each in gradients]).cpu().numpy()
        norm = np.linalg.norm(values, norm_type)
        near = 8 * torch.finfo(gradients[0].dtype).eps
        for share in (1 / 4, 2):
            parameters = [nn.Parameter(torch.ones_like(each)) for each in gradients]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            got = nn.utils.clip_grad_norm_(
                parameters, share * norm, norm_type=norm_type, foreach=foreach
            )
            close(got.item(), norm, "the norm before", rel=near, case=case)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                off = (parameter.grad - min(share, 1) * gradient).abs().max().item()
                # torch adds 1e-6 to the norm.
                at_most(off, 4 * near + 1e-6, "the distance from a scaled gradient", case=case)


# The share of the rate that step t takes, from 0.
SCHEDULES = {
    "StepLR": (partial(StepLR, step_size=2, gamma=0.5), lambda t: 0.5 ** (t // 2)),
    "LambdaLR": (partial(LambdaLR, lr_lambda=lambda t: 1 / (1 + t)), lambda t: 1 / (1 + t)),
    "LinearLR": (
        partial(LinearLR, start_factor=0.2, total_iters=4),
        lambda t: 0.2 + 0.8 * min(t, 4) / 4,
    ),
    "ExponentialLR": (partial(ExponentialLR, gamma=0.8), lambda t: 0.8**t),
    "CosineAnnealingWarmRestarts": (
        partial(CosineAnnealingWarmRestarts, T_0=3),
        lambda t: (1 + math.cos(math.pi * (t % 3) / 3)) / 2,
    ),
    "CosineAnnealingLR": (
        partial(CosineAnnealingLR, T_max=8),
        lambda t: (1 + math.cos(math.pi * t / 8)) / 2,
    ),
}


@pytest.mark.claim("loop.schedule")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("too_early", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_schedule_that_steps_after_the_optimizer_sets_the_next_rate(
    device, name, too_early, optimizer
):
    """If it steps before, the first rate is never used.

    A step is as long as the rate: of AdamW, because all gradients are alike.
    """
    schedule, share = SCHEDULES[name]
    parameters = [nn.Parameter(torch.zeros(3, device=device)) for _ in range(2)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": BIAS_RATE}]
    stepper = optimizer(groups, lr=RATE, weight_decay=0)
    scheduler = schedule(stepper)
    for t in range(7):
        before = [parameter.detach().clone() for parameter in parameters]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        calls = [stepper.step, scheduler.step]
        for call in reversed(calls) if too_early else calls:
            call()
        for parameter, start, rate in zip(parameters, before, (RATE, BIAS_RATE), strict=True):
            moved = (start - parameter.detach())[0].item()
            close(moved, rate * share(t + too_early), "the step", rel=1e-4, within=1e-7, t=t)


@pytest.mark.claim("loop.evaluation")
@pytest.mark.parametrize(("seed", "every"), [(0, 1), (1, 3)])
def test_evaluation_changes_no_step_in_eval_mode_without_gradients(device, seed, every):
    def run(mode, steps=8):
        with generators_kept():
            task = Training(device, ["torch" if device.type == "cpu" else "accelerator"], seed=seed)

            def evaluate(*_):
                """Between the backward pass and the step, where gradients are there."""
                if mode is not None and task.steps % every == 0:
                    getattr(task.net, mode)()
                    with torch.no_grad():
                        task.net(task.x.to(device))
                    task.net.train()

            task.optimizer.register_step_pre_hook(evaluate)
            task.losses(steps)
        return task.weights()

    without = run(None)
    equal(run("eval"), without, "weights after evaluation")
    assert run("train") != without, "evaluation in train mode changed nothing"


@pytest.mark.claim("loop.logging")
@pytest.mark.parametrize(
    ("batch", "width", "layers", "logged"), [(1, 1, 1, 1), (5, 12, 4, 3), (3, 7, 2, 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_log_keeps_activations_of_losses_never_differentiated(
    metered_device, batch, width, layers, logged, dtype
):
    net = linear_net([width] * (layers + 1), metered_device).to(dtype)
    x = torch.ones(batch, width, device=metered_device, dtype=dtype)
    number = dtype.itemsize

    def loss():
        return net(x).square().mean()

    def trained():
        kept = loss()
        kept.backward()
        net.zero_grad()
        return kept

    activations = activation_bytes(DeepLinear(dim=width, layers=layers), batch, dtype=dtype)
    entries = [
        (lambda: loss().item(), 0),
        (lambda: loss().tolist(), 0),
        (lambda: loss().detach(), number),
        (trained, number),
        (loss, activations + number),
    ]
    for entry, should in entries:
        _, held = held_after(metered_device, *[entry] * logged)
        equal(held[-1], logged * should, "bytes of the log")


@pytest.mark.claim("loop.train-mode", "kernel.rounding")
@pytest.mark.parametrize("p", [0.05, 0.3, 0.5024920796248488, 0.95])
def test_dropout_drops_a_share_p_and_scales_the_rest_in_train_mode_only(device, p):
    for case in covering("loop.train-mode"):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Sequential(nn.Sequential(nn.Dropout(p))))
        x = case.tensor(device, values=[1]).requires_grad_()
        layer.eval()
        equal(layer(x), x, "dropout in eval mode", case=case)
        layer.train()
        assert_dropped(x, layer(x), p)


def assert_dropped(x, y, p, together=1):
    """That dropout made `y` of the ones of `x`, and passes gradients as it passed values.

    So many elements are dropped `together`.
    """
    __tracebackhide__ = True
    eps = torch.finfo(x.dtype).eps
    dropped = (y == 0).double().mean().item()
    # Six deviations of a binomial share: one false alarm in 5e8.
    near = 6 * math.sqrt(p * (1 - p) * together / x.numel())
    close(dropped, p, "the share dropped", rel=0, within=near)

    kept = y[y != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=2 * eps, atol=0)

    (gradient,) = torch.autograd.grad(y.sum(), x)
    # Kernels may round 1/(1 − p) otherwise in the backward pass: by one unit.
    beyond = (gradient - y).abs().max().item()
    at_most(beyond, 2 * eps * y.max().item(), "gradients beyond the output")


@pytest.mark.claim("loop.train-mode")
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_dropout_of_channels_drops_whole_ones_in_train_mode_only(device, dimensions):
    torch.manual_seed(0)
    layer = getattr(nn, f"Dropout{dimensions}d")(0.3)
    x = torch.ones(20, 50, *[3] * dimensions, device=device).requires_grad_()
    y = layer(x)
    channels = y.flatten(2)
    equal(channels, channels[..., :1].expand_as(channels), "the values of a channel")
    assert_dropped(x, y, 0.3, channels.shape[2])
    equal(layer.eval()(x), x, "dropout of channels in eval mode")


@pytest.mark.claim("loop.train-mode")
def test_attention_drops_its_weights_in_train_mode_only(device):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True).to(device)
    x = torch.randn(3, 5, 4, device=device)
    first, second = (attention(x, x, x, need_weights=False)[0] for _ in range(2))
    assert not torch.equal(first, second), "attention in train mode drops nothing"
    attention.eval()
    first, second = (attention(x, x, x, need_weights=False)[0] for _ in range(2))
    equal(first, second, "attention in eval mode")


def by_features(x):
    """A row for each feature, which is the second dimension."""
    return x.detach().cpu().transpose(0, 1).flatten(1).numpy()


@pytest.mark.claim("loop.train-mode")
@given(seed=seeds, features=sizes(), rows=sizes(2, 8), sides=st.sampled_from([(), (3, 2)]))
@example(seed=0, features=300, rows=64, sides=())
@example(seed=0, features=5, rows=20, sides=(24, 30))
def test_batch_norm_uses_the_batch_in_train_mode_and_statistics_in_eval(
    device, seed, features, rows, sides
):
    generator = torch.Generator().manual_seed(seed)
    x = (3 + 2 * torch.randn(rows, features, *sides, generator=generator)).to(device)
    norm = nn.BatchNorm2d if sides else nn.BatchNorm1d
    layer = norm(features).to(device)
    trained = by_features(layer(x))
    layer.eval()
    evaluated = by_features(layer(x))
    values = by_features(x).astype(np.float64)
    mean = values.mean(axis=1, keepdims=True)
    variance = values.var(axis=1, keepdims=True)
    running_mean = 0.1 * mean
    running_variance = 0.9 + 0.1 * values.var(axis=1, ddof=1, keepdims=True)
    should = (values - mean) / np.sqrt(variance + layer.eps)

    assert_close(trained, should, "output in train mode", 1e-3)

    should = (values - running_mean) / np.sqrt(running_variance + layer.eps)
    assert_close(evaluated, should, "output in eval mode", 1e-3)

    kept = torch.stack([layer.running_mean, layer.running_var], dim=1).cpu().numpy()
    should = np.hstack([running_mean, running_variance])
    assert_close(kept, should, "mean and variance after one batch", 1e-3)


@pytest.mark.claim("loop.mixed-two-layer")
@pytest.mark.parametrize(
    ("dtype", "scaler"),
    [
        (torch.bfloat16, False),
        (torch.bfloat16, True),
        (torch.float16, True),
    ],
)
@pytest.mark.parametrize(
    ("width", "seed", "optimize"), [(32, 0, ADAM), (128, 1, SGD)], ids=["32-0-Adam", "128-1-SGD"]
)
def test_a_minimal_mixed_precision_loop_learns(
    device, record_figure, dtype, scaler, optimize, width, seed
):
    net, losses = trained_net(
        device, dtype, scaler=scaler, hidden=(width,), seed=seed, optimize=optimize
    )
    record_figure(f"{dtype}: loss {losses[0]:.1f} to {losses[-1]:.3f} in {len(losses)} steps")
    at_most(losses[-1], losses[0] / 20, "the last loss")

    where = {tensor.device for p in net.parameters() for tensor in (p, p.grad)}
    equal(where, {torch.empty(0, device=device).device}, "places of parameters and gradients")


@pytest.mark.claim("loop.mixed-two-layer", "amp.gradscaler")
@pytest.mark.parametrize(
    ("dtype", "scaler", "learns"),
    [
        (torch.float16, False, False),
        (torch.float16, True, True),
        (torch.bfloat16, False, True),
    ],
)
def test_in_fp16_small_gradients_need_the_scaler(device, dtype, scaler, learns):
    """Below 2^-25 they are zero in fp16, and Adam does not move; scaled by 65536 they are not."""
    _, losses = trained_net(device, dtype, scaler=scaler, loss_factor=1e-9)
    right = losses[-1] < losses[0] / 20 if learns else losses[-1] == losses[0]
    assert right, f"the loss went from {losses[0]} to {losses[-1]}"
