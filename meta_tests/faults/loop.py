"""Faults of the training loop: gradients that stay or vanish, modes that are ignored, a start that is changed."""

from meta_tests.faults import fault, faults, stand_in


@fault("loop.order loop.zero-grad-position", instead_of="torch.optim.SGD.step")
def sgd_steps_half_as_far(step, self, closure=None):
    for group in self.param_groups:
        group["lr"] *= 0.5
    step(self)
    for group in self.param_groups:
        group["lr"] *= 2


@fault("loop.schedule", instead_of="torch.optim.lr_scheduler.CosineAnnealingLR.get_lr")
def a_schedule_falls_in_a_straight_line(_original, self):
    return [rate * (1 - self.last_epoch / self.T_max) for rate in self.base_lrs]


# fmt: off
faults(
    ("eval_is_forgotten_by_inner_layers", "loop.train-mode loop.evaluation",
     stand_in("torch.nn.Module.eval", lambda _, self: setattr(self, "training", False) or self)),
    ("clipping_measures_the_norm_and_leaves_it", "loop.clipping", stand_in("torch.nn.utils.clip_grad_norm_",
        lambda clip, parameters, most: clip(parameters, float("inf")))),
    ("every_number_that_is_read_keeps_its_graph", "loop.logging",
     stand_in("torch.Tensor.item", lambda item, self, kept=[]: kept.append(self) or item(self))),
    ("normal_initialisation_is_truncated_to_a_tenth", "loop.naive-init-fails",
     stand_in("torch.nn.init.normal_", lambda normal, tensor, mean=0.0, std=1.0: normal(tensor, mean, min(std, 0.1)))),
)
# fmt: on
