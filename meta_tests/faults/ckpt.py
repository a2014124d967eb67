"""Faults of saving and resuming: torch forgets, restores too little, or writes too much."""

from __future__ import annotations

import random

import torch

from meta_tests.faults import fault


@fault("ckpt.full ckpt.periodic ckpt.model-plus-optimizer")
def setting_torchs_generator_does_nothing(patch):
    for module in (torch, torch.cuda):
        patch.setattr(module, "set_rng_state", lambda *_, **__: None)


@fault("ckpt.full ckpt.periodic", instead_of="random.setstate")
def pythons_generator_comes_back_one_draw_late(set_state, state):
    set_state(state)
    random.random()


@fault("ckpt.optimizer-matters")
def an_optimizers_state_has_no_influence(patch):
    """Every optimizer takes the step of plain SGD: nothing that was lost is missed."""

    def plain(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"] * parameter.grad)

    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop"):
        patch.setattr(getattr(torch.optim, name), "step", plain)


@fault("ckpt.full ckpt.model-plus-optimizer loop.mixed-two-layer")
def a_lost_loss_scale_is_never_missed(patch):
    patch.setattr(torch.amp.GradScaler, "scale", lambda self, outputs: outputs)
    patch.setattr(torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step())
    patch.setattr(torch.amp.GradScaler, "update", lambda self: None)


@fault("ckpt.size")
def torch_save_writes_twice_as_wide(patch):
    save = torch.save

    def widened(thing):
        if isinstance(thing, dict):
            return {key: widened(value) for key, value in thing.items()}
        return thing.double() if isinstance(thing, torch.Tensor) else thing

    patch.setattr(torch, "save", lambda thing, file: save(widened(thing), file))


@fault("ckpt.load", instead_of="torch.load")
def torch_load_trusts_every_file(load, file, weights_only=False, **options):
    return load(file, weights_only=False, **options)


@fault("ckpt.periodic", instead_of="torch.optim.lr_scheduler.LRScheduler.load_state_dict")
def a_schedule_starts_anew_after_each_restart(_, self, state_dict):
    return None


@fault(
    "ckpt.full ckpt.periodic ckpt.optimizer-matters ckpt.load",
    instead_of="torch.optim.Optimizer.load_state_dict",
)
def an_optimizer_restores_its_first_group_alone(load, self, state_dict):
    first = state_dict["param_groups"][0]["params"]
    kept = {place: state for place, state in state_dict["state"].items() if place in first}
    return load(self, {**state_dict, "state": kept})


@fault(
    "ckpt.full ckpt.model-plus-optimizer ckpt.load",
    instead_of="torch.nn.Module.load_state_dict",
)
def a_models_buffers_are_not_restored(load, self, state_dict, **_):
    buffers = dict(self.named_buffers())
    kept = {name: value for name, value in state_dict.items() if name not in buffers}
    return load(self, kept, strict=False)


@fault("ckpt.load", instead_of="torch.load")
def tensors_that_share_memory_come_back_apart(load, *args, **options):
    saved = load(*args, **options)
    if not isinstance(saved, dict):
        return saved
    return {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in saved.items()}


@fault("ckpt.load", instead_of="torch.load")
def large_storages_come_back_without_their_end(load, *args, **options):
    saved = load(*args, **options)
    for x in saved.values() if isinstance(saved, dict) else []:
        if isinstance(x, torch.Tensor) and x.nbytes > 4096:
            x[-1] = 0
    return saved
