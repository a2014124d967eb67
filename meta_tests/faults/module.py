"""Faults of modules: parameters that are forgotten, kept twice or not trained, layers that are passed otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accounting.models
import bench.models
from meta_tests.faults import fault, replace


@fault("module.parameter", "module.cruncher-params", "module.param-formula-notes")
def a_module_forgets_its_last_parameter(patch: pytest.MonkeyPatch) -> None:
    parameters = nn.Module.parameters

    def all_but_the_last(self: nn.Module, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(list(parameters(self, recurse))[:-1])

    patch.setattr(nn.Module, "parameters", all_but_the_last)


@fault("module.parameter")
def parameters_are_made_without_a_need_for_gradients(patch: pytest.MonkeyPatch) -> None:
    new = nn.Parameter.__new__
    patch.setattr(nn.Parameter, "__new__", lambda cls, data=None, requires_grad=False: new(cls, data, requires_grad))


@fault("module.parameter")
def plain_tensors_are_taken_for_parameters(patch: pytest.MonkeyPatch) -> None:
    assign = nn.Module.__setattr__

    def greedy(self: nn.Module, name: str, value: Any) -> None:
        if type(value) is Tensor and value.requires_grad:
            value = nn.Parameter(value.detach())
        assign(self, name, value)

    patch.setattr(nn.Module, "__setattr__", greedy)


@fault("module.cruncher-params", "module.param-formula-notes")
def the_count_forgets_the_head(patch: pytest.MonkeyPatch) -> None:
    def headless(model: Any) -> int:
        return sum(of.copies * (of.weights + of.biases) for of in model.linear_maps if of.part != "head")

    replace(patch, accounting.models.parameter_count, headless)


@fault("module.cruncher-params", "module.param-formula-notes")
def torchs_linear_layer_has_a_bias_in_any_case(patch: pytest.MonkeyPatch) -> None:
    make = nn.Linear.__init__

    def biased(self: nn.Linear, in_features: int, out_features: int, bias: bool = True, **options: Any) -> None:
        make(self, in_features, out_features, True, **options)

    patch.setattr(nn.Linear, "__init__", biased)


@fault("module.linear-class")
def torchs_linear_function_adds_no_bias(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.functional, "linear", lambda x, weight, bias=None: x @ weight.T)


@fault("module.linear-class")
def a_sum_of_tensors_drops_what_is_small(patch: pytest.MonkeyPatch) -> None:
    """A tensor's `+` keeps the larger of the two; nn.Linear adds its bias elsewhere."""
    patch.setattr(Tensor, "__add__", lambda self, other: torch.maximum(self, other))


@fault("module.forward-through-layers")
def layers_after_the_first_are_passed_in_reverse(patch: pytest.MonkeyPatch) -> None:
    def backwards(layers: nn.ModuleList, x: Tensor, checkpoint_every: int = 0) -> Tensor:
        for layer in (layers[0], *reversed(layers[1:])):
            x = layer(x)
        return x

    patch.setattr(bench.models, "through", backwards)


@fault("module.forward-through-layers")
def a_layer_mixes_the_examples_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Linear, "forward", lambda self, x: nn.functional.linear(x, self.weight) + x.sum())
