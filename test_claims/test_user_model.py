"""Claims that hold for any model, tested on the one that `--model` names.

Without that option no test is here. A test marked `claim_of_model` settles claims of the registry
for this model: they are no verdicts on the machine.
"""

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from prooflops.memory import measured_memory

# A rule of thumb holds for a model that it meets within a tenth; the page has its difference, and
# the reasons, exactly.
NAPKIN = 0.1
# A share of a peak of a few hundred bytes is less than one boxed number.
FEW_BYTES = 512


def registered(module):
    """Every parameter and buffer of a module once, under whatever names."""
    named = [
        each
        for part in module.modules()
        for each in (*part._parameters.values(), *part._buffers.values())
    ]
    return list({id(tensor): tensor for tensor in named if tensor is not None}.values())


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes_of(tensors):
    """A gradient may be a part of a larger tensor, and keeps all of it then."""
    return sum(
        {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors
        }.values()
    )


@pytest.fixture(scope="module")
def stepped(user_model):
    """The model after a step (one test takes a second), its gradients still there."""
    instance = user_model.instance
    instance.step()
    return instance


@pytest.fixture(scope="module")
def untrained(stepped):
    """The parameters that got no gradient."""
    return [name for name, parameter in stepped.parameters.items() if parameter.grad is None]


def state_bytes(user_model, stepped):
    """Measured bytes of the optimizer's state on the device, without each tensor's step count."""
    here = user_model.user_model.device.type
    counts = [
        kept["step"]
        for kept in stepped.optimizer.state.values()
        if isinstance(kept.get("step"), torch.Tensor)
    ]
    on_device = [count for count in counts if count.device.type == here]
    return user_model.memory.row("optimizer state").measured_bytes - bytes_of(on_device)


@pytest.mark.claim_of_model("tensor.nbytes-formula")
def test_parameters_and_buffers_have_the_bytes_that_copies_of_them_take(
    user_model, memory_device, record_figure
):
    tensors = registered(user_model.instance.module)
    with measured_memory(memory_device) as held:
        copies = [tensor.detach().clone() for tensor in tensors]
    record_figure(f"{held.live_bytes:,} B")
    got = user_model.inventory.bytes
    assert got == held.live_bytes, (
        f"counted are {got} B, but {len(copies)} copies take {held.live_bytes} B"
    )


@pytest.mark.claim_of_model("grad.same-shape")
def test_a_gradient_has_the_shape_and_the_dtype_of_its_parameter(stepped, record_figure):
    trained = {name: each for name, each in stepped.parameters.items() if each.grad is not None}
    record_figure(f"{len(trained):,} gradients")
    for name, parameter in trained.items():
        got, wanted = (
            (parameter.grad.shape, parameter.grad.dtype),
            (parameter.shape, parameter.dtype),
        )
        assert got == wanted, f"the gradient of {name} is {got}, but should be {wanted}"


@pytest.mark.claim_of_model("mem.grads-equal-params")
def test_gradients_take_as_much_as_the_parameters(
    user_model, stepped, untrained, memory_device, record_figure, does_not_apply
):
    if untrained:
        does_not_apply(f"{len(untrained)} of {len(stepped.parameters)} parameters get no gradient")
    gradients = [each.grad for each in stepped.parameters.values()]
    if storage_bytes_of(gradients) > bytes_of(gradients):
        does_not_apply("gradients are parts of larger tensors, which they keep")
    got, wanted = (
        user_model.memory.row("gradients").measured_bytes,
        bytes_of(stepped.parameters.values()),
    )
    record_figure(f"{got:,} B")
    assert got == wanted, (
        f"gradients take {got} B, but should take the {wanted} B of the parameters"
    )


@pytest.mark.claim_of_model("optim.zero-grad-none")
def test_dropping_the_gradients_frees_what_zeroing_them_keeps(
    user_model, memory_device, record_figure
):
    instance = user_model.instance
    instance.optimizer.zero_grad(set_to_none=True)
    with measured_memory(memory_device) as held:
        instance.forward().backward()
        parameters = [each for group in instance.optimizer.param_groups for each in group["params"]]
        gradients = storage_bytes_of([each.grad for each in parameters if each.grad is not None])
        instance.optimizer.zero_grad(set_to_none=False)
        held.mark("zeroed")
        instance.optimizer.zero_grad(set_to_none=True)
        held.mark("dropped")
    freed = held.phases["zeroed"].live_bytes - held.phases["dropped"].live_bytes
    record_figure(f"{freed:,} B")
    assert freed == gradients, (
        f"set_to_none=True frees {freed} B, but should free the {gradients} B of the gradients"
    )


def has(optimizer, kinds, **settings):
    """Whether an optimizer is of a kind, all its groups with these settings on or off."""
    groups = optimizer.param_groups
    return type(optimizer) in kinds and all(
        bool(each[key]) == on for each in groups for key, on in settings.items()
    )


def is_on(optimizer, setting):
    return any(group.get(setting) for group in optimizer.param_groups)


def described(optimizer):
    """An optimizer's name, and which of the settings that cost a buffer are on."""
    buffered = ("momentum", "centered", "amsgrad")
    settings = [key for key in buffered if is_on(optimizer, key)]
    name = type(optimizer).__name__
    if not settings:
        return name
    return f"{name} with {' and '.join(settings)}"


BUFFERS = {
    "optim.sgd-none": ("SGD without momentum", 0, lambda each: has(each, [SGD], momentum=False)),
    "optim.momentum-1": ("SGD with momentum", 1, lambda each: has(each, [SGD], momentum=True)),
    "optim.adagrad-1": ("AdaGrad", 1, lambda each: has(each, [Adagrad])),
    "optim.rmsprop-1": (
        "plain RMSProp",
        1,
        lambda each: has(each, [RMSprop], centered=False, momentum=False),
    ),
    "optim.adam-2": (
        "Adam or AdamW without amsgrad",
        2,
        lambda each: has(each, [Adam, AdamW], amsgrad=False),
    ),
}


@pytest.mark.parametrize(
    "claim", [pytest.param(each, marks=pytest.mark.claim_of_model(each)) for each in BUFFERS]
)
def test_the_optimizer_keeps_so_many_buffers_per_parameter(
    user_model, stepped, memory_device, record_figure, does_not_apply, claim
):
    kind, buffers, is_this_kind = BUFFERS[claim]
    if not is_this_kind(stepped.optimizer):
        does_not_apply(f"the optimizer is {described(stepped.optimizer)}")
    trained = bytes_of([each for each in stepped.optimizer.state if isinstance(each, torch.Tensor)])
    if not buffers:
        trained = 1  # there must be nothing at all
    got = state_bytes(user_model, stepped)
    record_figure(f"{got:,} B")
    assert got == buffers * trained, (
        f"{kind}: the state takes {got} B, but should take {buffers} times {trained} B"
    )


@pytest.mark.claim_of_model("optim.state-same-dtype")
def test_each_of_adams_buffers_is_like_its_parameter(stepped, record_figure, does_not_apply):
    if type(stepped.optimizer) not in (Adam, AdamW):
        does_not_apply(f"the optimizer is {described(stepped.optimizer)}")
    for parameter, state in stepped.optimizer.state.items():
        for name in state.keys() - {"step"}:
            got, wanted = (state[name].shape, state[name].dtype), (parameter.shape, parameter.dtype)
            assert got == wanted, f"{name} is {got}, but should be {wanted}"
    record_figure(f"{len(stepped.optimizer.state):,} parameters")


@pytest.mark.claim_of_model("optim.state-keyed")
def test_the_state_is_keyed_by_parameter_and_persists(stepped, does_not_apply):
    state = stepped.optimizer.state
    if not any(state.values()):
        does_not_apply("the optimizer keeps no state")
    own = {id(each) for each in stepped.module.parameters()}
    before = {}
    for key, row in state.items():
        if id(key) in own:
            before[key] = {name: id(each) for name, each in row.items()}
    assert len(before) == len(state), (
        f"{len(state) - len(before)} keys of the state are no parameters of the module"
    )
    stepped.step()
    moved = []
    for key, row in before.items():
        for name, identity in row.items():
            value = state[key][name]
            if isinstance(value, torch.Tensor) and id(value) != identity:
                moved.append(name)
    assert not moved, (
        f"{len(moved)} tensors of the state were replaced in the second step: {moved[:3]}"
    )


def bytes_per_parameter(user_model, stepped, untrained, claim, does_not_apply):
    """Of parameters, gradients and state; only where the recipe of the claim is the model's own."""
    is_this_kind = BUFFERS[claim][-1]
    if not is_this_kind(stepped.optimizer):
        does_not_apply(f"the optimizer is {described(stepped.optimizer)}")
    if untrained or any(each.dtype != torch.float32 for each in stepped.parameters.values()):
        does_not_apply("not every parameter is trained, in fp32")
    gradients = [each.grad for each in stepped.parameters.values()]
    if storage_bytes_of(gradients) > bytes_of(gradients):
        does_not_apply("gradients are parts of larger tensors, which they keep")
    held = bytes_of(stepped.parameters.values()) + user_model.memory.row("gradients").measured_bytes
    return (held + state_bytes(user_model, stepped)) / user_model.inventory.parameters


@pytest.mark.parametrize(
    ("claim", "optimizer", "wanted"),
    [
        pytest.param(
            "mem.16-bytes", "optim.adam-2", 16, marks=pytest.mark.claim_of_model("mem.16-bytes")
        ),
        pytest.param(
            "mem.adagrad-12",
            "optim.adagrad-1",
            12,
            marks=pytest.mark.claim_of_model("mem.adagrad-12"),
        ),
    ],
)
def test_training_in_fp32_holds_so_many_bytes_per_parameter(
    user_model,
    stepped,
    untrained,
    memory_device,
    record_figure,
    does_not_apply,
    claim,
    optimizer,
    wanted,
):
    got = bytes_per_parameter(user_model, stepped, untrained, optimizer, does_not_apply)
    record_figure(f"{got:g} B per parameter")
    assert got == wanted, f"training holds {got} bytes per parameter, but should hold {wanted}"


@pytest.mark.claim_of_model("mem.omits-activations")
def test_the_peak_is_beyond_the_bytes_per_parameter(
    user_model, stepped, untrained, memory_device, record_figure, does_not_apply
):
    held = bytes_per_parameter(user_model, stepped, untrained, "optim.adam-2", does_not_apply)
    peak = user_model.memory.row("peak of a step").measured_bytes / user_model.inventory.parameters
    record_figure(f"{peak:.1f} B per parameter at the peak")
    assert peak > held, (
        f"the peak of a step is {peak} bytes per parameter, but should be above {held}"
    )


RULES = {
    "forward": ("2ND", "flops.forward-2BN"),
    "backward": ("4ND", "grad.backward-4BN"),
    "step": ("6ND", "grad.six-rule"),
}


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=pytest.mark.claim_of_model(claim))
        for phase, (_, claim) in RULES.items()
    ],
)
def test_every_flop_off_the_rule_has_a_reason(user_model, record_figure, does_not_apply, phase):
    flops = user_model.flops
    explained = sum(getattr(part, phase) for part in flops.parts)
    off = flops.rule(phase) - flops.counted(phase)
    assert explained == off, (
        f"the parts sum to {explained}, but should sum to rule less counted, {off}"
    )
    needed = flops.needed(phase)
    text = f"{RULES[phase][0]} is {flops.rule(phase) / max(needed, 1):.4g} times the model FLOPs"
    if abs(flops.rule(phase) - needed) > NAPKIN * needed:
        parts = [part for part in flops.parts if not part.name.startswith("recomputed")]
        does_not_apply(
            f"{text}, most of all by {max(parts, key=lambda part: abs(getattr(part, phase))).name}"
        )
    record_figure(text)


@pytest.mark.claim_of_model("grad.quadruples")
def test_the_backward_pass_costs_twice_the_forward_not_four_times(
    user_model, record_figure, does_not_apply
):
    flops = user_model.flops
    if not flops.forward:
        does_not_apply("no product was counted")
    times = (flops.model - flops.forward) / flops.forward  # without the recomputed forward pass
    record_figure(f"{times:.3g} times")
    assert times <= 2 * (1 + NAPKIN), (
        f"the backward pass costs {times} times the forward, but should cost at most 2"
    )
    if times < 2 * (1 - NAPKIN):
        does_not_apply(
            f"the backward pass costs {times:.3g} times the forward, "
            "as some factors need no gradient"
        )


def test_all_that_is_recomputed_has_a_reason(user_model):
    flops = user_model.flops
    explained = -sum(part.step for part in flops.parts if part.name.startswith("recomputed"))
    assert explained == flops.recomputed, (
        f"the parts have {explained} recomputed FLOPs, but counted={flops.recomputed}"
    )


@pytest.mark.parametrize("what", ["gradients", "optimizer state"])
def test_memory_is_what_its_tensors_say(user_model, memory_device, what):
    row = user_model.memory.row(what)
    assert row.measured_bytes == row.predicted_bytes, (
        f"{what}: {row.measured_bytes} B, not {row.predicted_bytes}"
    )


@pytest.mark.parametrize("what", ["held for the backward pass", "peak of a step"])
def test_memory_is_predicted_to_within_a_percent(user_model, memory_device, what):
    memory = user_model.memory
    row = memory.row(what)
    if row.predicted_bytes is None:
        pytest.skip("; ".join(memory.remarks))
    if memory_device.type != "cpu" or memory.is_lower_bound:
        pytest.skip(
            "scratch inside kernels is not known for all of these operators: "
            "the page shows both figures"
        )
    got, predicted = row.measured_bytes, row.predicted_bytes
    assert got == pytest.approx(predicted, rel=0.01, abs=FEW_BYTES), (
        f"{what}: {got} B, more than 1 % and {FEW_BYTES} B from {predicted} B"
    )


def test_where_it_goes_the_modules_have_the_flops_and_the_kept_tensors_of_the_step(
    user_model, memory_device
):
    flops = user_model.flops
    breakdown = user_model.breakdown
    held = user_model.memory.row("held for the backward pass")
    # The whole, and operators outside it.
    of_all = [row for row in breakdown.modules if not row.depth]
    forward = sum(row.forward_flops for row in of_all)
    backward = sum(row.backward_flops for row in of_all)
    got, should = (forward, backward), (flops.forward, flops.backward)
    assert got == should, (
        f"the modules have {got} FLOPs forward and backward, but should have {should}"
    )
    kept = sum(row.kept_bytes for row in of_all)
    fits = kept <= 1.01 * held.measured_bytes + FEW_BYTES or breakdown.is_compiled
    assert fits, (
        f"the modules keep {kept} B for the backward pass, "
        f"but all that is held are {held.measured_bytes} B"
    )


def test_the_largest_step_that_fits_is_the_predicted_one(user_model, memory_device):
    if not user_model.arguments:
        pytest.skip("no --model-largest")
    if memory_device.type != "cpu":
        pytest.skip("the limit is that of an accelerator: the page shows the sizes")
    predicted = [
        each for each in user_model.largest if each.is_predicted and each.found is not None
    ]
    if not predicted:
        pytest.skip("; ".join(each.remark for each in user_model.largest if each.remark))
    for largest in predicted:
        [trial] = [each for each in largest.trials if each.size == largest.found]
        near = pytest.approx(trial.predicted_bytes, rel=0.01, abs=FEW_BYTES)
        assert trial.measured_bytes == near, (
            f"{largest.argument}={trial.size} takes {trial.measured_bytes} B, "
            f"not the predicted {trial.predicted_bytes} B {trial.why_not}"
        )
