"""Claims about initialisation: how large the outputs of linear layers are, and whether a net can be trained from there.

Bounds follow from the distribution of the samples, and are wrong once in a billion samples.
"""

import math

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import nn

from test_claims.strategies import in_fp64, seeds

FALSE_ALARM = 1e-9
SIGMAS = float(stats.norm.isf(FALSE_ALARM / 2))  # 6.1


def normal_values(device: torch.device, seed: int, *shape: int) -> torch.Tensor:
    """Independent N(0, 1) values from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def unit_features(device: torch.device, seed: int, width: int) -> torch.Tensor:
    """A random direction of `width` features whose root mean square is 1: its products with normal weights are normal,
    independent, and of a variance that is known and not itself random."""
    x = in_fp64(normal_values(device, seed, width))
    return (x / x.square().mean().sqrt()).float().to(device)


def root_mean_square(x: torch.Tensor) -> float:
    return in_fp64(x).square().mean().sqrt().item()


def deviation_bounds(deviation: float, samples: int) -> tuple[float, float]:
    """Where the root mean square of independent N(0, deviation²) values lies: `samples` of its squares are a χ²."""
    low = stats.chi2.ppf(FALSE_ALARM / 2, samples)
    high = stats.chi2.isf(FALSE_ALARM / 2, samples)
    return deviation * math.sqrt(low / samples), deviation * math.sqrt(high / samples)


def share_bounds(share: float, samples: int) -> tuple[float, float]:
    """Where the share of samples that have a property lies, if each has it with this probability: a binomial."""
    low = stats.binom.ppf(FALSE_ALARM / 2, samples, share)
    high = stats.binom.isf(FALSE_ALARM / 2, samples, share)
    return low / samples, high / samples


def growth_bounds(width: int, layers: int, deviation: float = 1.0) -> tuple[float, float]:
    """Where the growth of a vector's root mean square lies over `layers` square layers of normal weights.

    Each layer multiplies the squared length by deviation² times an independent χ² of `width` degrees of freedom. The
    bound is Chernoff's, of the sum of their logarithms: right for any tilt, and narrow for the tilt of a normal.
    """

    def cumulant(tilt: float) -> float:
        return layers * (
            tilt * math.log(2) + math.lgamma(width / 2 + tilt) - math.lgamma(width / 2)
        )

    rarity = math.log(2 / FALSE_ALARM)
    up = math.sqrt(2 * rarity / (layers * special.polygamma(1, width / 2)))
    down = min(up, width / 4)  # the cumulant is finite above -width / 2
    low = -(cumulant(-down) + rarity) / down
    high = (cumulant(up) + rarity) / up
    return deviation**layers * math.exp(low / 2), deviation**layers * math.exp(high / 2)


def truncated_moment(power: int, bound: float) -> float:
    """The expectation of x^power for a standard normal x truncated at ±bound, by integration."""
    both = [
        integrate.quad(lambda x, of=of: x**of * math.exp(-x * x / 2), -bound, bound)[0]
        for of in (power, 0)
    ]
    return both[0] / both[1]


def truncated_deviation_bounds(bound: float, samples: int) -> tuple[float, float]:
    """Where the root mean square of `samples` truncated standard normal values lies: a mean of independent squares."""
    variance = truncated_moment(2, bound)
    fourth = truncated_moment(4, bound)
    spread = SIGMAS * math.sqrt((fourth - variance**2) / samples)
    return math.sqrt(variance - spread), math.sqrt(variance + spread)


def assert_within(got: float, bounds: tuple[float, float], what: str) -> None:
    __tracebackhide__ = True
    low, high = bounds
    assert low <= got <= high, (
        f"{what} is {got:.6g}, but should be between {low:.6g} and {high:.6g}"
    )


fans = st.integers(1, 600)
outputs = st.integers(1000, 4000)
deviations = st.floats(1e-3, 1e3)

# Weights of variance 1. The tails of the others are lighter than the normal's, so its bounds cover them.
WEIGHTS = {
    "normal": lambda w: nn.init.normal_(w),
    "uniform": lambda w: nn.init.uniform_(w, -math.sqrt(3), math.sqrt(3)),
    "positive": lambda w: nn.init.uniform_(w, 0, math.sqrt(12)),
    "signs": lambda w: nn.init.uniform_(w, -1, 1).sign(),
}


def initialised(device, shape, initialise, seed, **options):
    """A tensor of this shape after one of torch.nn.init's functions, drawn from a generator of its own."""
    generator = torch.Generator(device).manual_seed(seed)
    return initialise(torch.empty(shape, device=device), generator=generator, **options)


@pytest.mark.parametrize(
    "power",  # of fan_in, with which the weights are multiplied
    [
        pytest.param(0, marks=pytest.mark.claim("init.sqrt-growth"), id="unit weights"),
        pytest.param(
            -0.5, marks=pytest.mark.claim("init.rescale"), id="divided by the root of fan_in"
        ),
    ],
)
@given(seed=seeds, fan_in=fans, fan_out=outputs, size=deviations)
def test_outputs_have_the_size_of_the_inputs_times_the_root_of_fan_in(
    device, power, seed, fan_in, fan_out, size
):
    weights = fan_in**power * normal_values(device, seed + 1, fan_in, fan_out)
    got = root_mean_square(size * unit_features(device, seed, fan_in) @ weights)
    bounds = deviation_bounds(size * fan_in ** (power + 0.5), fan_out)
    assert_within(got, bounds, f"the outputs' size [{fan_in=}, {fan_out=}, {size=}, {seed=}]")


@pytest.mark.claim("init.variance-scales")
@given(seed=seeds, fan_in=st.integers(30, 600), x_size=deviations, w=deviations)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_variance_is_fan_in_times_that_of_weights_and_inputs(
    device, kind, seed, fan_in, x_size, w
):
    torch.manual_seed(seed)
    weights = w * WEIGHTS[kind](torch.empty(fan_in, 3000, device=device))
    x = x_size * unit_features(device, seed + 1, fan_in)
    variance = in_fp64(x @ weights).var().item()
    low, high = deviation_bounds(1.0, 3000 - 1)
    ratio = variance / (fan_in * w**2 * x_size**2)
    assert_within(
        ratio, (low**2, high**2), f"variance / (fan_in · variances) [{kind=}, {fan_in=}, {seed=}]"
    )


def xaviers_factor(fan_in, fan_out):
    return math.sqrt(2 / (1 + fan_out / fan_in))


@pytest.mark.claim("init.xavier-constant")
@pytest.mark.parametrize(
    ("initialise", "factor", "options"),
    [
        (nn.init.xavier_normal_, xaviers_factor, {}),
        (nn.init.xavier_uniform_, xaviers_factor, {}),
        # Kaiming takes the second dimension for fan_in: weights kept as (in, out) must be transposed for it.
        (nn.init.kaiming_normal_, lambda fan_in, fan_out: 1, {"nonlinearity": "linear"}),
    ],
    ids=["xavier_normal_", "xavier_uniform_", "kaiming_normal_"],
)
@given(seed=seeds, fan_in=st.integers(60, 400), fan_out=st.integers(60, 400))
def test_xaviers_deviation_is_the_rescale_times_a_factor(
    device, initialise, factor, options, seed, fan_in, fan_out
):
    weights = initialised(device, (fan_out, fan_in), initialise, seed, **options)
    bounds = deviation_bounds(factor(fan_in, fan_out) / math.sqrt(fan_in), weights.numel())
    assert_within(
        root_mean_square(weights),
        bounds,
        f"the weights' deviation [{fan_in=}, {fan_out=}, {seed=}]",
    )


def growth(device, seed, width, layers, deviation=1.0):
    """By how much the size of x is multiplied by `layers` linear layers of this width."""
    x = unit_features(device, seed, width)
    for layer in range(layers):
        x = x @ (deviation * normal_values(device, seed + 1 + layer, width, width))
    return root_mean_square(x)


@pytest.mark.claim("init.explodes-with-depth", "init.0.02", "loop.naive-init-fails")
@given(seed=seeds, width=st.integers(16, 128), layers=st.integers(1, 12))
@example(seed=0, width=256, layers=8)
def test_layers_of_unit_weights_multiply_by_the_root_of_the_width_each(device, seed, width, layers):
    for deviation in (1.0, 1 / math.sqrt(width), 0.02):
        got = growth(device, seed, width, layers, deviation)
        bounds = growth_bounds(width, layers, deviation)
        assert_within(
            got, bounds, f"the growth through {layers} layers [{width=}, {deviation=:.3g}, {seed=}]"
        )


def truncated(device, seed, deviation, bound, values=2**14):
    """Weights from trunc_normal_ with this deviation and the bounds ±bound, in units of the deviation."""
    weights = initialised(
        device, (values // 64, 64), nn.init.trunc_normal_, seed, std=deviation, a=-bound, b=bound
    )
    return in_fp64(weights).flatten() / deviation


@pytest.mark.claim("init.trunc-3")
@given(seed=seeds, deviation=deviations)
def test_bounds_of_three_deviations_leave_no_weight_beyond(device, seed, deviation):
    weights = truncated(device, seed, deviation, 3 * deviation)
    largest = weights.abs().max().item()
    assert largest <= 3 * (1 + 1e-6), (
        f"the largest weight is {largest} deviations [{deviation=}]"
    )  # bounds in fp32
    # Nothing more is cut: a thousandth of the rest lies between 2.9 and 3 deviations.
    inner = (math.erfc(2.9 / math.sqrt(2)) - math.erfc(3 / math.sqrt(2))) / math.erf(
        3 / math.sqrt(2)
    )
    got = in_fp64(weights.abs() > 2.9).mean().item()
    assert_within(
        got,
        share_bounds(inner, len(weights)),
        f"the share beyond 2.9 deviations [{deviation=}, {seed=}]",
    )


@pytest.mark.claim("init.trunc-3")
@given(seed=seeds, fan_in=st.integers(4, 2**14))
def test_bounds_of_three_truncate_nothing_of_a_small_deviation(device, seed, fan_in):
    weights = truncated(device, seed, 1 / math.sqrt(fan_in), 3.0, 2**19)
    for beyond in (3, 4):
        bounds = share_bounds(math.erfc(beyond / math.sqrt(2)), len(weights))
        assert bounds[0] > 0, f"too few weights to be sure of one beyond {beyond} deviations"
        got = in_fp64(weights.abs() > beyond).mean().item()
        assert_within(got, bounds, f"the share beyond {beyond} deviations [{fan_in=}, {seed=}]")


@pytest.mark.claim("init.trunc-shrinks-std")
def test_a_normal_truncated_at_three_keeps_0_98658_of_its_deviation(device, record_figure):
    """Formula: 1 − 6φ(3)/erf(3/√2), its root. Independent: the integral, and four million values."""
    density = math.exp(-9 / 2) / math.sqrt(2 * math.pi)
    formula = math.sqrt(1 - 6 * density / math.erf(3 / math.sqrt(2)))
    integral = math.sqrt(truncated_moment(2, 3.0))
    assert formula == pytest.approx(integral, rel=1e-9), f"{formula=}, but should be {integral}"
    assert round(formula, 5) == 0.98658, f"{formula=}, but should be 0.98658"
    got = root_mean_square(truncated(device, 0, 0.02, 0.06, 2**22))
    record_figure(f"{got:.4f} of the deviation is left")
    assert_within(got, truncated_deviation_bounds(3.0, 2**22), "the deviation that is left")


@pytest.mark.claim("init.trunc-shrinks-std")
@given(seed=seeds, deviation=deviations, bound=st.floats(0.5, 4))
def test_what_truncation_leaves_is_the_integral_for_every_bound(device, seed, deviation, bound):
    got = root_mean_square(truncated(device, seed, deviation, bound * deviation))
    assert_within(
        got,
        truncated_deviation_bounds(bound, 2**14),
        f"what is left [{bound=}, {deviation=}, {seed=}]",
    )


@pytest.mark.claim("init.0.02")
@given(seed=seeds, fan_in=st.sampled_from([2500, 5000]) | fans, fan_out=outputs)
def test_outputs_of_a_002_layer_are_of_unit_size_only_near_fan_in_2500(
    device, seed, fan_in, fan_out
):
    torch.manual_seed(seed)
    layer = nn.Linear(fan_in, fan_out, device=device)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        of_zero = layer(torch.zeros(fan_in, device=device))
        got = root_mean_square(layer(unit_features(device, seed + 1, fan_in)))
    assert not of_zero.any(), (
        f"{of_zero.count_nonzero()} of {fan_out} outputs for zero are not 0 [{fan_in=}, {seed=}]"
    )
    low, high = deviation_bounds(0.02 * math.sqrt(fan_in), fan_out)
    assert_within(got, (low, high), f"the outputs' deviation [{fan_in=}, {fan_out=}, {seed=}]")
    size = high < 1, low > 1
    assert size == (fan_in < 2500, fan_in > 2500), (
        f"sure to shrink, to grow: {size} [{fan_in=}, {low=}, {high=}]"
    )


def trained_losses(device, seed, layers, width, deviation, rate, steps=30):
    """The losses of a deep linear net that learns a linear map of its width; they end where they are not finite."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        *[nn.Linear(width, width, bias=False, device=device) for _ in range(layers)]
    )
    for layer in net:
        nn.init.normal_(layer.weight, std=deviation)
    x = normal_values(device, seed + 1, 64, width)
    y = x @ normal_values(device, seed + 2, width, width) / math.sqrt(width)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    losses = []
    while len(losses) <= steps and (not losses or math.isfinite(losses[-1])):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.claim("init.stability", "loop.naive-init-fails")
@settings(phases=[Phase.generate])
@given(seed=seeds, layers=st.integers(2, 8), width=st.integers(16, 64))
def test_one_learning_rate_serves_rescaled_nets_of_every_depth_and_width(
    device, seed, layers, width
):
    losses = trained_losses(device, seed, layers, width, 1 / math.sqrt(width), 0.1)
    what = f"[{layers=}, {width=}, {seed=}]"
    assert losses[-1] < 0.7 * losses[0], (
        f"the loss went only from {losses[0]} to {losses[-1]} {what}"
    )
    assert losses[0] < 10, f"the first loss is {losses[0]}, but should be near 2 {what}"
    if layers > 2:  # two layers of unit weights may still learn at this rate
        naive = trained_losses(device, seed, layers, width, 1.0, 0.1)[-1]
        assert not math.isfinite(naive), (
            f"from N(0, 1) the loss is {naive}, but should overflow {what}"
        )


@pytest.mark.claim("init.stability")
@settings(
    max_examples=max(2, settings.default.max_examples // 20), phases=[Phase.generate]
)  # no seed is simpler
@given(seed=seeds)
def test_naive_nets_need_ever_smaller_rates_and_still_do_not_get_there(device, seed):
    """The largest power of ten at which the loss falls at all over 30 steps."""
    largest = {}
    left = {}
    for layers in (2, 4, 8):
        for exponent in range(1, 21):
            losses = trained_losses(device, seed, layers, 64, 1.0, 10.0**-exponent)
            if math.isfinite(losses[-1]) and losses[-1] < losses[0]:
                largest[layers], left[layers] = 10.0**-exponent, losses[-1]
                break
    good = trained_losses(device, seed, 8, 64, 1 / 8, 0.1)[-1]
    assert sorted(largest) == [2, 4, 8], (
        f"from N(0, 1) only these depths learn at any rate: {largest} [{seed=}]"
    )
    assert largest[4] <= 1e-3 * largest[2], (
        f"4 layers learn at {largest[4]}, nearly as 2 at {largest[2]} [{seed=}]"
    )
    assert largest[8] <= 1e-6 * largest[4], (
        f"8 layers learn at {largest[8]}, nearly as 4 at {largest[4]} [{seed=}]"
    )
    assert left[8] > 1e6 * good, (
        f"from N(0, 1) the loss is {left[8]} after 30 steps, rescaled {good} [{seed=}]"
    )
