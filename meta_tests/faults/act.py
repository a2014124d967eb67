"""Faults in what autograd keeps, in torch's checkpointing, and in the formulas of both."""

import torch
from torch.nn.attention import SDPBackend
from torch.utils import checkpoint as checkpointing

from meta_tests.faults import fault, replace


def checkpointed(patch, replacement):
    """Puts `replacement` for torch's checkpoint, in the nets of bench too."""
    # bench.models imports it by name, and is patched only if it is loaded.
    import bench.models  # noqa: F401

    replace(patch, checkpointing.checkpoint, replacement)
    patch.setattr(checkpointing, "checkpoint", replacement)


@fault("act.checkpoint-same-grads")
def checkpointing_does_not_keep_the_random_state(patch):
    run = checkpointing.checkpoint

    def without_random_state(*args, **options):
        return run(*args, **{**options, "preserve_rng_state": False})

    checkpointed(patch, without_random_state)


@fault(
    "act.BDL act.why act.can-dominate act.ckpt-cost act.sqrt-L grad.needs-activations mem.496",
    "mem.adam-formula",
    instead_of="torch.nn.Linear.forward",
)
def a_linear_layer_hides_a_copy_of_its_input(forward, self, x):
    self.hidden = x.clone()
    return forward(self, x)


@fault(
    "act.why act.BDL act.can-dominate grad.needs-activations",
    instead_of="torch.nn.Linear.forward",
)
def a_linear_layer_keeps_a_copy_of_its_input(forward, self, x):
    return forward(self, x.clone())


@fault("act.why act.inference-one-layer")
def a_linear_layer_prepares_for_gradients_nobody_asked_for(patch):
    with_gradients = torch.enable_grad()(torch.nn.Linear.forward)
    patch.setattr(torch.nn.Linear, "forward", with_gradients)


@fault("act.BDL act.can-dominate", instead_of="torch.nn.attention.sdpa_kernel")
def fused_attention_is_never_chosen(choose, *_):
    return choose(SDPBackend.MATH)


@fault("act.ckpt-cost", instead_of="accounting.models.recompute_flops")
def early_stop_is_said_to_spare_nothing(recompute_flops, *args, **rest):
    return recompute_flops(*args, **{**rest, "early_stop": False})


@fault("act.sqrt-L", instead_of="accounting.activations.recomputed_bytes")
def recomputing_is_said_to_bring_back_a_layer_more(recomputed_bytes, model, batch, *args, **rest):
    return recomputed_bytes(model, batch, *args, **rest) + 8 * batch * model.dim


@fault("act.why act.BDL", instead_of="torch.nn.Linear.forward")
def of_sequences_a_copy_is_kept(forward, self, x):
    return forward(self, x.clone() if x.dim() > 2 else x)


@fault("act.inference-one-layer amp.activation-memory", instead_of="torch.nn.Linear.forward")
def of_sequences_a_copy_is_hidden(forward, self, x):
    self.hidden = x.clone() if x.dim() > 2 else None
    return forward(self, x)


@fault("act.ckpt-cost", instead_of="accounting.models.recompute_flops")
def a_transformer_is_said_to_repeat_no_attention(recompute_flops, model, *args, **rest):
    repeated = recompute_flops(model, *args, **rest)
    attentions = [each.forward_flops(*args, "full") for each in model.attentions]
    return repeated - sum(attentions)


@fault("act.can-dominate", instead_of="accounting.activations.activation_bytes")
def attention_is_said_to_keep_no_pairs(activation_bytes, *args, attention="flash", **rest):
    return activation_bytes(*args, attention="flash", **rest)
