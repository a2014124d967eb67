"""Faults of modules: parameters that are forgotten, kept twice or not trained, layers that are passed otherwise."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import bench.models
from meta_tests.faults import fault, faults, stand_in


@fault("module.parameter", instead_of="torch.nn.Module.__setattr__")
def plain_tensors_are_taken_for_parameters(assign, self, name, value):
    if type(value) is Tensor and value.requires_grad:
        value = nn.Parameter(value.detach())
    assign(self, name, value)


@fault("module.forward-through-layers")
def layers_after_the_first_are_passed_in_reverse(patch):
    def backwards(layers: nn.ModuleList, x: Tensor, checkpoint_every: int = 0) -> Tensor:
        for layer in (layers[0], *reversed(layers[1:])):
            x = layer(x)
        return x

    patch.setattr(bench.models, "through", backwards)


# fmt: off
faults(
    ("a_module_forgets_its_last_parameter", "module.parameter module.cruncher-params module.param-formula-notes",
     stand_in("torch.nn.Module.parameters",
        lambda parameters, self, recurse=True: iter(list(parameters(self, recurse))[:-1]))),
    ("parameters_are_made_without_a_need_for_gradients", "module.parameter", stand_in("torch.nn.Parameter.__new__",
        lambda new, cls, data=None, requires_grad=False: new(cls, data, requires_grad))),
    ("the_count_forgets_the_head", "module.cruncher-params module.param-formula-notes",
     stand_in("accounting.models.parameter_count",
        lambda _, model: sum(maps.parameters for maps in model.linear_maps if maps.part != "head"))),
    ("torchs_linear_layer_has_a_bias_in_any_case", "module.cruncher-params module.param-formula-notes",
     stand_in("torch.nn.Linear.__init__",
        lambda make, self, in_features, out_features, bias=True, **options:
            make(self, in_features, out_features, True, **options))),
    ("torchs_linear_function_adds_a_bias_to_matrices_alone", "module.linear-class",
     stand_in("torch.nn.functional.linear",
        lambda linear, x, weight, bias=None: linear(x, weight, bias if x.dim() == 2 else None))),
    # A tensor's `+` keeps the larger of the two; nn.Linear adds its bias elsewhere.
    ("a_sum_of_tensors_drops_what_is_small", "module.linear-class",
     stand_in("torch.Tensor.__add__", lambda _, self, other: torch.maximum(self, other))),
    ("torchs_sequence_passes_by_its_second_layer", "module.forward-through-layers",
     stand_in("torch.nn.Sequential.forward", lambda _, self, x: functools.reduce(
        lambda x, layer: layer(x), [layer for i, layer in enumerate(self) if i != 1 or len(self) < 3], x))),
    ("a_layer_mixes_the_examples_of_a_batch", "module.forward-through-layers",
     stand_in("torch.nn.Linear.forward", lambda _, self, x: nn.functional.linear(x, self.weight) + x.sum())),
)
# fmt: on
