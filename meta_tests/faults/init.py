"""Faults of initialisation: functions of torch.nn.init with another deviation, other bounds or another fan."""

import math

from torch import nn

from meta_tests.faults import fault


@fault("init.sqrt-growth init.rescale init.explodes-with-depth", instead_of="torch.randn")
def randn_has_a_variance_of_a_half(randn, *shape, **options):
    return randn(*shape, **options) * math.sqrt(0.5)


@fault("init.sqrt-growth init.variance-scales init.rescale", instead_of="torch.Tensor.__matmul__")
def a_product_is_scaled_by_the_root_of_its_width(product, self, other):
    return product(self, other) / math.sqrt(self.shape[-1])


@fault("init.variance-scales", instead_of="torch.nn.init.uniform_")
def uniform_initialisation_is_of_half_the_width(uniform, tensor, a=0.0, b=1.0):
    return uniform(tensor, a / 2, b / 2)


@fault("init.xavier-constant", instead_of="torch.nn.init.xavier_normal_")
def xavier_looks_at_fan_in_alone(_original, tensor, gain=1.0, generator=None):
    return tensor.data.normal_(0, gain / math.sqrt(tensor.shape[1]), generator=generator)


@fault("init.xavier-constant")
def kaiming_takes_the_first_dimension_for_fan_in(patch):
    fans = nn.init._calculate_correct_fan
    other = {"fan_in": "fan_out", "fan_out": "fan_in"}
    patch.setattr(nn.init, "_calculate_correct_fan", lambda tensor, mode: fans(tensor, other[mode.lower()]))


@fault("init.explodes-with-depth", instead_of="torch.Tensor.__matmul__")
def products_saturate(product, self, other):
    return product(self, other).clamp(-1e6, 1e6)


@fault("init.trunc-3 init.trunc-shrinks-std", instead_of="torch.nn.init.trunc_normal_")
def truncation_forgets_its_bounds(_original, tensor, mean=0.0, std=1.0, generator=None, **_):
    return tensor.normal_(mean, std, generator=generator)


@fault("init.trunc-3", instead_of="torch.nn.init.trunc_normal_")
def truncation_bounds_are_relative(truncated, tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, **rest):
    """As is often assumed of a=-3, b=3."""

    return truncated(tensor, mean, std, mean + a * std, mean + b * std, **rest)


@fault("init.trunc-shrinks-std", instead_of="torch.nn.init.trunc_normal_")
def truncation_clamps_instead_of_drawing_again(_original, tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Outliers then lie on the bounds, and 0.9936 of the deviation is left."""

    return tensor.normal_(mean, std, generator=generator).clamp_(a, b)


@fault("init.0.02", instead_of="torch.nn.init.normal_")
def the_deviation_asked_for_is_taken_as_a_variance(normal, tensor, mean=0.0, std=1.0):
    return normal(tensor, mean, math.sqrt(std))


@fault("init.0.02", instead_of="torch.nn.init.zeros_")
def zeroed_biases_are_not(_original, tensor):
    return tensor


@fault("init.stability", instead_of="torch.optim.SGD.step")
def sgd_clips_each_gradient_to_a_length_of_one(step, self, closure=None):
    """Then no rate diverges, and initialisation makes no difference to that."""

    for group in self.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 1.0)
    step(self)


@fault("init.stability", instead_of="torch.optim.SGD.step")
def sgd_stands_still(_original, self, closure=None):
    return None
