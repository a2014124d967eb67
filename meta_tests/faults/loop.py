"""Faults of the training loop: gradients that stay or vanish, modes that are ignored."""

import torch

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


@fault("loop.clipping", instead_of="torch.nn.utils.clip_grad_norm_")
def clipping_measures_the_norm_and_leaves_it(clip, parameters, most):
    return clip(parameters, float("inf"))


@fault("loop.logging", instead_of="torch.Tensor.item")
def every_number_that_is_read_keeps_its_graph(item, self):
    KEPT.append(self)
    return item(self)


@fault("loop.naive-init-fails", instead_of="torch.nn.init.normal_")
def normal_initialisation_is_truncated_to_a_tenth(normal, tensor, mean=0.0, std=1.0):
    return normal(tensor, mean, min(std, 0.1))


@fault("loop.schedule", instead_of="torch.optim.lr_scheduler.CosineAnnealingLR.step")
def a_schedule_changes_the_first_group_alone(step, self, epoch=None):
    others = self.optimizer.param_groups[1:]
    rates = [group["lr"] for group in others]
    step(self)
    for group, rate in zip(others, rates, strict=True):
        group["lr"] = rate


@fault("loop.zero-grad-position", instead_of="torch.optim.Optimizer.zero_grad")
def zero_grad_drops_the_first_gradient_alone(_original, self, set_to_none=True):
    for group in self.param_groups:
        group["params"][0].grad = None


@fault("loop.train-mode", instead_of="torch.nn.functional.dropout")
def dropout_of_bf16_does_not_scale(dropout, x, p=0.5, training=True, inplace=False):
    y = dropout(x, p, training, inplace)
    return y * (1 - p) if training and x.dtype == torch.bfloat16 else y


@fault("loop.train-mode", instead_of="torch.nn.functional.dropout")
def dropout_drops_nothing_beyond_65536_elements(dropout, x, p=0.5, training=True, inplace=False):
    y = dropout(x, p, training, inplace)
    if not training or x.numel() <= 65_536:
        return y
    kept = x.flatten()[65_536:] / (1 - p)
    return torch.cat([y.flatten()[:65_536], kept]).view_as(x)


@fault("loop.train-mode", instead_of="torch.nn.functional.batch_norm")
def batch_norm_of_images_takes_the_batch_in_eval_mode_too(
    norm, x, mean, variance, weight, bias, training, *rest
):
    return norm(x, mean, variance, weight, bias, training or x.dim() == 4, *rest)
