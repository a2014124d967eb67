"""Faults of the training loop: gradients that stay or vanish, modes that are ignored, a start that is changed."""

from meta_tests.faults import fault


@fault("loop.zero-grad-position loop.order", instead_of="torch.optim.Optimizer.zero_grad")
def zero_grad_does_nothing(_original, self, set_to_none=True):
    return None


@fault("loop.order loop.zero-grad-position", instead_of="torch.optim.SGD.step")
def sgd_steps_half_as_far(step, self, closure=None):
    for group in self.param_groups:
        group["lr"] *= 0.5
    step(self)
    for group in self.param_groups:
        group["lr"] *= 2


@fault("loop.train-mode", instead_of="torch.nn.Module.eval")
def eval_is_forgotten_by_inner_layers(_original, self):
    return setattr(self, "training", False) or self


@fault("loop.train-mode", instead_of="torch.nn.functional.dropout")
def dropout_forgets_to_scale_what_it_keeps(dropout, x, p=0.5, training=True, inplace=False):
    return dropout(x, p, training) * (1 - p if training else 1)


@fault("loop.naive-init-fails", instead_of="torch.nn.init.normal_")
def normal_initialisation_is_truncated_to_a_tenth(normal, tensor, mean=0.0, std=1.0):
    return normal(tensor, mean, min(std, 0.1))


@fault("loop.naive-init-fails", instead_of="torch.nn.init.normal_")
def normal_initialisation_ignores_its_deviation(normal, tensor, mean=0.0, std=1.0):
    return normal(tensor)
