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


@fault("optim.sgd-update optim.momentum-update")
def sgd_moves_along_the_gradient(patch):
    step = torch.optim.SGD.step

    def uphill(self, *args, **kwargs):
        for group in self.param_groups:
            group["lr"] *= -1
        step(self, *args, **kwargs)
        for group in self.param_groups:
            group["lr"] *= -1

    patch.setattr(torch.optim.SGD, "step", uphill)


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
    "optim.adagrad-update optim.adagrad-flat-average optim.adam-for-adagrad optim.subclass",
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


@fault("optim.adaptive-rate")
def rmsprop_adds_a_thousandth_to_its_root(patch):
    defaulting(patch, torch.optim.RMSprop, eps=1e-3)


@fault("optim.zero-sharding", instead_of="accounting.planning.device_state")
def zero_1_is_said_to_shard_over_two_at_most(device_state, n, devices=1, zero_stage=0, **rest):
    return device_state(n, min(devices, 2), zero_stage, **rest)
