"""Faults in what training holds: in the tables, in the formulas, and in torch's own optimizers."""

import torch

from accounting.optimizers import OPTIMIZERS, RECIPES, Optimizer, Recipe
from meta_tests.faults import fault


@fault("mem.16-bytes mem.4gb-per-1b mem.adam-formula mem.bf16-recipe mem.total-formula ckpt.size")
def adam_is_said_to_keep_one_buffer(patch):
    for name in ("adam", "adamw"):
        patch.setitem(OPTIMIZERS, name, Optimizer("AdamW", ("exp_avg",)))


@fault("mem.adagrad-12 mem.496 mem.470gb")
def adagrad_is_said_to_keep_two_buffers(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum", "square"), eager=True))


@fault("mem.total-formula")
def adagrad_is_said_to_allocate_at_the_first_step(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum",)))


@fault("mem.bf16-recipe mem.single-dtype")
def a_cell_of_the_recipe_table_is_wrong(patch):
    patch.setitem(RECIPES, "bf16-fp32-state", Recipe("bf16", "bf16", "bf16"))


@fault("mem.single-dtype mem.bf16-recipe", instead_of="accounting.formats.element_bits")
def bf16_is_said_to_take_four_bytes(element_bits, name):
    return element_bits("fp32" if name == "bf16" else name)


@fault(
    "mem.496 mem.470gb mem.adam-formula mem.omits-activations mem.total-formula",
    instead_of="accounting.activations.activation_bytes",
)
def the_activations_of_the_last_layer_are_forgotten(activation_bytes, model, batch):
    return activation_bytes(model, batch) - 4 * batch * model.dim


@fault("mem.total-formula", instead_of="accounting.activations.deep_linear_peak_bytes")
def the_peak_forgets_the_gradient_on_its_way_through_the_net(peak_bytes, model, batch, **rest):
    return peak_bytes(model, batch, **rest) - 4 * batch * model.dim


@fault("mem.omits-activations", instead_of="accounting.memory.optimizer_step_peak_bytes")
def foreach_adamw_is_said_to_need_no_scratch(peak_bytes, sizes, implementation, **rest):
    return peak_bytes(sizes, "fused", **rest)


@fault("mem.total-formula mem.496 mem.adagrad-12")
def torchs_adagrad_keeps_no_accumulator(patch):
    class Forgetful(torch.optim.SGD):
        """An AdaGrad by name."""

        def __init__(self, parameters):
            super().__init__(parameters, lr=1e-2)

    patch.setattr(torch.optim, "Adagrad", Forgetful)


@fault("mem.grads-equal-params mem.total-formula", instead_of="torch.optim.Optimizer.zero_grad")
def torchs_zero_grad_keeps_the_gradients(zero_grad, self, set_to_none=True):
    return zero_grad(self, False)


@fault("mem.16-bytes mem.adam-formula mem.grads-equal-params", instead_of="torch.nn.Linear.reset_parameters")
def torchs_linear_layer_keeps_its_weight_twice(initialise, self):
    initialise(self)
    self.copy = torch.nn.Parameter(self.weight.detach().clone())


@fault("mem.communication-buffers")
def gradients_are_always_views_of_the_buckets(patch):
    wrap = torch.nn.parallel.DistributedDataParallel
    patch.setattr(
        torch.nn.parallel, "DistributedDataParallel", lambda net, **_: wrap(net, gradient_as_bucket_view=True)
    )


@fault("mem.communication-buffers")
def data_parallel_training_makes_no_buckets(patch):
    patch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda net, **_: net)
