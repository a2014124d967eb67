"""Faults that the claims about napkin estimates must notice."""

from types import SimpleNamespace

import numpy as np

import accounting.models
from accounting import planning
from meta_tests.faults import fault, faults, stand_in


@fault("napkin.40b napkin.per-device", instead_of="accounting.planning.model_state")
def the_optimizer_keeps_one_moment(kept, *args, **kwargs):
    state = kept(*args, **kwargs)
    return SimpleNamespace(**vars(state) | {"state": state.state // 2})


@fault("napkin.40b")
def the_first_two_stages_of_zero_shard_everything(patch):
    for stage in (1, 2):
        patch.setitem(planning.ZERO_SHARDS, stage, planning.ZERO_SHARDS[3])


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


# fmt: off
faults(
    ("one_device_is_billed_for_all", "napkin.cost", stand_in("accounting.planning.training_cost",
        lambda training_cost, days, devices, price: training_cost(days, 1, price))),
    ("failures_come_like_clockwork", "napkin.goodput", stand_in("numpy.random.default_rng",
        lambda *_: SimpleNamespace(exponential=lambda mean, number: np.full(number, mean)))),
    ("a_day_has_twenty_hours", "napkin.144-days napkin.time-formula napkin.ignores napkin.8h100-2weeks napkin.4.7e21",
     lambda patch: patch.setattr(planning, "SECONDS_PER_DAY", 20 * 60 * 60)),
    ("attention_runs_twice", "napkin.six-across-run", stand_in("torch.nn.functional.scaled_dot_product_attention",
        lambda attend, *args, **options: [attend(*args, **options) for _ in range(2)].pop())),
    ("the_gradient_of_the_input_is_forgotten",
     "napkin.144-days napkin.energy-per-token napkin.time-formula napkin.six-across-run",
     lambda patch: patch.setitem(accounting.models.RULES, "step", 4)),
)
# fmt: on
