"""Claims about the state of optimizers: its bytes, dtypes and keys, and its sharding."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import memory, optimizers
from accounting.planning import device_state
from prooflops.memory import measured_memory
from prooflops.memory.allocator import charge_bounds
from test_claims.oracles import tensors
from test_claims.oracles.messages import agree, at_least, at_most, between, equal
from test_claims.oracles.sharding import held_by_fake_ranks
from test_claims.strategies import (
    covering,
    dtypes_among,
    fewer,
    shapes,
    sizes,
)

FLOATS = ["fp64", "fp32", "bf16", "fp16"]


KEPT = [
    ("sgd", 0, "optim.sgd-none"),
    ("momentum", 1, "optim.momentum-1", "amp.recipe-bf16-params"),
    ("adagrad", 1, "optim.adagrad-1"),
    ("rmsprop", 1, "optim.rmsprop-1"),
    ("rmsprop-momentum", 2, "optim.rmsprop-1"),
    ("rmsprop-centered", 2, "optim.rmsprop-1"),
    ("rmsprop-centered-momentum", 3, "optim.rmsprop-1"),
    ("adam", 2, "optim.adam-2", "optim.adam-doubles", "optim.adam-description"),
    ("adamw", 2, "optim.adam-2", "mem.16-bytes", "amp.recipe-bf16-params"),
    ("adam-amsgrad", 3, "optim.adam-2"),
    ("adamw-amsgrad", 3, "optim.adam-2"),
]
OF_ALL = ["optim.state-ON", "optim.state-fp32-auto", "optim.state-same-dtype"]
KEEPING = [
    pytest.param(of, n, marks=pytest.mark.claim(*claims, *OF_ALL), id=of) for of, n, *claims in KEPT
]


def assert_copies(optimizer, buffers, weights, **options):
    """Asserts that the first step allocates `buffers` copies of the parameters, the second none."""
    __tracebackhide__ = True
    parameters = [torch.nn.Parameter(each.clone()) for each in weights]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    device = parameters[0].device
    with measured_memory(device) as held:
        stepper = tensors.OPTIMIZERS[optimizer](parameters, **options)
        held.mark("constructor")
        stepper.step()
        held.mark("first step")
        stepper.step()
        held.mark("second step")
    # A fused kernel has its step counts on the device.
    counts = 1 if device.type == "cpu" or options.get("fused") else 0
    row = optimizers.OPTIMIZERS[optimizer]
    scalars = optimizers.STEP_BYTES * len(row.scalars) * counts
    whole = sum(buffers * parameter.nbytes + scalars for parameter in parameters)
    for steps, moment in enumerate(held.phases):
        got = held.phases[moment].live_bytes
        should = 0 if steps == 0 and optimizer != "adagrad" else whole
        formula = sum(
            memory.optimizer_state_bytes(
                each.numel(), optimizer, each.dtype, tensors=counts, steps=steps
            )
            for each in parameters
        )
        what = f"bytes after the {moment} with {options}"
        agree(what, got=got, should=should, formula=formula)
    for parameter, state in stepper.state.items():
        equal({*state}, {*row.buffers, *row.scalars}, "what is kept", options=options)
        for name in row.buffers:
            got = state[name].shape, state[name].dtype, state[name].device
            should = parameter.shape, parameter.dtype, parameter.device
            equal(got, should, "shape, dtype and device of a buffer", options=options)


NO_BUFFER = [
    {},
    {"weight_decay": 0.1},
    {"maximize": True},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"lr": torch.tensor(0.1)},
]
OTHER_SHAPES = [(), (2, 0), (2, 1, 3, 2)]
OWN_OPTIONS = {
    "momentum": [{"nesterov": True}, {"dampening": 0.5}],
    "adagrad": [{"lr_decay": 0.1}, {"initial_accumulator_value": 0.1}],
}


@pytest.mark.parametrize(("optimizer", "buffers"), KEEPING)
def test_the_first_step_allocates_so_many_copies_of_each_parameter(
    metered_device, optimizer, buffers
):
    """Whatever the options, dtypes, layouts and sizes."""
    weights = [case.tensor(metered_device) for case in covering("optim.adam-2")]
    weights += [torch.ones(shape, device=metered_device) for shape in OTHER_SHAPES]
    for options in NO_BUFFER + OWN_OPTIONS.get(optimizer, []):
        if "fused" not in options or not optimizer.startswith(("adagrad", "rmsprop")):
            assert_copies(optimizer, buffers, weights, **options)
    of_a_model = memory.optimizer_state_bytes(10**13, optimizer, "bf16")
    equal(of_a_model, 2 * buffers * 10**13, "bytes for 10^13 parameters")


@pytest.mark.claim("optim.state-ON")
def test_the_state_of_adamw_becomes_half_of_all_that_training_holds(metered_device):
    shares = []
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
        shares.append((after - before) / (tensors.parameter_bytes(net) + whole))
    equal(shares, sorted(shares), "the state's shares of the bytes")
    between(shares[-1], 0.49, 0.5, "the state's share in the end")

    _, (kept,) = tensors.held_after(metered_device, lambda: net(x.repeat(1024, 1)).grad_fn)
    share = (after - before) / (whole + kept)
    at_most(share, 0.25, "the state's share beside the activations of 8192 rows")

    held = []
    for n in (64, 128):
        take = partial(tensors.stepped, torch.optim.Adafactor, [(n, n)], metered_device)
        _, (whole,) = tensors.held_after(metered_device, take)
        held.append(whole - 8 * n**2)
        formula = memory.optimizer_state_bytes([(n, n)], "adafactor")
        # A card's step count lies on the CPU.
        between(held[-1], formula - optimizers.STEP_BYTES, formula, "bytes of Adafactor")
    at_most(held[1], 2.1 * held[0], "bytes of Adafactor for 4n parameters")


LINEAR_1024_BYTES = 16_793_600


@pytest.fixture
def linear_1024(memory_device):
    """A Linear(1024, 1024), its AdamW, and the bytes on the device after a step."""
    x = torch.ones(1, 1024, device=memory_device)
    with measured_memory(memory_device) as held:
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

    equal(elements, 1_049_600, "parameters of the layer")
    agree("bytes", formula=formula, tensors=summed, should=LINEAR_1024_BYTES)

    step_counts = 2 * optimizers.STEP_BYTES if next(net.parameters()).device.type == "cpu" else 0
    equal(held.live_bytes - step_counts, summed, "bytes that the allocator holds")

    at_least(held.peak_bytes - held.live_bytes, 4 * 1024**2, "scratch of the step in bytes")


@pytest.mark.claim("optim.linear-1024")
@pytest.mark.needs("cuda")
def test_memory_allocated_is_that_and_what_the_blocks_round_up(linear_1024):
    net, stepper, held = linear_1024
    sizes = [4 * parameter.nbytes for parameter in net.parameters()]
    bounds = [charge_bounds(parameter.nbytes) for parameter in net.parameters()]
    least = 4 * sum(low for low, _ in bounds)
    most = 4 * sum(high for _, high in bounds)

    agree("the least charge", least=least, bytes=sum(sizes), should=LINEAR_1024_BYTES)
    between(held.charged_live_bytes, least, most, "the growth of memory_allocated")

    places = {state["step"].device.type for state in stepper.state.values()}
    equal(places, {"cpu"}, "the step counts' device")


@pytest.mark.claim("optim.state-keyed")
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "rmsprop", "adam"])
@fewer
@given(
    tensor_shapes=st.lists(st.sampled_from([(), (4,), (3, 2)]), min_size=1, max_size=2),
    in_=st.lists(dtypes_among(FLOATS), min_size=1, max_size=2),
)
# Enough elements for other kernels.
@example(tensor_shapes=[(300, 300)], in_=["fp32", "bf16"])
def test_the_state_is_a_dict_keyed_by_parameter_and_persists(
    metered_device, optimizer, tensor_shapes, in_
):
    parameters, stepper = tensors.stepped(
        tensors.OPTIMIZERS[optimizer], tensor_shapes, metered_device, *in_
    )
    buffers = optimizers.OPTIMIZERS[optimizer].buffers
    equal(set(stepper.state), set(parameters), "the keys")

    before = {(p, name): stepper.state[p][name] for p in parameters for name in buffers}
    stepper.zero_grad()

    def three_steps():
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            stepper.step()
            stepper.zero_grad()

    _, (grown,) = tensors.held_after(metered_device, three_steps)
    equal(grown, 0, "bytes more after three steps")
    for (p, name), buffer in before.items():
        assert stepper.state[p][name] is buffer, f"three steps later {name} is another buffer"

    saved = stepper.state_dict()
    places = [place for group in saved["param_groups"] for place in group["params"]]
    agree("places", keys=[*saved["state"]], groups=places, should=[*range(len(parameters))])


@pytest.mark.claim("optim.state-fp32-auto")
@pytest.mark.parametrize("optimizer", tensors.OPTIMIZERS)
@fewer
@given(shape=shapes(), dtype=dtypes_among(FLOATS))
def test_a_state_brought_in_fp32_is_cast_to_the_parameters_dtype(device, optimizer, shape, dtype):
    (parameter,), stepper = tensors.stepped(tensors.OPTIMIZERS[optimizer], [shape], device, dtype)
    brought = stepper.state_dict()
    buffers = optimizers.OPTIMIZERS[optimizer].buffers
    moments = {name: torch.rand(shape, device=device) for name in buffers}
    brought["state"][0] = stepper.state[parameter] | moments
    stepper.load_state_dict(brought)
    for name, moment in moments.items():
        got = stepper.state[parameter][name]

        equal(got.dtype, parameter.dtype, f"the dtype of {name}")
        equal(got, moment.to(parameter.dtype), name)


@pytest.mark.claim("optim.zero-grad-none")
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"set_to_none": True}, 0),
        ({}, 0),
        ({"set_to_none": False}, 1),
    ],
)
@fewer
@given(
    elements=st.lists(st.integers(1, 5000), min_size=4, max_size=6),
    names=st.lists(st.sampled_from(sorted(tensors.OPTIMIZERS)), min_size=2, max_size=2),
)
def test_zero_grad_frees_its_own_gradients_unless_told_to_keep_them(
    metered_device, options, kept, elements, names
):
    with measured_memory(metered_device) as held:
        parameters = []
        for each in elements:
            parameter = torch.nn.Parameter(torch.ones(each, device=metered_device))
            parameter.grad = torch.ones_like(parameter)
            parameters.append(parameter)
        steppers = []
        for turn, name in enumerate(names):
            first, *others = parameters[turn::2]
            groups = [{"params": [first]}, {"params": others}]
            steppers.append(tensors.OPTIMIZERS[name](groups))
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
    equal(freed, should, "bytes that each zero_grad() frees")


@pytest.mark.claim("optim.zero-sharding")
@fewer
@given(devices=st.integers(2, 5), each=st.integers(1, 3), more=st.integers(0, 3), width=sizes(1, 4))
def test_each_of_many_devices_keeps_its_part_of_the_state_and_all_else(
    gloo, devices, each, more, width
):
    """Shards are whole tensors: the fullest has up to one more, or all of a large one."""
    alike = [width] * (each * devices + more)
    elements = len(alike) * width**2
    formula = device_state(elements, devices, zero_stage=1, optimizer="adam")
    thousand = device_state(1000 * elements, 1000 * devices, zero_stage=1, optimizer="adam")
    equal(thousand.state, formula.state, "bytes of state, a thousand times all")
    held = held_by_fake_ranks(alike, devices)
    parameters, gradients, states = zip(*held, strict=True)

    equal(set(parameters), {formula.parameters}, "bytes of parameters")
    equal(set(gradients), {formula.gradients}, "bytes of gradients")
    equal(sum(states), 8 * elements, "bytes of all shards")
    between(max(states) - formula.state, 0, 8 * width**2 - 1, "bytes of the fullest shard beyond")

    large = len(alike) * width
    lopsided = max(held_by_fake_ranks([*alike, large], devices))
    equal(lopsided[-1], 8 * large**2, "bytes of the shard with a large tensor")
