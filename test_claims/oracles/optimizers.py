"""Optimizers written from their papers, and torch's own fed with the same gradients.

Each reference takes the weights to start from and the gradients of the steps to come, and gives the
weights after each step; arrays of numpy and tensors will both do. The letters are the papers'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from test_claims.oracles.low_precision import stochastically_rounded
from test_claims.strategies import TORCH_DTYPES, with_dtype

# Runs that differ by no more differ by rounding.
ROUNDING = 1e-11


def sgd(x, gradients, lr):
    """Robbins and Monro 1951."""
    for g in gradients:
        x = x - lr * g
        yield x


def heavy_ball(x, gradients, lr, momentum):
    """Polyak 1964, equation 9: each step adds a part of the previous step.

    It has two positions, and no buffer.
    """
    before = x
    for g in gradients:
        x, before = x - lr * g + momentum * (x - before), x
        yield x


def nesterov(y, gradients, lr, momentum, nesterov=True):
    """Nesterov 1983: a plain step x from a point y ahead, where gradients are computed.

    Yields the points y. torch's option of this name changes nothing here.
    """
    before = y
    for g in gradients:
        x = y - lr * g
        y = x + momentum * (x - before)
        before = x
        yield y


def adagrad(
    x,
    gradients,
    lr,
    eps,
    lr_decay=0.0,
    initial_accumulator_value=0.0,
):
    """Duchi, Hazan and Singer 2011, figure 1 with a diagonal H.

    H = delta + sqrt(sum of squares): delta is outside.
    """
    for t in range(1, len(gradients) + 1):
        s = (sum(g**2 for g in gradients[:t]) + initial_accumulator_value) ** 0.5
        x = x - lr / (1 + (t - 1) * lr_decay) * gradients[t - 1] / (eps + s)
        yield x


def rmsprop(
    x,
    gradients,
    lr,
    alpha,
    eps,
    momentum=0.0,
    centered=False,
):
    """Hinton 2012, lecture 6e, slide 29.

    Centered and with momentum: Graves 2013, equations 38 to 45, eps aside.
    """
    mean_square = mean = step = 0.0 * x
    for g in gradients:
        mean_square = alpha * mean_square + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        variance = mean_square - mean**2 if centered else mean_square
        root = variance**0.5
        step = momentum * step - lr * g / (root + eps)
        x = x + step
        yield x


def adam(
    theta,
    gradients,
    lr,
    betas,
    eps,
    weight_decay=0.0,
    decoupled=False,
    bias_correction=True,
    amsgrad=False,
):
    """Kingma and Ba 2014, algorithm 1.

    Weight decay is that of algorithm 2 of Loshchilov and Hutter 2017, times lr. `amsgrad` is
    Reddi, Kale and Kumar 2018, with torch's correction of the bias, which they leave out.
    """
    m = v = largest = 0.0 * theta
    for t, f in enumerate(gradients, start=1):
        g = f if decoupled else f + weight_decay * theta
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        if amsgrad:
            largest = np.maximum(largest, v)
        correct_m = correct_v = 1.0
        if bias_correction:
            correct_m = 1 - betas[0] ** t
            correct_v = 1 - betas[1] ** t
        root = ((largest if amsgrad else v) / correct_v) ** 0.5
        decay = lr * weight_decay * theta if decoupled else 0.0
        theta = theta - lr * (m / correct_m) / (root + eps) - decay
        yield theta


@dataclass(frozen=True)
class Task:
    """Tensors to be optimized, and the gradient of each at every step.

    Its printed form reproduces it.
    """

    shapes: tuple[tuple[int, ...], ...]
    steps: int
    scale: float
    seed: int

    def arrays(self):
        """The weights to start from; then for each tensor its gradients, one per step."""
        rng = np.random.default_rng(self.seed)
        weights = [np.asarray(rng.standard_normal(shape)) for shape in self.shapes]
        gradients = []
        for shape in self.shapes:
            drawn = [rng.standard_normal(shape) for _ in range(self.steps)]
            gradients.append([np.asarray(self.scale * each) for each in drawn])
        return weights, gradients

    def reference(self, update, **options):
        """The weights after each step, for each tensor."""
        return [
            list(update(w, gradients, **options))
            for w, gradients in zip(*self.arrays(), strict=True)
        ]

    def torchs(self, optimizer, device, **options):
        """The same steps by one optimizer of torch, in fp64; and its state."""
        device = with_dtype(device)
        weights, gradients = self.arrays()
        parameters = [torch.nn.Parameter(torch.tensor(w, device=device)) for w in weights]
        # Several groups, the last one of several tensors; one of them has a gradient only at first.
        idle = torch.nn.Parameter(torch.ones(2, device=device))
        idle.grad = torch.ones_like(idle)
        groups = [{"params": parameters[:1]}, {"params": [*parameters[1:], idle]}]
        stepper = optimizer(groups, **options)
        paths, rest = [[] for _ in parameters], []
        for step in range(self.steps):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = torch.tensor(gradient[step], device=device)
            stepper.step()
            for parameter, path, gradient in zip(parameters, paths, gradients, strict=True):
                path.append(parameter.detach().cpu().numpy().copy())
                left = np.array(parameter.grad.tolist())
                # If torch updates all tensors at once, it adds Nesterov's momentum to the
                # gradients themselves.
                same = options.get("nesterov") or np.array_equal(left, gradient[step])
                assert same, f"a step changed its gradient {gradient[step]} to {left}"
            rest.append(idle.tolist())
            assert rest[-1] == rest[0], f"without a gradient {rest[0]} becomes {rest[-1]}"
            idle.grad = None
        stepper.zero_grad()
        left = [each.grad for each in parameters]
        assert left == [None] * len(left), f"zero_grad() leaves gradients {left}"
        return paths, [stepper.state[parameter] for parameter in parameters]


tasks = st.builds(
    Task,
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=3).map(
        tuple
    ),
    steps=st.sampled_from([1, 2, 4, 25]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)


def apart(got, should):
    """The largest difference between two runs, relative to values above 1."""
    errors = []
    for path, other in zip(got, should, strict=True):
        for one, two in zip(path, other, strict=True):
            errors.append(np.max(np.abs(one - two) / np.maximum(np.abs(two), 1)))
    return float(np.max(errors))


def descended(
    start,
    gradient,
    keeping,
    steps=100,
    lr=1e-3,
):
    """Weights after `steps` steps of SGD.

    They are kept in a dtype, or in a 16-bit one with one of the two repairs.
    """
    dtype, _, repair = keeping.partition(", ")
    weights = torch.nn.Parameter(start.to(TORCH_DTYPES[dtype], copy=True))
    stepper = torch.optim.SGD([weights], lr=lr)
    master = start.clone()
    generator = torch.Generator(start.device).manual_seed(0)
    for _ in range(steps):
        weights.grad = gradient(weights.detach())
        if not repair:
            stepper.step()
        elif repair == "fp32 master":
            master -= lr * weights.grad.float()
            weights.data.copy_(master)
        else:
            updated = weights.detach().float() - lr * weights.grad.float()
            weights.data.copy_(stochastically_rounded(updated, generator))
    return weights.detach().float()


class OwnAdagrad(torch.optim.Optimizer):
    """AdaGrad as the lecture writes it: a loop over the groups, eps inside the root."""

    def __init__(self, parameters, lr=0.01, eps=1e-5):
        super().__init__(parameters, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self):  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                kept = self.state[p]
                kept["g2"] = kept.get("g2", torch.zeros_like(p)) + p.grad.square()
                p.sub_(group["lr"] * p.grad / (kept["g2"] + group["eps"]).sqrt())
