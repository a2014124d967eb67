"""Claims about updates of torch's optimizers: against their papers, and in 16 bits."""

from functools import partial
from itertools import product
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from test_claims.oracles import optimizers as papers
from test_claims.oracles.messages import at_least, at_most, close, equal
from test_claims.strategies import TORCH_DTYPES, fewer, with_dtype

rates = st.sampled_from([1e-4, 0.01, 3.0])
averages = st.floats(0.5, 0.999)
epsilons = st.sampled_from([1e-12, 1e-8, 1e-2])
momenta = st.sampled_from([0.0, 0.9])


# The averages that each keeps, with the power of the gradients and the place of the factor.
AVERAGES_OF_ADAM = {"exp_avg": (1, 0), "exp_avg_sq": (2, 1)}
AVERAGE_OF_RMSPROP = {"square_avg": (2, 0)}


@pytest.mark.claim("optim.state-keyed")
@pytest.mark.parametrize(
    ("optimizer", "option", "names"),
    [
        pytest.param(
            torch.optim.Adam,
            "betas",
            AVERAGES_OF_ADAM,
            marks=pytest.mark.claim(
                "optim.adam-description", "optim.adam-2", "optim.adam-for-adagrad"
            ),
        ),
        pytest.param(
            torch.optim.RMSprop,
            "alpha",
            AVERAGE_OF_RMSPROP,
            marks=pytest.mark.claim("optim.rmsprop-ema", "optim.rmsprop-1"),
        ),
    ],
)
@given(task=papers.tasks, factors=st.tuples(averages, averages))
def test_averages_of_the_gradients_are_kept_and_not_the_gradients(
    device, optimizer, option, names, task, factors
):
    options = {option: factors if option == "betas" else factors[0]}
    _, states = task.torchs(optimizer, device, **options)
    ages = range(task.steps - 1, -1, -1)
    for state, history in zip(states, task.arrays()[1], strict=True):
        kept = {name: of.cpu().numpy() for name, of in state.items()}
        for (name, average), g, power in product(kept.items(), history, (1, 2)):
            same = np.array_equal(average, g**power)
            assert not same, f"{name} is a gradient or its square"
        for name, (power, place) in names.items():
            each = [factors[place] ** age * g**power for age, g in zip(ages, history, strict=True)]
            should = (1 - factors[place]) * sum(each)
            error = np.abs(kept[name] - should).max() / task.scale**power
            at_most(error, 1e-12, f"{name} beyond the average of the gradients")


decays = st.sampled_from([0.0, 0.1])
adams = {
    "lr": rates,
    "betas": st.tuples(averages, averages),
    "eps": epsilons,
    "weight_decay": decays,
}
balls = {"lr": rates, "momentum": st.floats(0, 0.99)}
adagrads = {
    "lr": rates,
    "eps": epsilons,
    "lr_decay": decays,
    "initial_accumulator_value": st.floats(0, 2),
}
rmsprops = {
    "lr": rates,
    "alpha": averages,
    "eps": epsilons,
    "momentum": momenta,
    "centered": st.booleans(),
}
# The claims; torch's optimizer, the update of the paper, and the options of both.
UPDATES = {
    "SGD": (
        ["optim.sgd-none", "optim.sgd-update"],
        torch.optim.SGD,
        papers.sgd,
        {"lr": rates},
    ),
    "heavy ball": (
        ["optim.momentum-1", "optim.momentum-update", "optim.history"],
        torch.optim.SGD,
        papers.heavy_ball,
        balls,
    ),
    "Nesterov": (
        ["optim.momentum-update", "optim.history"],
        torch.optim.SGD,
        papers.nesterov,
        {"lr": rates, "momentum": st.floats(0.1, 0.99), "nesterov": st.just(True)},
    ),
    "AdaGrad": (
        ["optim.adagrad-update", "optim.adagrad-1"],
        torch.optim.Adagrad,
        papers.adagrad,
        adagrads,
    ),
    "RMSProp": (
        # Not Adam, with momentum: there the scaled gradients are averaged.
        ["optim.rmsprop-ema", "optim.rmsprop-1", "optim.adam-combo"],
        torch.optim.RMSprop,
        papers.rmsprop,
        rmsprops,
    ),
    "Adam": (
        ["optim.adam-combo"],
        torch.optim.Adam,
        papers.adam,
        {**adams, "amsgrad": st.booleans()},
    ),
    "AdamW": (
        ["optim.adam-combo"],
        torch.optim.AdamW,
        partial(papers.adam, decoupled=True),
        adams,
    ),
}


@pytest.mark.parametrize(
    ("optimizer", "update", "options"),
    [
        pytest.param(*row, marks=pytest.mark.claim(*claims), id=name)
        for name, (claims, *row) in UPDATES.items()
    ],
)
@given(task=papers.tasks, data=st.data())
def test_torchs_update_is_the_one_of_its_paper(device, optimizer, update, options, task, data):
    drawn = data.draw(st.fixed_dictionaries(options))
    got, _ = task.torchs(optimizer, device, **drawn)
    most = 1e-9 if "alpha" in drawn else papers.ROUNDING
    error = papers.apart(got, task.reference(update, **drawn))

    at_most(error, most, "the difference", options=drawn)


@pytest.mark.claim("optim.momentum-average", "optim.state-keyed")
@given(task=papers.tasks, momentum=st.floats(0.1, 0.99) | st.just(0.9))
def test_the_buffer_is_an_average_with_dampening_and_a_sum_without(device, task, momentum):
    _, gradients = task.arrays()
    ages = np.arange(task.steps)[::-1]
    # The first gradient enters undampened, so that the weights of the average add up to 1 from the
    # first step on.
    weights = {
        0.0: momentum**ages,
        momentum: np.where(ages == task.steps - 1, 1, 1 - momentum) * momentum**ages,
    }
    for dampening, each in weights.items():
        _, states = task.torchs(
            torch.optim.SGD, device, lr=0.01, momentum=momentum, dampening=dampening
        )
        for state, history in zip(states, gradients, strict=True):
            should = sum(weight * g for weight, g in zip(each, history, strict=True))
            buffer = state["momentum_buffer"].cpu().numpy()
            error = np.abs(buffer - should).max() / task.scale
            at_most(error, 1e-11, "the buffer beyond the weighted sum", dampening=dampening)


@pytest.mark.claim(
    "optim.adagrad-update", "optim.adagrad-1", "optim.adam-for-adagrad", "optim.state-keyed"
)
@given(task=papers.tasks, lr=rates, initial=st.floats(0, 2))
@example(task=papers.Task(((300, 300),), steps=2, scale=1.0, seed=0), lr=0.1, initial=0.0)
def test_adagrad_keeps_the_sum_of_squares_and_is_not_adam(device, task, lr, initial):
    paths, states = task.torchs(
        torch.optim.Adagrad, device, lr=lr, initial_accumulator_value=initial
    )
    for state, history in zip(states, task.arrays()[1], strict=True):
        got = state["sum"].cpu().numpy()
        squares = initial + sum(g**2 for g in history)
        at_most((np.abs(got - squares) - 1e-12 * squares).max(), 0, "the sum beyond rounding")
    adam, _ = task.torchs(torch.optim.Adam, device, lr=lr)
    assert task.steps == 1 or papers.apart(adam, paths) > papers.ROUNDING, (
        "Adam takes the path of AdaGrad"
    )


def moved(
    optimizer,
    device,
    gradients,
    decay=0.0,
    start=0.0,
    layout=torch.strided,
    **options,
):
    """The move of each step, one parameter a column; `decay` times the weights joins a gradient."""
    parameter = torch.nn.Parameter(torch.full_like(gradients[0], start, device=device))
    stepper = optimizer([parameter], **options)
    path = [parameter.detach().clone()]
    for gradient in gradients:
        dense = gradient.to(parameter) + decay * parameter.detach()
        parameter.grad = dense.to_sparse() if layout == torch.sparse_coo else dense
        stepper.step()
        path.append(parameter.detach().clone())
    return torch.stack(path).diff(dim=0).double().cpu().numpy()


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(each, marks=pytest.mark.claim(claim), id=claim.partition(".")[2])
        for claim, each in (
            ("optim.sgd-update", torch.optim.SGD),
            ("optim.momentum-update", partial(torch.optim.SGD, momentum=0.9)),
            ("optim.adagrad-update", torch.optim.Adagrad),
            ("optim.rmsprop-ema", torch.optim.RMSprop),
            ("optim.adam-combo", torch.optim.Adam),
        )
    ],
)
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("columns", [3, 600])
def test_options_and_loops_do_what_they_say(device, optimizer, dtype, columns):
    """Weight decay adds a share of the weights to the gradient, and maximizing turns its sign."""
    torch_dtype = TORCH_DTYPES[dtype]
    device = with_dtype(device, torch_dtype)
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(4, columns, generator=generator, dtype=torch.float64)
    take = partial(moved, optimizer, device, start=1.0, lr=0.1)
    exact = take(gradients)
    gradients = gradients.to(torch_dtype)
    plain = take(gradients)
    with_decay = take(gradients, decay=0.1)
    # Torch's loop over all tensors at once refuses such a rate.
    rate = torch.tensor(0.1, dtype=torch.float64)
    pairs = [
        (plain, exact),
        (take(gradients, lr=rate, foreach=False), plain),
        (take(-gradients, maximize=True), plain),
        (take(gradients, weight_decay=0.1), with_decay),
    ]
    near = 64 * torch.finfo(torch_dtype).eps
    for number, (got, should) in enumerate(pairs):
        at_most(np.abs(got - should).max(), near, f"the difference of way {number}")
    at_least(np.abs(with_decay - plain).max(), 1e-4, "what weight decay changes")


@pytest.mark.claim("optim.adagrad-flat-average")
@fewer
@given(size=st.floats(0.1, 10), lr=rates)
def test_steps_of_adagrad_shrink_where_those_of_a_flat_average_would_not(device, size, lr):
    gradients = torch.full((64, 1), size)
    for layout in (torch.strided, torch.sparse_coo):
        with torch.sparse.check_sparse_tensor_invariants():
            lengths = -moved(torch.optim.Adagrad, device, gradients, layout=layout, lr=lr)[:, 0]
        close(lengths, lr / np.arange(1, 65) ** 0.5, "lengths of the steps", rel=1e-3)

    # An average of equal squares is the square, whatever their number.
    of_average = lr * size / sqrt(size**2)
    close(of_average / lengths[-1], 8, "a flat average's last step over it", rel=1e-3)


@pytest.mark.claim("optim.adaptive-rate")
@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adam, torch.optim.AdamW]
)
@fewer
@given(
    seed=st.integers(0, 2**32 - 1),
    factor=st.sampled_from([1e-4, 0.3, 7.0, 1e4]),
    steps=st.integers(1, 5),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_a_constant_factor_of_one_parameters_gradients_changes_no_step(
    device, optimizer, seed, factor, steps, dtype
):
    device = with_dtype(device, dtype)
    gradients = torch.rand(steps, 5, generator=torch.manual_seed(seed)).to(dtype) + 1
    # The others keep their gradients: a rate that all parameters share would follow them.
    scaled = gradients * torch.tensor([factor, 1, 1, 1, 1], dtype=dtype)
    plain = moved(optimizer, device, gradients, lr=0.5)
    same = moved(optimizer, device, scaled, lr=0.5)
    close(same, plain, "steps", rel=max(1e-3, 8 * torch.finfo(dtype).eps))

    tiny = moved(optimizer, device, gradients * 1e-14, lr=0.5)
    at_most(abs(tiny).sum() / abs(plain).sum(), 0.01, "steps far below eps, over the others")

    before, after = (
        moved(torch.optim.SGD, device, each.float(), lr=0.5) for each in (gradients, scaled)
    )
    close(after[:, 0] / before[:, 0], np.full(steps, factor), "SGD's steps", rel=1e-2)


@pytest.mark.claim("optim.adam-combo")
def test_without_the_correction_the_first_step_is_another(device):
    corrected = moved(torch.optim.Adam, device, torch.ones(1, 1), lr=0.01).item()
    (uncorrected,) = papers.adam(0.0, [1.0], 0.01, (0.9, 0.999), 1e-8, bias_correction=False)
    close(uncorrected / corrected, 3.2, "the first step over the corrected one", rel=0.02)


@pytest.mark.claim("optim.subclass")
@given(task=papers.tasks, lr=rates)
def test_an_own_subclass_takes_the_steps_of_torchs_adagrad(device, task, lr):
    got, _ = task.torchs(papers.OwnAdagrad, device, lr=lr, eps=0.0)
    should, _ = task.torchs(torch.optim.Adagrad, device, lr=lr, eps=0.0)
    at_most(papers.apart(got, should), papers.ROUNDING, "the difference")


LINKS = {"none": (torch.nn.Identity(), 0.015), "sine": (lambda x: torch.sin(x / 4), 0.3)}


@pytest.mark.claim("optim.fp32-state-needed", "amp.recipe-bf16-params", "dtype.bf16-suffices")
@pytest.mark.parametrize(("seed", "link"), [*enumerate(LINKS)])
def test_descent_in_16_bits_learns_nothing_from_afar_unless_repaired(device, seed, link):
    """Half a spacing near 1 in bf16, as near 8 in fp16, exceeds each update; near 0 it is tiny."""
    torch.manual_seed(seed)
    of, lr = LINKS[link]
    width = 8 << seed
    x = torch.randn(256, width).to(device)
    way = torch.linspace(0.02, 0.15, width).to(device)

    def left(keeping, begin=1.0):
        target = of(x @ (begin + way))

        def loss(weights):
            return (of(x @ weights) - target).pow(2).mean()

        def gradient(weights):
            wide = weights.float().requires_grad_()
            return torch.autograd.grad(loss(wide), wide)[0].to(weights.dtype)

        start = torch.full_like(way, begin)
        end = papers.descended(start, gradient, keeping, steps=150, lr=lr)
        return (loss(end) / loss(start)).item()

    lost = {"bf16": left("bf16"), "fp16": left("fp16", begin=8.0)}

    at_least(min(lost.values()), 1 / 2, "the loss left from afar")

    others = [left(of) for of in ("fp32", "bf16, fp32 master", "bf16, stochastic rounding")]
    others += [left("fp16, fp32 master", begin=8.0), *(left(of, begin=0.0) for of in lost)]
    at_most(max(others), 1 / 10, "the loss left in fp32, repaired and from 0 on")


@pytest.mark.claim("optim.fp32-state-needed")
def test_a_second_moment_in_bf16_never_decays(device):
    """0.999 times a number is within half a spacing of it, so one large gradient rules."""
    gradients = torch.logspace(-6, 4, 100)
    left = {}
    for dtype in (torch.bfloat16, torch.float32):
        parameter = torch.nn.Parameter(torch.ones(100, device=device, dtype=dtype))
        stepper = torch.optim.Adam([parameter], lr=1e-3, betas=(0.9, 0.999), foreach=False)
        parameter.grad = gradients.to(parameter)
        stepper.step()
        first = stepper.state[parameter]["exp_avg_sq"].tolist()
        parameter.grad = torch.zeros_like(parameter)
        for _ in range(1000):
            stepper.step()
        left[dtype] = np.array(stepper.state[parameter]["exp_avg_sq"].tolist()) / first
    equal(set(left[torch.bfloat16]), {1}, "what is left after 1000 steps in bf16")
    close(left[torch.float32], 0.999**1000, "what is left in fp32", rel=1e-3)
