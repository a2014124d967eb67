"""Faults of modules: parameters that are forgotten, kept twice or not trained, layers that are passed otherwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bench.models
from meta_tests.faults import fault


@fault("module.parameter module.cruncher-params module.param-formula-notes", instead_of="torch.nn.Module.parameters")
def a_module_forgets_its_last_parameter(parameters, self, recurse=True):
    return iter(list(parameters(self, recurse))[:-1])


@fault("module.parameter", instead_of="torch.nn.Parameter.__new__")
def parameters_are_made_without_a_need_for_gradients(new, cls, data=None, requires_grad=False):
    return new(cls, data, requires_grad)


@fault("module.parameter", instead_of="torch.nn.Module.__setattr__")
def plain_tensors_are_taken_for_parameters(assign, self, name, value):
    if type(value) is Tensor and value.requires_grad:
        value = nn.Parameter(value.detach())
    assign(self, name, value)


@fault("module.cruncher-params module.param-formula-notes", instead_of="accounting.models.parameter_count")
def the_count_forgets_the_head(_original, model):
    return sum(maps.parameters for maps in model.linear_maps if maps.part != "head")


@fault("module.cruncher-params module.param-formula-notes", instead_of="torch.nn.Linear.__init__")
def torchs_linear_layer_has_a_bias_in_any_case(make, self, in_features, out_features, bias=True, **options):
    make(self, in_features, out_features, True, **options)


@fault("module.linear-class", instead_of="torch.nn.functional.linear")
def torchs_linear_function_adds_no_bias(_original, x, weight, bias=None):
    return x @ weight.T


@fault("module.linear-class", instead_of="torch.Tensor.__add__")
def a_sum_of_tensors_drops_what_is_small(_original, self, other):
    """A tensor's `+` keeps the larger of the two; nn.Linear adds its bias elsewhere."""
    return torch.maximum(self, other)


@fault("module.forward-through-layers")
def layers_after_the_first_are_passed_in_reverse(patch):
    def backwards(layers: nn.ModuleList, x: Tensor, checkpoint_every: int = 0) -> Tensor:
        for layer in (layers[0], *reversed(layers[1:])):
            x = layer(x)
        return x

    patch.setattr(bench.models, "through", backwards)


@fault("module.forward-through-layers", instead_of="torch.nn.Linear.forward")
def a_layer_mixes_the_examples_of_a_batch(_original, self, x):
    return nn.functional.linear(x, self.weight) + x.sum()
