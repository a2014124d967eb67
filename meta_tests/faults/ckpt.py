"""Faults of saving and resuming: torch forgets, restores too little, or writes too much."""

import torch

from meta_tests.faults import fault


@fault("ckpt.full ckpt.model-plus-optimizer loop.mixed-two-layer")
def a_lost_loss_scale_is_never_missed(patch):
    patch.setattr(torch.amp.GradScaler, "scale", lambda self, outputs: outputs)
    patch.setattr(torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step())
    patch.setattr(torch.amp.GradScaler, "update", lambda self: None)


@fault(
    "ckpt.full ckpt.periodic ckpt.optimizer-matters ckpt.load",
    instead_of="torch.optim.Optimizer.load_state_dict",
)
def an_optimizer_restores_its_first_group_alone(load, self, state_dict):
    first = state_dict["param_groups"][0]["params"]
    kept = {place: state for place, state in state_dict["state"].items() if place in first}
    return load(self, {**state_dict, "state": kept})
