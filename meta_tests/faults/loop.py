"""Faults of the training loop: gradients that stay or vanish, modes that are ignored, a start that is changed."""

from meta_tests.faults import fault, faults, stand_in


@fault("loop.order loop.zero-grad-position", instead_of="torch.optim.SGD.step")
def sgd_steps_half_as_far(step, self, closure=None):
    for group in self.param_groups:
        group["lr"] *= 0.5
    step(self)
    for group in self.param_groups:
        group["lr"] *= 2


@fault("loop.zero-grad-position", instead_of="torch.optim.Optimizer.zero_grad")
def zero_grad_reaches_the_first_parameter_alone(_original, self, set_to_none=True):
    self.param_groups[0]["params"][0].grad = None


@fault("loop.clipping", instead_of="torch.nn.utils.clip_grad_norm_")
def clipping_measures_each_parameter_alone(clip, parameters, most, **options):
    for parameter in parameters:
        clip([parameter], most, **options)


@fault("loop.schedule", instead_of="torch.optim.lr_scheduler.CosineAnnealingLR.get_lr")
def a_schedule_falls_in_a_straight_line(_original, self):
    return [rate * (1 - self.last_epoch / self.T_max) for rate in self.base_lrs]


# fmt: off
faults(
    ("zero_grad_does_nothing", "loop.zero-grad-position loop.order",
     stand_in("torch.optim.Optimizer.zero_grad", lambda _, self, set_to_none=True: None)),
    ("eval_is_forgotten_by_inner_layers", "loop.train-mode loop.evaluation",
     stand_in("torch.nn.Module.eval", lambda _, self: setattr(self, "training", False) or self)),
    ("dropout_forgets_to_scale_what_it_keeps", "loop.train-mode", stand_in("torch.nn.functional.dropout",
        lambda dropout, x, p=0.5, training=True, inplace=False: dropout(x, p, training) * (1 - p if training else 1))),
    ("the_optimizer_forgets_what_a_schedule_sets", "loop.schedule",
     stand_in("torch.optim.lr_scheduler.CosineAnnealingLR.step", lambda _, self, epoch=None: None)),
    ("clipping_measures_the_norm_and_leaves_it", "loop.clipping", stand_in("torch.nn.utils.clip_grad_norm_",
        lambda clip, parameters, most: clip(parameters, float("inf")))),
    ("every_number_that_is_read_keeps_its_graph", "loop.logging",
     stand_in("torch.Tensor.item", lambda item, self, kept=[]: kept.append(self) or item(self))),
    ("normal_initialisation_is_truncated_to_a_tenth", "loop.naive-init-fails",
     stand_in("torch.nn.init.normal_", lambda normal, tensor, mean=0.0, std=1.0: normal(tensor, mean, min(std, 0.1)))),
    ("normal_initialisation_ignores_its_deviation", "loop.naive-init-fails",
     stand_in("torch.nn.init.normal_", lambda normal, tensor, mean=0.0, std=1.0: normal(tensor))),
)
# fmt: on
