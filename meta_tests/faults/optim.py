"""Faults in the updates of torch's optimizers, in their state, and in the formulas of its bytes."""

import inspect

import torch

from meta_tests.faults import fault


def defaulting(patch, optimizer, **defaults):
    """Gives arguments of an optimizer's constructor other defaults.

    A default may be a function of the other arguments.
    """
    build, signature = optimizer.__init__, inspect.signature(optimizer.__init__)

    def building(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        for name, value in defaults.items():
            if name not in given.arguments:
                given.arguments[name] = value(given.arguments) if callable(value) else value
        build(*given.args, **given.kwargs)

    patch.setattr(optimizer, "__init__", building)


def stepping(patch, optimizer, before, after):
    """Has `before` and `after` called with each parameter and its state around every step."""
    step = optimizer.step

    def steps(self, *args, **kwargs):
        for function in (before, None, after):
            if function is None:
                step(self, *args, **kwargs)
                continue
            for parameter, state in self.state.items():
                function(parameter, state)

    patch.setattr(optimizer, "step", steps)


def nothing(_parameter, _state):
    pass


@fault("optim.adam-combo", instead_of="torch.optim.adam.adam")
def adam_does_not_correct_the_bias(
    update, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **options
):
    for step in state_steps:
        step.fill_(1e9)
    update(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **options)


@fault("optim.adam-2 optim.adam-doubles optim.linear-1024 optim.state-ON")
def adam_uses_amsgrad_unasked(patch):
    for optimizer in (torch.optim.Adam, torch.optim.AdamW):
        defaulting(patch, optimizer, amsgrad=True)


@fault("optim.state-same-dtype optim.state-fp32-auto")
def adam_keeps_its_state_in_fp32(patch):
    def cast(state, dtype):
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            if name in state:
                state[name] = state[name].to(dtype)

    for optimizer in {torch.optim.Adam, torch.optim.AdamW}:
        stepping(
            patch, optimizer, lambda p, s: cast(s, p.dtype), lambda p, s: cast(s, torch.float32)
        )


@fault("optim.sgd-update")
def sgd_moves_along_the_gradient(patch):
    step = torch.optim.SGD.step

    def uphill(self, *args, **kwargs):
        for group in self.param_groups:
            group["lr"] *= -1
        step(self, *args, **kwargs)
        for group in self.param_groups:
            group["lr"] *= -1

    patch.setattr(torch.optim.SGD, "step", uphill)


@fault("optim.sgd-none optim.momentum-1", instead_of="torch.optim.SGD.step")
def sgd_keeps_a_buffer_that_it_does_not_need(step, self, *args, **kwargs):
    step(self, *args, **kwargs)
    for group in self.param_groups:
        for parameter in group["params"]:
            self.state[parameter].setdefault("unused", torch.zeros_like(parameter))


@fault("optim.fp32-state-needed")
def sgd_updates_a_hidden_copy_in_fp32(patch):
    copies = {}

    def steps(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                copy = copies.setdefault(parameter, parameter.detach().float())
                copy -= group["lr"] * parameter.grad.float()
                parameter.data.copy_(copy)

    patch.setattr(torch.optim.SGD, "step", steps)


@fault(
    "optim.adagrad-update optim.adam-for-adagrad optim.subclass",
    instead_of="torch.optim.adagrad.adagrad",
)
def adagrad_forgets_half_of_its_sum_at_every_step(
    update, params, grads, state_sums, state_steps, **options
):
    for kept in state_sums:
        kept.mul_(0.5)
    update(params, grads, state_sums, state_steps, **options)


@fault("optim.rmsprop-ema optim.rmsprop-1", instead_of="torch.optim.rmsprop.rmsprop")
def rmsprop_sums_the_squares(update, params, grads, square_avgs, *rest, alpha, **options):
    for kept in square_avgs:
        kept.div_(alpha)
    update(params, grads, square_avgs, *rest, alpha=alpha, **options)


@fault("optim.adam-description optim.adam-combo", instead_of="torch.optim.adam.adam")
def adam_keeps_the_gradient_in_place_of_its_average(update, *args, **options):
    return update(*args, **{**options, "beta1": 0.0})


@fault("optim.momentum-average optim.momentum-1 optim.history")
def momentum_is_dampened_unasked(patch):
    defaulting(patch, torch.optim.SGD, dampening=lambda given: given.get("momentum", 0.0))


@fault("optim.rmsprop-1")
def rmsprop_is_centered_unasked(patch):
    defaulting(patch, torch.optim.RMSprop, centered=True)


@fault("optim.zero-sharding", instead_of="accounting.planning.device_state")
def zero_1_is_said_to_shard_over_two_at_most(device_state, n, devices=1, zero_stage=0, **rest):
    return device_state(n, min(devices, 2), zero_stage, **rest)


@fault("optim.subclass", instead_of="torch.optim.Optimizer.load_state_dict")
def a_loaded_optimizer_begins_anew(load, self, saved):
    return load(self, {**saved, "state": {}})


@fault("optim.zero-grad-none", instead_of="torch.optim.Optimizer.zero_grad")
def adams_zero_grad_keeps_the_gradients(free, self, set_to_none=True):
    return free(self, set_to_none and (not isinstance(self, torch.optim.Adam)))


@fault("optim.state-keyed")
def adams_averages_begin_anew_at_every_step(patch):
    def begin_anew(_, state):
        for name, kept in state.items():
            if name != "step":
                kept.zero_()

    stepping(patch, torch.optim.Adam, begin_anew, nothing)
