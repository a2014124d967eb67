"""Optimizers and their state: torch's own against updates written from the papers, and the bytes
that they keep.
"""

from functools import partial
from itertools import pairwise, product
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.functional import softplus

from accounting import memory, optimizers
from accounting.allocator import charge_bounds
from accounting.planning import device_state
from prooflops import measured
from test_claims.oracles import optimizers as papers
from test_claims.oracles import sharding, tensors
from test_claims.strategies import (
    TORCH_DTYPES,
    dtypes_among,
    fewer,
    shapes,
    sizes,
)

FLOATS = ["fp64", "fp32", "bf16", "fp16"]
rates = st.sampled_from([1e-4, 0.01, 0.5])
averages = st.floats(0.5, 0.999)
epsilons = st.sampled_from([1e-12, 1e-8, 1e-2])
momenta = st.sampled_from([0.0, 0.9])
several_shapes = st.lists(shapes(size=(0, 6)), min_size=1, max_size=4)


KEPT = [
    ("sgd", 0, "optim.sgd-none"),
    ("momentum", 1, "optim.momentum-1"),
    ("adagrad", 1, "optim.adagrad-1"),
    ("rmsprop", 1, "optim.rmsprop-1"),
    ("rmsprop-momentum", 2, "optim.rmsprop-1"),
    ("rmsprop-centered", 2, "optim.rmsprop-1"),
    ("rmsprop-centered-momentum", 3, "optim.rmsprop-1"),
    ("adam", 2, "optim.adam-2", "optim.adam-doubles", "optim.adam-description"),
    ("adamw", 2, "optim.adam-2"),
    ("adam-amsgrad", 3, "optim.adam-2"),
    ("adamw-amsgrad", 3, "optim.adam-2"),
]
KEEPING = [
    pytest.param(of, n, marks=pytest.mark.claim(*claims, "optim.state-ON"), id=of)
    for of, n, *claims in KEPT
]


@pytest.mark.parametrize(("optimizer", "buffers"), KEEPING)
@fewer
@given(tensor_shapes=several_shapes, dtype=dtypes_among(FLOATS))
def test_the_allocator_sees_so_many_copies_appear(
    metered_device, optimizer, buffers, tensor_shapes, dtype
):
    kept, (torchs, inputs) = (
        optimizers.OPTIMIZERS[optimizer],
        (TORCH_DTYPES[dtype], f"[{tensor_shapes}, {dtype}]"),
    )
    with measured.memory(metered_device) as held:
        parameters = [
            torch.nn.Parameter(torch.ones(of, device=metered_device, dtype=torchs))
            for of in tensor_shapes
        ]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        held.mark("before")
        stepper = tensors.OPTIMIZERS[optimizer](parameters)
        held.mark("constructor")
        stepper.step()
        held.mark("first step")
        stepper.step()
        held.mark("second step")
    elements = sum(parameter.numel() for parameter in parameters)
    step_counts = len(parameters) if metered_device.type == "cpu" else 0
    whole = (
        buffers * elements * torchs.itemsize
        + optimizers.STEP_BYTES * len(kept.scalars) * step_counts
    )
    for steps, moment in enumerate(["constructor", "first step", "second step"]):
        got = held.phases[moment].live_bytes - held.phases["before"].live_bytes
        should = 0 if steps == 0 and optimizer != "adagrad" else whole
        assert got == should, (
            f"after the {moment} {optimizer} holds {got} bytes, but should hold {should} {inputs}"
        )
        formula = memory.optimizer_state_bytes(
            elements, optimizer, dtype, tensors=step_counts, steps=steps
        )
        assert formula == got, (
            f"optimizer_state_bytes={formula}, but {got} are held after the {moment} {inputs}"
        )


@pytest.mark.claim("optim.state-ON")
def test_the_state_of_adamw_becomes_half_of_all_that_training_holds(metered_device):
    shares = []
    step_counts = 4 if metered_device.type == "cpu" else 0
    for width in (8, 32, 128, 256):
        with torch.device(metered_device):
            net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, width))
            x = torch.ones(8, width)
        stepper = torch.optim.AdamW(net.parameters())
        _, (before, after, whole) = tensors.held_after(
            metered_device,
            lambda net=net, x=x: net(x).pow(2).mean().backward(),
            stepper.step,
            lambda net=net, x=x: net(x).grad_fn,
        )
        got = after - before
        should = 8 * 2 * width * (width + 1) + optimizers.STEP_BYTES * step_counts
        formula = memory.optimizer_state_bytes(
            2 * width * (width + 1), "adamw", tensors=step_counts
        )
        assert got == formula == should, (
            f"AdamW keeps {got} bytes, {formula=}, but should keep {should} [{width=}]"
        )
        shares.append(got / (tensors.parameter_bytes(net) + whole))
    assert shares == sorted(shares), (
        f"the state's share of the bytes is {shares}, but should grow with the width"
    )
    assert 0.49 < shares[-1] < 0.5, (
        f"the state's share is {shares[-1]:.3f} in the end, but should approach 1/2"
    )
    kept = [
        tensors.state_bytes(tensors.stepped(torch.optim.Adafactor, [(n, n)], metered_device)[1])
        for n in (64, 128)
    ]
    assert kept[1] < 2.1 * kept[0], (
        f"Adafactor, factored, keeps {kept} bytes for n and 4n parameters, not 4 times"
    )


LINEAR_1024_BYTES = 16_793_600


@pytest.fixture
def linear_1024(memory_device):
    """Bytes that the device holds for Linear(1024, 1024) trained by AdamW for a step."""
    x = torch.ones(1, 1024, device=memory_device)
    with measured.memory(memory_device) as held:
        net = torch.nn.Linear(1024, 1024, device=memory_device)
        stepper = torch.optim.AdamW(net.parameters())
        tensors.train(net, stepper, x)
        held.mark("trained")
    return net, stepper, held.phases["trained"]


@pytest.mark.claim("optim.linear-1024")
def test_a_linear_layer_of_1024_by_1024_with_adamw_holds_16_793_600_bytes(linear_1024):
    net, stepper, held = linear_1024
    elements = sum(parameter.numel() for parameter in net.parameters())
    summed = (
        tensors.parameter_bytes(net) + tensors.gradient_bytes(net) + tensors.state_bytes(stepper)
    )
    formula = memory.model_state(elements).total
    assert elements == 1_049_600, f"the layer has {elements} parameters, but should have 1,049,600"
    assert formula == summed == LINEAR_1024_BYTES, (
        f"tensors take {summed} bytes, {formula=}, but should be 16,793,600"
    )
    step_counts = 2 * optimizers.STEP_BYTES if next(net.parameters()).device.type == "cpu" else 0
    got = held.live_bytes - step_counts
    assert got == summed, (
        f"the allocator holds {got} bytes beside the step counts, but should hold {summed}"
    )
    scratch = held.peak_bytes - held.live_bytes
    assert scratch >= 4 * 1024**2, (
        f"the step peaks {scratch} bytes above that, but should by a weight or more"
    )


@pytest.mark.claim("optim.linear-1024")
@pytest.mark.needs("cuda")
def test_memory_allocated_is_that_and_what_the_blocks_round_up(linear_1024):
    net, stepper, held = linear_1024
    sizes = [4 * parameter.nbytes for parameter in net.parameters()]
    bounds = [charge_bounds(parameter.nbytes) for parameter in net.parameters()]
    least = 4 * sum(low for low, _ in bounds)
    most = 4 * sum(high for _, high in bounds)
    assert least == sum(sizes) == LINEAR_1024_BYTES, (
        f"{least} bytes are the least charge, but should be 16,793,600"
    )
    got = held.charged_live_bytes
    assert least <= got <= most, (
        f"memory_allocated grew by {got}, but should grow by {least} to {most}"
    )
    places = {state["step"].device.type for state in stepper.state.values()}
    assert places == {"cpu"}, f"the step counts are on {places}, but should be on the CPU"


@pytest.mark.claim("optim.state-keyed")
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "rmsprop", "adam"])
@given(tensor_shapes=st.lists(st.sampled_from([(), (4,), (3, 2)]), min_size=1, max_size=2))
def test_the_state_is_a_dict_keyed_by_parameter_and_persists(
    metered_device, optimizer, tensor_shapes
):
    parameters, stepper = tensors.stepped(
        tensors.OPTIMIZERS[optimizer], tensor_shapes, metered_device
    )
    buffers = optimizers.OPTIMIZERS[optimizer].buffers
    assert set(stepper.state) == set(parameters), f"{optimizer} has state of {list(stepper.state)}"
    before = {(p, name): stepper.state[p][name] for p in parameters for name in buffers}

    def three_steps():
        for _ in range(3):
            for parameter in parameters:
                parameter.grad.fill_(1)
            stepper.step()

    _, (grown,) = tensors.held_after(metered_device, three_steps)
    assert grown == 0, (
        f"three steps later {grown} bytes more are held, but should be none [{optimizer}]"
    )
    for (p, name), buffer in before.items():
        same = stepper.state[p][name] is buffer
        assert same, (
            f"three steps later another buffer is kept, but should be the same [{optimizer}, "
            f"{name}]"
        )
    keys = list(stepper.state_dict()["state"])
    assert keys == [*range(len(parameters))], (
        f"state_dict() is keyed by {keys}, but should be by positions"
    )


@pytest.mark.claim("optim.state-same-dtype", "optim.state-fp32-auto", "amp.recipe-bf16-params")
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
@fewer
@given(
    shape=shapes(),
    in_=st.lists(dtypes_among(FLOATS), min_size=1, max_size=3),
    amsgrad=st.booleans(),
)
def test_each_buffer_of_adam_is_like_its_parameter(
    device, metered_device, optimizer, shape, in_, amsgrad
):
    build = partial(optimizer, amsgrad=amsgrad)
    steps = optimizers.STEP_BYTES if metered_device.type == "cpu" else 0
    parameters, stepper = tensors.stepped(build, [shape], device, *in_)
    for parameter, name in product(
        parameters, ["exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * amsgrad]
    ):
        got, should = (
            (t.shape, t.dtype, t.device) for t in (stepper.state[parameter][name], parameter)
        )
        assert got == should, f"{name} is {got}, but should be {should} [{in_=}]"
    _, (held,) = tensors.held_after(
        metered_device, partial(tensors.stepped, build, [shape], metered_device, *in_)
    )
    should = sum((4 + amsgrad) * parameter.nbytes + steps for parameter in parameters)
    assert held == should, (
        f"with parameter and gradient {held} bytes are held, but should be {should} [{shape=}]"
    )


@pytest.mark.claim("optim.state-fp32-auto")
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
@given(shape=shapes(), dtype=dtypes_among(FLOATS))
def test_a_state_brought_in_fp32_is_cast_to_the_parameters_dtype(device, optimizer, shape, dtype):
    (parameter,), stepper = tensors.stepped(optimizer, [shape], device, dtype)
    brought = stepper.state_dict()
    moments = {name: torch.rand(shape, device=device) for name in ("exp_avg", "exp_avg_sq")}
    brought["state"][0].update(moments)
    stepper.load_state_dict(brought)
    for name, moment in moments.items():
        got = stepper.state[parameter][name]
        should = moment.to(parameter.dtype)
        assert got.dtype == should.dtype, (
            f"{name} is loaded as {got.dtype}, but should be {should.dtype}"
        )
        wrong = tensors.difference(got, should)
        assert not wrong, f"{name}, loaded from fp32: {wrong} [{dtype=}]"


# The averages that each keeps, with the power of the gradients and the place of the factor; the
# claims.
AVERAGES = [
    (
        torch.optim.Adam,
        "betas",
        {"exp_avg": (1, 0), "exp_avg_sq": (2, 1)},
        ["optim.adam-description", "optim.adam-2"],
    ),
    (
        torch.optim.RMSprop,
        "alpha",
        {"square_avg": (2, 0)},
        ["optim.rmsprop-ema", "optim.rmsprop-1"],
    ),
]


@pytest.mark.parametrize(
    ("optimizer", "option", "names"),
    [
        pytest.param(*row, marks=pytest.mark.claim(*claims, "optim.state-keyed"))
        for *row, claims in AVERAGES
    ],
)
@given(task=papers.tasks, factors=st.tuples(averages, averages))
def test_averages_of_the_gradients_are_kept_and_not_the_gradients(
    device, optimizer, option, names, task, factors
):
    _, states = task.torchs(
        optimizer, device, **{option: factors if option == "betas" else factors[0]}
    )
    ages = range(task.steps - 1, -1, -1)
    for state, history in zip(states, task.arrays()[1], strict=True):
        kept = {name: of.cpu().numpy() for name, of in state.items()}
        for name, (power, place) in names.items():
            each = [factors[place] ** age * g**power for age, g in zip(ages, history, strict=True)]
            should = (1 - factors[place]) * sum(each)
            error = np.abs(kept[name] - should).max() / task.scale**power
            assert error < 1e-12, (
                f"{name} is {error:.1g} from the average of the gradients [{task}, {factors}]"
            )
        same = [
            name
            for name, of in kept.items()
            for g in history
            for power in (1, 2)
            if np.array_equal(of, g**power)
        ]
        assert not same, (
            f"{same} are a gradient or its square, but should not be kept [{task}, {factors}]"
        )


decays = st.sampled_from([0.0, 0.1])
adams = {
    "lr": rates,
    "betas": st.tuples(averages, averages),
    "eps": epsilons,
    "weight_decay": decays,
}
balls = {"lr": rates, "momentum": st.floats(0, 0.99)}
adagrads = {
    "lr": rates, "eps": epsilons, "lr_decay": decays, "initial_accumulator_value": st.floats(0, 2),
}  # fmt: skip
rmsprops = {
    "lr": rates,
    "alpha": averages,
    "eps": epsilons,
    "momentum": momenta,
    "centered": st.booleans(),
}
loops = st.sampled_from([{"foreach": True}, {"foreach": False}])
fused_too = loops | st.just({"fused": True})
# The claims; torch's optimizer, the update of the paper, the options of both, and torch's loops.
UPDATES = {
    "SGD": (
        ["optim.sgd-none", "optim.sgd-update"],
        torch.optim.SGD,
        papers.sgd,
        {"lr": rates},
        fused_too,
    ),
    "heavy ball": (
        ["optim.momentum-1", "optim.history"],
        torch.optim.SGD,
        papers.heavy_ball,
        balls,
        fused_too,
    ),
    "AdaGrad": (
        ["optim.adagrad-update", "optim.adagrad-1"],
        torch.optim.Adagrad,
        papers.adagrad,
        adagrads,
        fused_too,
    ),
    "RMSProp": (
        ["optim.rmsprop-ema", "optim.rmsprop-1"],
        torch.optim.RMSprop,
        papers.rmsprop,
        rmsprops,
        loops,
    ),
    "Adam": (
        ["optim.adam-combo"],
        torch.optim.Adam,
        papers.adam,
        {**adams, "amsgrad": st.booleans()},
        fused_too,
    ),
    "AdamW": (
        ["optim.adam-combo"],
        torch.optim.AdamW,
        partial(papers.adam, decoupled=True),
        adams,
        fused_too,
    ),
}


@pytest.mark.parametrize(
    ("optimizer", "update", "options", "loop"),
    [
        pytest.param(*row, marks=pytest.mark.claim(*claims), id=name)
        for name, (claims, *row) in UPDATES.items()
    ],
)
@given(task=papers.tasks, data=st.data())
def test_torchs_update_is_the_one_of_its_paper(
    device, optimizer, update, options, loop, task, data
):
    drawn = data.draw(st.fixed_dictionaries(options))
    unfused = (
        optimizer is torch.optim.Adagrad and device.type != "cpu"
    )  # older torch fuses it on the CPU alone
    got, _ = task.torchs(optimizer, device, **drawn, **data.draw(loops if unfused else loop))
    differs = papers.disagreement(
        got, task.reference(update, **drawn), 1e-9 if "alpha" in drawn else 1e-11
    )
    assert differs is None, f"{differs} [{task}, {drawn}]"


@pytest.mark.claim("optim.history")
@given(task=papers.tasks, lr=rates, momentum=st.floats(0.1, 0.99), loop=fused_too)
def test_nesterovs_acceleration_is_another_update(device, task, lr, momentum, loop):
    nesterov = task.reference(papers.nesterov, lr=lr, momentum=momentum)
    got, _ = task.torchs(torch.optim.SGD, device, lr=lr, momentum=momentum, nesterov=True, **loop)
    differs = papers.disagreement(got, nesterov)
    assert differs is None, f"{differs} [{task}, {lr=}, {momentum=}, {loop}]"
    classical = task.reference(papers.heavy_ball, lr=lr, momentum=momentum)
    assert papers.disagreement(nesterov, classical), (
        f"the two updates should differ [{task}, {lr=}, {momentum=}]"
    )


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
        given = {"dampening": dampening} if dampening else {}
        _, states = task.torchs(torch.optim.SGD, device, lr=0.01, momentum=momentum, **given)
        for tensor, history in enumerate(gradients):
            should = sum(weight * g for weight, g in zip(each, history, strict=True))
            error = (
                np.abs(states[tensor]["momentum_buffer"].cpu().numpy() - should).max() / task.scale
            )
            assert error < 1e-11, (
                f"the buffer is {error:.1g} from the weighted sum [{task}, {momentum=}, "
                f"{dampening=}]"
            )


@pytest.mark.claim("optim.momentum-average")
@pytest.mark.parametrize(("dampening", "should"), [(0.0, 10), (0.9, 1)])
def test_of_gradients_of_1_the_buffer_becomes_10_at_0_9_and_1_if_dampened(
    device, dampening, should
):
    parameter = torch.nn.Parameter(torch.zeros(3, device=device))
    stepper = torch.optim.SGD([parameter], lr=0.01, momentum=0.9, dampening=dampening)
    for _ in range(200):
        parameter.grad = torch.ones_like(parameter)
        stepper.step()
    buffer = stepper.state[parameter]["momentum_buffer"].tolist()
    assert buffer == pytest.approx([should] * 3, rel=1e-5), (
        f"the buffer is {buffer}, not {should} [{dampening=}]"
    )


@pytest.mark.claim(
    "optim.adagrad-update", "optim.adagrad-1", "optim.adam-for-adagrad", "optim.state-keyed"
)
@given(task=papers.tasks, lr=rates, initial=st.floats(0, 2))
def test_adagrad_keeps_the_sum_of_squares_and_is_not_adam(device, task, lr, initial):
    paths, states = task.torchs(
        torch.optim.Adagrad, device, lr=lr, initial_accumulator_value=initial
    )
    for state, history in zip(states, task.arrays()[1], strict=True):
        got = state["sum"].cpu().numpy()
        squares = initial + sum(g**2 for g in history)
        assert np.allclose(got, squares, rtol=1e-12, atol=0), (
            f"the sum is {got}, but should be {squares} [{task}]"
        )
    adam, _ = task.torchs(torch.optim.Adam, device, lr=lr)
    assert task.steps == 1 or papers.disagreement(adam, paths), (
        f"Adam takes the path of AdaGrad [{task}]"
    )


@pytest.mark.claim("optim.adam-combo")
@given(seed=st.integers(0, 2**32 - 1), betas=st.tuples(averages, averages))
@example(seed=0, betas=(0.9, 0.999))  # 3.16
def test_without_the_correction_the_first_step_is_another(device, seed, betas):
    task = papers.Task(shapes=((50,),), steps=1, scale=1.0, seed=seed)
    options = {"lr": 1e-3, "betas": betas, "eps": 1e-8}
    start = task.arrays()[0][0]
    corrected = task.torchs(torch.optim.Adam, device, **options)[0][0][0] - start
    uncorrected = task.reference(papers.adam, bias_correction=False, **options)[0][0] - start
    ratio = float(np.median(uncorrected / corrected))
    should = (1 - betas[0]) / sqrt(1 - betas[1])
    assert ratio == pytest.approx(should, rel=1e-4), (
        f"the first step is {ratio:.3f} as large, not {should:.3f}"
    )


@pytest.mark.claim("optim.adam-combo")
@given(task=papers.tasks.filter(lambda task: task.steps > 1))
def test_rmsprop_with_torchs_momentum_is_not_adam(device, task):
    """There the scaled gradients are averaged, here the average of the gradients is scaled."""
    rmsprop, _ = task.torchs(torch.optim.RMSprop, device, lr=0.01, alpha=0.999, momentum=0.9)
    adam = task.reference(papers.adam, lr=0.01, betas=(0.9, 0.999), eps=1e-8)
    assert papers.disagreement(rmsprop, adam), (
        f"RMSProp with momentum is Adam, but should not be [{task}]"
    )


@pytest.mark.claim("optim.subclass")
@given(task=papers.tasks, lr=rates)
def test_an_own_subclass_takes_the_steps_of_torchs_adagrad(device, task, lr):
    got, should = (
        task.torchs(of, device, lr=lr, eps=0.0)[0]
        for of in (papers.OwnAdagrad, torch.optim.Adagrad)
    )
    differs = papers.disagreement(got, should)
    assert differs is None, f"{differs} [{task}, {lr=}]"


@pytest.mark.claim("optim.subclass")
def test_an_own_subclass_trains_a_net_by_groups_and_resumes(device):
    runs = []
    for cut in (None, 30):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(
            device
        )
        x = torch.randn(64, 3, device=device)
        unused = torch.nn.Parameter(torch.ones(2, device=device))
        body = list(net[0].parameters())
        rest = [*net[2].parameters(), unused]
        groups = [{"params": body, "lr": 0.1}, {"params": rest, "lr": 0.0}]
        stepper = papers.OwnAdagrad(groups)
        head = net[2].weight.clone()
        losses = []
        for turn in range(60):
            if turn == cut:
                state = stepper.state_dict()
                stepper = papers.OwnAdagrad(groups)
                stepper.load_state_dict(state)
            stepper.zero_grad()
            loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            stepper.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2, (
            f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}, but should halve"
        )
        assert torch.equal(head, net[2].weight), "a group of lr 0 should stay as it is, but moves"
        assert unused not in stepper.state, (
            "a parameter without a gradient should have no state, but has"
        )
        runs.append(losses)
    assert runs[0] == runs[1], (
        f"resumed, the losses are {runs[1][30:]}, but should be {runs[0][30:]}"
    )


@pytest.mark.claim("optim.zero-grad-none")
@pytest.mark.parametrize(
    ("options", "kept"), [({"set_to_none": True}, 0), ({}, 0), ({"set_to_none": False}, 1)]
)
@fewer
@given(
    elements=st.lists(st.integers(1, 5000), min_size=4, max_size=6),
    names=st.lists(st.sampled_from(sorted(tensors.OPTIMIZERS)), min_size=2, max_size=2),
)
def test_zero_grad_frees_its_own_gradients_unless_told_to_keep_them(
    metered_device, options, kept, elements, names
):
    with measured.memory(metered_device) as held:
        parameters = [
            torch.nn.Parameter(torch.ones(each, device=metered_device)) for each in elements
        ]
        groups = [
            [{"params": of[:1]}, {"params": of[1:]}] for of in (parameters[::2], parameters[1::2])
        ]
        steppers = [tensors.OPTIMIZERS[name](of) for name, of in zip(names, groups, strict=True)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        for stepper in steppers:
            stepper.step()
        held.mark("both steps")
        for number, stepper in enumerate(steppers):
            stepper.zero_grad(**options)
            held.mark(f"zero_grad {number}")
    freed = [
        before.live_bytes - after.live_bytes for before, after in pairwise(held.phases.values())
    ]
    should = [4 * (1 - kept) * sum(elements[turn::2]) for turn in (0, 1)]
    inputs = f"[{options}, {elements}, {names}]"
    assert freed == should, (
        f"the zero_grad() of two optimizers free {freed} bytes, but should free {should} {inputs}"
    )


@pytest.mark.claim("optim.zero-sharding")
@fewer
@given(devices=st.integers(2, 9), each=st.integers(1, 3), more=st.integers(0, 3), width=sizes(1, 4))
def test_each_of_many_devices_keeps_its_part_of_the_state_and_all_else(
    gloo, devices, each, more, width
):
    """Whole tensors are dealt out, so that the fullest has a part of a tensor more; all of one that
    is large.
    """
    alike = [width] * (each * devices + more)
    inputs = f"[{devices=}, {each=}, {more=}, {width=}]"
    elements = len(alike) * width**2
    formula = device_state(elements, devices, zero_stage=1, optimizer="adam")
    *kept, states = zip(*(rank.held for rank in sharding.fake_ranks(alike, devices)), strict=True)
    should = [(each_class,) * devices for each_class in (formula.parameters, formula.gradients)]
    assert kept == should, (
        f"parameters and gradients take {kept}, but should take {should} {inputs}"
    )
    assert sum(states) == 8 * elements, (
        f"the shards add up to {sum(states)} bytes, not to {8 * elements} {inputs}"
    )
    over = max(states) - formula.state
    assert 0 <= over < 8 * width**2, (
        f"the fullest keeps {max(states)} bytes, {formula.state=} {inputs}"
    )
    lopsided = max(
        rank.held[2] for rank in sharding.fake_ranks([*alike, len(alike) * width], devices)
    )
    assert lopsided == 8 * (len(alike) * width) ** 2, (
        f"one of a large tensor keeps {lopsided} bytes {inputs}"
    )


@pytest.mark.claim("optim.zero-sharding")
def test_two_processes_shard_the_state_and_train_as_one_does(gloo):
    nets = (8, 8, 8, 8), (16, 4, 4)
    for widths, ranks in zip(nets, sharding.ranks(*nets), strict=True):
        alone = sharding.net_of(widths)
        stepper = torch.optim.Adam(alone, lr=1e-2)
        sharding.train(alone, stepper)
        total = sum(rank.held[2] for rank in ranks)
        whole = tensors.state_bytes(stepper)
        assert total == whole, (
            f"the shards add up to {total} bytes, but should add up to {whole} [{widths}]"
        )
        should = torch.cat([parameter.detach().flatten() for parameter in alone])
        for number, rank in enumerate(ranks):
            error = (torch.tensor(rank.weights) - should).abs().max().item()
            assert error < 1e-6, (
                f"rank {number} is {error:.1g} from unsharded training, but should agree [{widths}]"
            )


LINKS = {
    "none": (torch.nn.Identity(), 0.01),
    "softplus": (softplus, 0.02),
    "sine": (lambda x: torch.sin(x / 4), 0.15),
}


@pytest.mark.claim("optim.fp32-state-needed", "amp.recipe-bf16-params", "dtype.bf16-suffices")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("link", LINKS)
def test_descent_in_16_bits_learns_nothing_from_afar_unless_repaired(device, link, seed):
    """Half a spacing, near 1 in bf16 as near 8 in fp16, is above each update there, and near 0 far
    below.
    """
    torch.manual_seed(seed)
    (of, lr), width = LINKS[link], 8 << seed
    x = torch.randn(256, width).to(device)
    way = torch.linspace(0.02, 0.15, width).to(device)

    def left(keeping, begin=1.0):
        def loss(weights):
            return (of(x @ weights) - of(x @ (begin + way))).pow(2).mean()

        def gradient(weights):
            wide = weights.float().requires_grad_()
            return torch.autograd.grad(loss(wide), wide)[0].to(weights.dtype)

        start = torch.full_like(way, begin)
        return (
            loss(papers.descended(start, gradient, keeping, steps=400, lr=lr)) / loss(start)
        ).item()

    lost = {"bf16": left("bf16"), "fp16": left("fp16", begin=8.0)}
    assert min(lost.values()) > 1 / 2, (
        f"from afar {lost} of the loss are left, but should be almost all"
    )
    others = [left(of) for of in ("fp32", "bf16, fp32 master", "bf16, stochastic rounding")]
    others += [left("fp16, fp32 master", begin=8.0), *(left(of, begin=0.0) for of in lost)]
    assert max(others) < 1 / 20, (
        f"in fp32, repaired and from 0 on {others} of the loss are left, not a twentieth"
    )


@pytest.mark.claim("optim.fp32-state-needed")
def test_a_second_moment_in_bf16_never_decays(device):
    """0.999 times a number is within half a spacing of it, so one large gradient rules all later
    steps.
    """
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
    assert set(left[torch.bfloat16]) == {1}, (
        f"after 1000 steps {left[torch.bfloat16]} is left, but should be all"
    )
    assert left[torch.float32] == pytest.approx(0.999**1000, rel=1e-3), (
        f"in fp32 {left[torch.float32]} is left"
    )
