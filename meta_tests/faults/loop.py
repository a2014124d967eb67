"""Faults of the training loop: gradients that stay or vanish, modes that are ignored."""

from meta_tests.faults import fault

KEPT = []


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


@fault("loop.train-mode loop.evaluation", instead_of="torch.nn.Module.eval")
def eval_is_forgotten_by_inner_layers(_, self):
    return setattr(self, "training", False) or self


@fault("loop.logging", instead_of="torch.Tensor.item")
def every_number_that_is_read_keeps_its_graph(item, self):
    KEPT.append(self)
    return item(self)


@fault("loop.naive-init-fails", instead_of="torch.nn.init.normal_")
def normal_initialisation_is_truncated_to_a_tenth(normal, tensor, mean=0.0, std=1.0):
    return normal(tensor, mean, min(std, 0.1))
