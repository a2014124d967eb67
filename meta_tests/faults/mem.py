"""Faults in what training holds: in the tables, in the formulas, and in torch's own optimizers."""

import dataclasses

import torch

from accounting.optimizers import OPTIMIZERS, Optimizer
from meta_tests.faults import fault, leaves_of, stand_in


@fault(
    "mem.16-bytes mem.4gb-per-1b mem.adam-formula mem.bf16-recipe mem.total-formula ckpt.size",
    "optim.linear-1024 optim.adam-2",
)
def adam_is_said_to_keep_one_buffer(patch):
    for name in ("adam", "adamw"):
        patch.setitem(OPTIMIZERS, name, Optimizer("AdamW", ("exp_avg",)))


@fault("mem.total-formula mem.496 mem.adagrad-12")
def torchs_adagrad_keeps_no_accumulator(patch):
    class Forgetful(torch.optim.SGD):
        """An AdaGrad by name."""

        def __init__(self, parameters):
            super().__init__(parameters, lr=1e-2)

    patch.setattr(torch.optim, "Adagrad", Forgetful)


@fault(
    "mem.16-bytes mem.adam-formula mem.grads-equal-params",
    instead_of="torch.nn.Linear.reset_parameters",
)
def torchs_linear_layer_keeps_its_weight_twice(initialise, self):
    initialise(self)
    self.copy = torch.nn.Parameter(self.weight.detach().clone())


ON_CARD = "-p meta_tests.card.plugin --device cuda --quick"
TRAINING = "mem.16-bytes mem.adam-formula mem.single-dtype mem.496"
ADAM_STATE = (
    "optim.adam-2 optim.adam-doubles optim.state-ON optim.linear-1024 optim.state-same-dtype "
    "optim.state-fp32-auto"
)


def hides_a_copy(step, self, *args, **kwargs):
    step(self, *args, **kwargs)
    self.hidden = [parameter.detach().clone() for parameter in self.state]


def hides_one_more_at_each_step(step, self, *args, **kwargs):
    step(self, *args, **kwargs)
    self.hidden = [
        *getattr(self, "hidden", ()),
        *(parameter.detach().clone() for parameter in self.state),
    ]


def keeps_each_gradient_twice(backward, loss, *args, **kwargs):
    backward(loss, *args, **kwargs)
    for leaf in leaves_of(loss):
        leaf.hidden = None if leaf.grad is None else leaf.grad.clone()


def stepping(step):
    def plant(patch):
        for name in (
            "AdamW",
            "Adam",
        ):  # a subclass keeps the step that it had when one was first made
            stand_in(f"torch.optim.{name}.step", step)(patch)

    return plant


# Bytes in no tensor that torch shows: neither a parameter nor a gradient, nor state.
HIDDEN = (
    ("adam_hides_a_copy_of_every_parameter", (TRAINING, ADAM_STATE), stepping(hides_a_copy)),
    (
        "adam_hides_one_more_copy_at_each_step",
        ("optim.state-keyed",),
        stepping(hides_one_more_at_each_step),
    ),
    (
        "backward_keeps_each_gradient_twice",
        (TRAINING, "mem.grads-equal-params"),
        stand_in("torch.Tensor.backward", keeps_each_gradient_twice),
    ),
)
for name, noticed_by, plant in HIDDEN:
    fault(*noticed_by, name=name)(plant)
    fault(*noticed_by, name=f"{name}_on_a_card", options=ON_CARD)(plant)


@fault("mem.grads-equal-params", instead_of="torch.Tensor.backward")
def gradients_of_bf16_are_left_in_fp32(backward, loss, *args, **kwargs):
    for leaf in leaves_of(loss):
        if leaf.dtype == torch.bfloat16:
            leaf.grad_dtype = torch.float32
    backward(loss, *args, **kwargs)


@fault("mem.adagrad-12 mem.496 mem.470gb")
def adagrad_is_said_to_keep_two_buffers(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum", "square"), eager=True))


@fault("mem.total-formula optim.adagrad-1")
def adagrad_is_said_to_allocate_at_the_first_step(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum",)))


@fault("mem.single-dtype mem.bf16-recipe", instead_of="accounting.formats.element_bits")
def bf16_is_said_to_take_four_bytes(element_bits, name):
    return element_bits("fp32" if name == "bf16" else name)


@fault("mem.total-formula", instead_of="accounting.activations.deep_linear_peak_bytes")
def the_peak_forgets_the_gradient_on_its_way_through_the_net(peak_bytes, model, batch, **rest):
    return peak_bytes(model, batch, **rest) - 4 * batch * model.dim


@fault("mem.omits-activations", instead_of="accounting.memory.optimizer_step_peak_bytes")
def foreach_adamw_is_said_to_need_no_scratch(peak_bytes, sizes, implementation, **rest):
    return peak_bytes(sizes, "fused", **rest)


@fault(
    "mem.grads-equal-params mem.grads-freed mem.total-formula",
    "optim.zero-grad-none",
    instead_of="torch.optim.Optimizer.zero_grad",
)
def torchs_zero_grad_keeps_the_gradients(zero_grad, self, set_to_none=True):
    return zero_grad(self, False)


@fault("mem.kv-cache", instead_of="accounting.models.cache_bytes")
def every_query_head_is_said_to_cache_a_key(cache_bytes, model, *rest):
    return cache_bytes(dataclasses.replace(model, kv_heads=model.heads), *rest)


@fault("mem.communication-buffers")
def data_parallel_training_makes_no_buckets(patch):
    patch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda net, **_: net)
