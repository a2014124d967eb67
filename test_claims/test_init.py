"""Claims about initialisation: the size of outputs, and whether a net can be trained.

Bounds follow from the distribution of the samples, and are wrong once in a billion samples.
"""

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.special import bdtrik, gammainccinv, gammaincinv, polygamma
from torch import nn

from test_claims.oracles.dispatched import linear_net
from test_claims.oracles.messages import at_most, between, close, equal
from test_claims.strategies import covering, in_fp64

FALSE_ALARM = 1e-9
DTYPES = (torch.float32, torch.bfloat16)
# 6.1 of them.
SIGMAS = -NormalDist().inv_cdf(FALSE_ALARM / 2)


def normal_values(device, seed, *shape):
    """Independent N(0, 1) values from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def unit_features(device, seed, width):
    """A random direction of `width` features whose root mean square is 1.

    Its products with normal weights are normal, independent, and of a variance that is known.
    """
    x = in_fp64(normal_values(device, seed, width))
    return (x / x.square().mean().sqrt()).float().to(device)


def root_mean_square(x):
    return in_fp64(x).square().mean().sqrt().item()


def deviation_bounds(deviation, samples):
    """Bounds of the root mean square of `samples` N(0, deviation²) values: squares are a χ²."""
    low = 2 * gammaincinv(samples / 2, FALSE_ALARM / 2) / samples
    high = 2 * gammainccinv(samples / 2, FALSE_ALARM / 2) / samples
    return deviation * math.sqrt(low), deviation * math.sqrt(high)


def share_bounds(share, samples):
    """Bounds of the share of samples that have a property of this probability: a binomial."""
    low, high = (bdtrik(p, samples, share) for p in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    return math.floor(low) / samples, math.ceil(high) / samples


def growth_bounds(width, layers, deviation=1.0):
    """Bounds of the growth of a vector's root mean square over square layers of normal weights.

    Each layer multiplies the squared length by deviation² times an independent χ² of `width`
    degrees of freedom. The bound is Chernoff's, of the sum of their logarithms: right for any tilt,
    and narrow for the tilt of a normal.
    """

    def cumulant(tilt):
        logarithm = math.lgamma(width / 2 + tilt) - math.lgamma(width / 2)
        return layers * (tilt * math.log(2) + logarithm)

    rarity = math.log(2 / FALSE_ALARM)
    up = math.sqrt(2 * rarity / (layers * polygamma(1, width / 2)))
    # The cumulant is finite above -width / 2.
    down = min(up, width / 4)
    low = -(cumulant(-down) + rarity) / down
    high = (cumulant(up) + rarity) / up
    return deviation**layers * math.exp(low / 2), deviation**layers * math.exp(high / 2)


def truncated_moment(power, bound):
    """The expectation of x^power for a standard normal x truncated at ±bound, by integration."""
    points, weights = np.polynomial.legendre.leggauss(60)

    def integral(power):
        x = bound * points
        return (weights * x**power * np.exp(-x * x / 2)).sum()

    return integral(power) / integral(0)


def truncated_deviation_bounds(bound, samples):
    """Bounds of the root mean square of `samples` truncated normal values: a mean of squares."""
    variance = truncated_moment(2, bound)
    fourth = truncated_moment(4, bound)
    spread = SIGMAS * math.sqrt((fourth - variance**2) / samples)
    return math.sqrt(variance - spread), math.sqrt(variance + spread)


# Weights of variance 1. The tails of the others are lighter than the normal's: its bounds hold.
def unit_weights(kind, weights):
    if kind == "normal":
        return nn.init.normal_(weights)
    if kind == "uniform":
        return nn.init.uniform_(weights, -math.sqrt(3), math.sqrt(3))
    if kind == "positive":
        return nn.init.uniform_(weights, 0, math.sqrt(12))
    return nn.init.uniform_(weights, -1, 1).sign()


def initialised(device, x, initialise, seed, **options):
    """A tensor after a function of torch.nn.init, with a generator of its own."""
    return initialise(x, generator=torch.Generator(device).manual_seed(seed), **options)


DIVIDED = pytest.param(-0.5, marks=pytest.mark.claim("init.rescale"), id="divided by the root")
UNDIVIDED = pytest.param(0, marks=pytest.mark.claim("init.sqrt-growth"), id="unit weights")


# The power of fan_in with which the weights are multiplied.
@pytest.mark.parametrize("power", [UNDIVIDED, DIVIDED])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize(
    ("fan_in", "fan_out", "size"),
    [
        (1, 1000, 1.0),
        (2, 1000, 300.0),
        (37, 2000, 0.002),
        (600, 1000, 1.0),
        (5000, 300, 7.0),
    ],
)
def test_outputs_have_the_size_of_the_inputs_times_the_root_of_fan_in(
    device, power, fan_in, fan_out, size, dtype
):
    """Of a linear layer, in each row of its batch. Rounding errors are far within the bounds."""
    normal = torch.empty(fan_out, fan_in, device=device, dtype=dtype)
    generator = torch.Generator(device).manual_seed(1)
    # Up to 15 numbers are drawn in another way than more.
    for some in normal.split(1 if fan_in < 16 else fan_out):
        nn.init.normal_(some, generator=generator)
    weights = fan_in**power * normal
    rows = torch.stack([size * unit_features(device, seed, fan_in) for seed in (0, 2)])
    bounds = deviation_bounds(size * fan_in ** (power + 0.5), fan_out)
    for row in rows.to(dtype) @ weights.mT:
        between(root_mean_square(row), *bounds, f"the size of outputs in {dtype}")


@pytest.mark.claim("init.variance-scales")
@pytest.mark.parametrize("kind", ["normal", "uniform", "positive", "signs"])
@pytest.mark.parametrize(
    ("fan_in", "x_size", "w"),
    [
        (30, 1.0, 1.0),
        (81, 500.0, 0.001),
        (600, 0.01, 40.0),
    ],
)
def test_the_variance_is_fan_in_times_that_of_weights_and_inputs(device, kind, fan_in, x_size, w):
    torch.manual_seed(0)
    weights = w * unit_weights(kind, torch.empty(3000, fan_in, device=device))
    x = x_size * unit_features(device, 1, fan_in)
    low, high = deviation_bounds(1.0, 3000 - 1)
    variance = in_fp64(weights @ x).var().item()
    ratio = variance / (fan_in * w**2 * x_size**2)
    between(ratio, low**2, high**2, "variance / (fan_in · variances)")


# Each with its options, and the square of the deviation that it gives, by its paper.
INITIALISERS = {
    "xavier_normal_": ({"gain": 3.0}, lambda fan_in, fan_out: 18 / (fan_in + fan_out)),
    "xavier_uniform_": ({}, lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
    "kaiming_normal_": ({"nonlinearity": "linear"}, lambda fan_in, _: 1 / fan_in),
    "kaiming_uniform_": ({"nonlinearity": "linear"}, lambda fan_in, _: 1 / fan_in),
}


@pytest.mark.claim("init.xavier-constant")
@pytest.mark.parametrize("name", INITIALISERS)
@pytest.mark.parametrize("kernel", [(), (2,), (2, 2)], ids=str)
def test_xaviers_deviation_is_the_rescale_times_a_factor(device, name, kernel):
    """Kaiming is the rescale itself; a convolution multiplies both fans by its window."""
    options, variance = INITIALISERS[name]
    for case in covering("init.xavier-constant"):
        empty = case.tensor(device)
        window = math.prod(kernel)
        flat = empty.unflatten(1, (-1, *kernel))
        for weights in (flat, flat.transpose(0, 1)):
            initialised(device, weights, getattr(nn.init, name), 0, **options)
            fan_out, fan_in = len(weights) * window, weights[0].numel()
            bounds = deviation_bounds(math.sqrt(variance(fan_in, fan_out)), weights.numel())
            between(root_mean_square(weights), *bounds, "the weights' deviation", case=case)


def growth(device, seed, width, layers, deviation, dtype):
    """By how much the size of x is multiplied by `layers` linear layers of this width."""
    x = unit_features(device, seed, width).to(dtype)[None]
    for layer in range(layers):
        weights = deviation * normal_values(device, seed + 1 + layer, width, width)
        x = x @ weights.to(dtype).mT
    return root_mean_square(x)


@pytest.mark.claim("init.explodes-with-depth", "init.0.02", "loop.naive-init-fails")
@pytest.mark.parametrize(
    ("width", "layers"),
    [
        (16, 1),
        (16, 12),
        (128, 5),
        (256, 8),
        (50, 3),
    ],
    ids=str,
)
def test_layers_of_unit_weights_multiply_by_the_root_of_the_width_each(device, width, layers):
    for deviation, dtype in product((1.0, 1 / math.sqrt(width), 0.02), DTYPES):
        got = growth(device, width + layers, width, layers, deviation, dtype)
        bounds = growth_bounds(width, layers, deviation)
        between(got, *bounds, f"the growth with a deviation of {deviation:.3g}")


def truncated(device, seed, deviation, bound, values=2**14, mean=0.0, dtype=torch.float32):
    """Weights from trunc_normal_ with bounds at mean ± bound, in units of their deviation."""
    empty = torch.empty(values // 64, 64, device=device, dtype=dtype)
    options = {"mean": mean, "std": deviation, "a": mean - bound, "b": mean + bound}
    weights = initialised(device, empty, nn.init.trunc_normal_, seed, **options)
    return (in_fp64(weights).flatten() - mean) / deviation


DEVIATIONS = [0.001, 0.02, 1.0, 700.0]


def tail(beyond):
    """The share of a standard normal's values beyond ± this many deviations."""
    return math.erfc(beyond / math.sqrt(2))


@pytest.mark.claim("init.trunc-3")
@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("mean", [0, 5])
def test_bounds_of_three_deviations_leave_no_weight_beyond(device, deviation, mean):
    for dtype in (torch.float32, torch.float64):
        weights = truncated(
            device, 0, deviation, 3 * deviation, 2**16, mean=mean * deviation, dtype=dtype
        )
        largest = weights.abs().max().item()
        # The bounds are rounded to fp32.
        at_most(largest, 3 * (1 + 1e-6), "the largest weight in deviations", dtype=dtype)

        # Nothing more is cut: a thousandth of the rest lies between 2.9 and 3 deviations.
        inner = (tail(2.9) - tail(3)) / (1 - tail(3))
        got = in_fp64(weights.abs() > 2.9).mean().item()
        between(got, *share_bounds(inner, len(weights)), "the share beyond 2.9 deviations")


@pytest.mark.claim("init.trunc-3", "init.trunc-shrinks-std")
def test_weights_of_every_layout_and_dtype_are_truncated(device):
    """In bf16 torch draws so few different values that the deviation is 1 % off."""
    for case in covering("init.trunc-3"):
        weights = initialised(device, case.tensor(device), nn.init.trunc_normal_, 0, a=-3, b=3)
        at_most(weights.abs().max().item(), 3, "the largest weight in deviations", case=case)
        low, high = truncated_deviation_bounds(3.0, weights.numel())
        off = 2 * torch.finfo(weights.dtype).eps
        between(root_mean_square(weights), low - off, high + off, "the deviation", case=case)


@pytest.mark.claim("init.trunc-3")
@pytest.mark.parametrize("fan_in", [4, 100, 2**14])
def test_bounds_of_three_truncate_nothing_of_a_small_deviation(device, fan_in):
    weights = truncated(device, 0, 1 / math.sqrt(fan_in), 3.0, 2**19)
    for beyond in (3, 4):
        bounds = share_bounds(tail(beyond), len(weights))
        assert bounds[0] > 0, f"too few weights to be sure of one beyond {beyond} deviations"
        got = in_fp64(weights.abs() > beyond).mean().item()
        between(got, *bounds, f"the share beyond {beyond} deviations")


@pytest.mark.claim("init.trunc-shrinks-std")
def test_a_normal_truncated_at_three_keeps_0_98658_of_its_deviation(device, record_figure):
    """By formula the root of 1 − 6φ(3)/erf(3/√2); by the integral; by a million values."""
    density = math.exp(-9 / 2) / math.sqrt(2 * math.pi)
    within = math.erf(3 / math.sqrt(2))
    formula = math.sqrt(1 - 6 * density / within)
    integral = math.sqrt(truncated_moment(2, 3.0))
    close(formula, integral, "the formula", rel=1e-9)
    equal(round(formula, 5), 0.98658, "the formula")

    got = root_mean_square(truncated(device, 0, 0.02, 0.06, 2**20))
    record_figure(f"{got:.4f} of the deviation is left")
    between(got, *truncated_deviation_bounds(3.0, 2**20), "the deviation that is left")


@pytest.mark.claim("init.trunc-shrinks-std")
@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("bound", [0.5, 1.7, 4.0])
def test_what_truncation_leaves_is_the_integral_for_every_bound(device, deviation, bound):
    got = root_mean_square(truncated(device, 0, deviation, bound * deviation))
    between(got, *truncated_deviation_bounds(bound, 2**14), "the deviation that is left")


@pytest.mark.claim("init.0.02")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fan_in", [1, 64, 768, 2500, 5000])
def test_outputs_of_a_002_layer_are_of_unit_size_only_near_fan_in_2500(device, fan_in, dtype):
    fan_out = 600
    torch.manual_seed(0)
    layer = nn.Linear(fan_in, fan_out, device=device, dtype=dtype)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        of_zero = layer(torch.zeros(fan_in, device=device, dtype=dtype))
        outputs = layer(unit_features(device, 1, fan_in).to(dtype))

    bounds = deviation_bounds(0.02, layer.weight.numel())
    between(root_mean_square(layer.weight), *bounds, "the weights' deviation")
    equal(of_zero.count_nonzero().item(), 0, "outputs for zero that are not 0")

    low, high = deviation_bounds(0.02 * math.sqrt(fan_in), fan_out)
    between(root_mean_square(outputs), low, high, "the outputs' deviation")
    equal(high < 1, fan_in < 2500, "whether it is sure to shrink")

    equal(low > 1, fan_in > 2500, "whether it is sure to grow")


def trained_losses(device, seed, layers, width, deviation):
    """The losses of a deep linear net that learns a linear map; they end where not finite."""
    torch.manual_seed(seed)
    net = linear_net([width] * (layers + 1), device)
    for weight in net.parameters():
        nn.init.normal_(weight, std=deviation)
    x = normal_values(device, seed + 1, 64, width)
    wanted = normal_values(device, seed + 2, width, width) / math.sqrt(width)
    y = x @ wanted
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    while len(losses) <= 30 and (not losses or math.isfinite(losses[-1])):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    return losses


@pytest.mark.claim("init.stability", "loop.naive-init-fails")
@pytest.mark.parametrize(
    ("layers", "width"),
    [
        (2, 16),
        (2, 64),
        (3, 40),
        (5, 16),
        (8, 64),
        (8, 24),
        (4, 256),
    ],
)
def test_one_learning_rate_serves_rescaled_nets_of_every_depth_and_width(device, layers, width):
    first, *_, last = trained_losses(device, layers, layers, width, 1 / math.sqrt(width))
    at_most(last, 0.7 * first, "the last loss")
    at_most(first, 10, "the first loss")

    # Two layers of unit weights may still learn at this rate.
    if layers > 2:
        naive = trained_losses(device, layers, layers, width, 1.0)[-1]
        assert not math.isfinite(naive), f"from N(0, 1) the loss is {naive}, but should overflow"
