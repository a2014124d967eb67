"""Faults that the claims about napkin estimates must notice."""

from types import SimpleNamespace

import accounting.models
from accounting import planning
from meta_tests.faults import fault


@fault("napkin.144-days napkin.time-formula napkin.ignores napkin.8h100-2weeks napkin.4.7e21")
def a_day_has_twenty_hours(patch):
    patch.setattr(planning, "SECONDS_PER_DAY", 20 * 60 * 60)


@fault("napkin.144-days", instead_of="accounting.devices.peak_flop_per_s")
def the_peak_table_holds_the_sparse_peak(dense, device, dtype, **kwargs):
    return 2 * dense(device, dtype, **kwargs)


@fault("napkin.144-days napkin.time-formula napkin.six-across-run")
def the_gradient_of_the_input_is_forgotten(patch):
    patch.setitem(accounting.models.RULES, "step", 4)


@fault("napkin.40b napkin.per-device", instead_of="accounting.planning.model_state")
def the_optimizer_keeps_one_moment(kept, *args, **kwargs):
    state = kept(*args, **kwargs)
    halved = {"state": state.state // 2}
    return SimpleNamespace(**{**vars(state), **halved})


@fault("napkin.40b")
def every_stage_of_zero_shards_everything(patch):
    for stage in planning.ZERO_SHARDS:
        patch.setitem(planning.ZERO_SHARDS, stage, planning.ZERO_SHARDS[3])


@fault("napkin.six-across-run")
def torch_checkpoints_without_recomputing(patch):
    import bench.models

    patch.setattr(bench.models, "checkpoint", lambda run, *args, use_reentrant: run(*args))


@fault("napkin.40b napkin.per-device", instead_of="torch.optim.AdamW.step")
def torch_frees_the_gradients_after_a_step(step, self, *args, **kwargs):
    loss = step(self, *args, **kwargs)
    self.zero_grad()
    return loss
