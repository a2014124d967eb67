"""Faults of initialisation: another deviation, other bounds or another fan."""

import math

from torch import nn

from meta_tests.faults import fault


@fault("init.stability", instead_of="torch.optim.SGD.step")
def sgd_clips_each_gradient_to_a_length_of_one(step, self, closure=None):
    """Then no rate diverges, and initialisation makes no difference to that."""
    for group in self.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 1.0)
    step(self)


@fault("init.sqrt-growth init.rescale init.explodes-with-depth", instead_of="torch.randn")
def randn_has_a_variance_of_seven_tenths(randn, *shape, **options):
    return randn(*shape, **options) * math.sqrt(0.7)


@fault("init.variance-scales", instead_of="torch.nn.init.uniform_")
def uniform_initialisation_is_of_nine_tenths_of_the_width(uniform, tensor, a=0.0, b=1.0):
    return uniform(tensor, 0.9 * a, 0.9 * b)


# Outliers then lie on the bounds, and 0.9936 of the deviation is left.
@fault("init.trunc-shrinks-std", instead_of="torch.nn.init.trunc_normal_")
def truncation_clamps_instead_of_drawing_again(
    _, tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None
):
    return tensor.normal_(mean, std, generator=generator).clamp_(a, b)
