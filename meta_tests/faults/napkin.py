"""Faults that the claims about napkin estimates must notice."""

from types import SimpleNamespace

import numpy as np

import accounting.models
from accounting import planning
from meta_tests.faults import fault


@fault("napkin.40b napkin.per-device", instead_of="accounting.planning.model_state")
def the_optimizer_keeps_one_moment(kept, *args, **kwargs):
    state = kept(*args, **kwargs)
    return SimpleNamespace(**vars(state) | {"state": state.state // 2})


@fault("napkin.chinchilla-20")
def the_replication_is_taken_for_the_original(patch):
    from test_claims.oracles import published

    patch.setitem(published.LOSSES, "besiroglu-2024", published.LOSSES["chinchilla-2022"])


@fault("napkin.53b", instead_of="accounting.planning.model_state")
def the_master_copy_takes_no_bytes(kept, *args, **kwargs):
    return SimpleNamespace(**vars(kept(*args, **kwargs)) | {"master": 0})


@fault("napkin.stalls", instead_of="accounting.planning.training_days")
def days_are_those_at_half_the_peak(training_days, *run):
    return training_days(*run[:-1], 0.5)


@fault("napkin.cost", instead_of="accounting.planning.training_cost")
def one_device_is_billed_for_all(training_cost, days, devices, price):
    return training_cost(days, 1, price)


@fault("napkin.goodput", instead_of="numpy.random.default_rng")
def failures_come_like_clockwork(*_):
    return SimpleNamespace(exponential=lambda mean, number: np.full(number, mean))


@fault("napkin.144-days napkin.time-formula napkin.ignores napkin.8h100-2weeks", "napkin.4.7e21")
def a_day_has_twenty_hours(patch):
    patch.setattr(planning, "SECONDS_PER_DAY", 20 * 60 * 60)


@fault("napkin.144-days napkin.energy-per-token napkin.time-formula", "napkin.six-across-run")
def the_gradient_of_the_input_is_forgotten(patch):
    patch.setitem(accounting.models.RULES, "step", 4)
