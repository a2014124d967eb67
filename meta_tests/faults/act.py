"""Faults in what autograd keeps, in torch's checkpointing, and in the formulas of both."""

import contextlib

import torch
from torch.nn.attention import SDPBackend
from torch.utils import checkpoint as checkpointing

from meta_tests.faults import fault, replace


def checkpointed(patch, replacement):
    """Puts `replacement` for torch's checkpoint, in the nets of bench too."""
    import bench.models  # noqa: F401  # which has imported it by name

    replace(patch, checkpointing.checkpoint, replacement)
    patch.setattr(checkpointing, "checkpoint", replacement)


@fault("act.checkpoint-same-grads")
def checkpointing_does_not_keep_the_random_state(patch):
    run = checkpointing.checkpoint
    checkpointed(patch, lambda *args, **options: run(*args, **{**options, "preserve_rng_state": False}))


@fault("act.ckpt-cost act.sqrt-L act.checkpoint-same-grads mfu.hfu grad.extra-activation-factor")
def checkpointing_keeps_everything(patch):
    checkpointed(patch, lambda function, *args, **_: function(*args))


@fault("act.ckpt-cost act.sqrt-L", instead_of="torch.utils.checkpoint.set_checkpoint_early_stop")
def a_recomputation_always_stops_early(_original, _wanted):
    return contextlib.nullcontext()


@fault("act.why act.BDL act.can-dominate grad.needs-activations", instead_of="torch.nn.Linear.forward")
def a_linear_layer_keeps_a_copy_of_its_input(forward, self, x):
    return forward(self, x.clone())


@fault("act.why")
def a_linear_layer_prepares_for_gradients_nobody_asked_for(patch):
    patch.setattr(torch.nn.Linear, "forward", torch.enable_grad()(torch.nn.Linear.forward))


@fault("act.BDL act.can-dominate", instead_of="torch.nn.attention.sdpa_kernel")
def fused_attention_is_never_chosen(choose, *_):
    return choose(SDPBackend.MATH)


@fault("act.BDL")
def relu_keeps_its_input(patch):
    patch.setattr(torch.nn, "ReLU", torch.nn.SiLU)


@fault("act.BDL act.can-dominate", instead_of="accounting.activations.activation_bytes")
def the_activations_of_the_last_layer_are_forgotten(activation_bytes, model, batch, *args, **rest):
    return activation_bytes(model, batch, *args, **rest) - 4 * batch * model.dim


@fault("act.ckpt-cost", instead_of="accounting.models.recompute_flops")
def early_stop_is_said_to_spare_nothing(recompute_flops, *args, **rest):
    return recompute_flops(*args, **{**rest, "early_stop": False})


@fault("act.sqrt-L", instead_of="accounting.activations.recomputed_bytes")
def recomputing_is_said_to_bring_back_a_layer_more(recomputed_bytes, model, batch, *args, **rest):
    return recomputed_bytes(model, batch, *args, **rest) + 8 * batch * model.dim
