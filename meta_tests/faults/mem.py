"""Faults in what training holds: in the tables, in the formulas, and in torch's own optimizers."""

import torch

import accounting.activations
import accounting.formats
import accounting.memory
from accounting.memory import OPTIMIZERS, RECIPES, Optimizer, Recipe
from accounting.models import DeepLinear
from meta_tests.faults import fault, replace


@fault("mem.16-bytes", "mem.4gb-per-1b", "mem.adam-formula", "mem.bf16-recipe", "mem.total-formula")
def adam_is_said_to_keep_one_buffer(patch):
    for name in ("adam", "adamw"):
        patch.setitem(OPTIMIZERS, name, Optimizer("AdamW", ("exp_avg",)))


@fault("mem.adagrad-12", "mem.496", "mem.470gb")
def adagrad_is_said_to_keep_two_buffers(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum", "square"), eager=True))


@fault("mem.total-formula")
def adagrad_is_said_to_allocate_at_the_first_step(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum",)))


@fault("mem.bf16-recipe", "mem.single-dtype")
def a_cell_of_the_recipe_table_is_wrong(patch):
    patch.setitem(RECIPES, "bf16-fp32-state", Recipe("bf16", "bf16", "bf16"))


@fault("mem.single-dtype", "mem.bf16-recipe")
def bf16_is_said_to_take_four_bytes(patch):
    element_bits = accounting.formats.element_bits
    replace(patch, element_bits, lambda name: element_bits("fp32" if name == "bf16" else name))


@fault("mem.496", "mem.470gb", "mem.adam-formula", "mem.omits-activations", "mem.total-formula")
def the_activations_of_the_last_layer_are_forgotten(patch):
    activation_bytes = accounting.activations.activation_bytes
    replace(
        patch,
        activation_bytes,
        lambda model, batch: activation_bytes(model, batch) - 4 * batch * model.dim,
    )


@fault("mem.total-formula")
def the_peak_forgets_the_gradient_on_its_way_through_the_net(patch):
    peak_bytes = accounting.activations.deep_linear_peak_bytes

    def without_incoming_gradient(model: DeepLinear, batch: int, **rest: int) -> int:
        return peak_bytes(model, batch, **rest) - 4 * batch * model.dim

    replace(patch, peak_bytes, without_incoming_gradient)


@fault("mem.omits-activations")
def foreach_adamw_is_said_to_need_no_scratch(patch):
    peak_bytes = accounting.memory.optimizer_step_peak_bytes
    replace(patch, peak_bytes, lambda sizes, implementation, **rest: peak_bytes(sizes, "fused", **rest))


@fault("mem.total-formula", "mem.496", "mem.adagrad-12")
def torchs_adagrad_keeps_no_accumulator(patch):
    class Forgetful(torch.optim.SGD):
        """An AdaGrad by name."""

        def __init__(self, parameters):
            super().__init__(parameters, lr=1e-2)

    patch.setattr(torch.optim, "Adagrad", Forgetful)


@fault("mem.grads-equal-params", "mem.total-formula")
def torchs_zero_grad_keeps_the_gradients(patch):
    zero_grad = torch.optim.Optimizer.zero_grad
    patch.setattr(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: zero_grad(self, False))


@fault("mem.16-bytes", "mem.adam-formula", "mem.grads-equal-params")
def torchs_linear_layer_keeps_its_weight_twice(patch):
    initialise = torch.nn.Linear.reset_parameters

    def with_a_copy(self):
        initialise(self)
        self.copy = torch.nn.Parameter(self.weight.detach().clone())

    patch.setattr(torch.nn.Linear, "reset_parameters", with_a_copy)
