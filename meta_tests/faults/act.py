"""Faults in what autograd keeps, in torch's checkpointing, and in the formulas of both."""

import torch
from torch.nn.attention import SDPBackend
from torch.utils import checkpoint as checkpointing

from meta_tests.faults import fault, faults, replace, stand_in


def checkpointed(patch, replacement):
    """Puts `replacement` for torch's checkpoint, in the nets of bench too."""
    import bench.models  # noqa: F401  # which has imported it by name

    replace(patch, checkpointing.checkpoint, replacement)
    patch.setattr(checkpointing, "checkpoint", replacement)


@fault("act.checkpoint-same-grads")
def checkpointing_does_not_keep_the_random_state(patch):
    run = checkpointing.checkpoint
    checkpointed(
        patch, lambda *args, **options: run(*args, **{**options, "preserve_rng_state": False})
    )


def a_linear_layer_hides_a_copy_of_its_input(forward, self, x):
    self.hidden = x.clone()
    return forward(self, x)


for where, options in (
    ("", ""),
    ("_on_a_card", "-p meta_tests.simulated_card.plugin --device cuda --quick"),
):
    fault(
        "act.BDL act.why act.can-dominate act.ckpt-cost act.sqrt-L grad.needs-activations mem.496 mem.adam-formula",
        instead_of="torch.nn.Linear.forward",
        options=options,
        name=f"a_linear_layer_hides_a_copy_of_its_input{where}",
    )(a_linear_layer_hides_a_copy_of_its_input)


# fmt: off
faults(
    ("a_linear_layer_keeps_a_copy_of_its_input", "act.why act.BDL act.can-dominate grad.needs-activations",
     stand_in("torch.nn.Linear.forward", lambda forward, self, x: forward(self, x.clone()))),
    ("a_linear_layer_prepares_for_gradients_nobody_asked_for", "act.why act.inference-one-layer",
     lambda patch: patch.setattr(torch.nn.Linear, "forward", torch.enable_grad()(torch.nn.Linear.forward))),
    ("fused_attention_is_never_chosen", "act.BDL act.can-dominate",
     stand_in("torch.nn.attention.sdpa_kernel", lambda choose, *_: choose(SDPBackend.MATH))),
    ("early_stop_is_said_to_spare_nothing", "act.ckpt-cost", stand_in("accounting.models.recompute_flops",
        lambda recompute_flops, *args, **rest: recompute_flops(*args, **{**rest, "early_stop": False}))),
    ("recomputing_is_said_to_bring_back_a_layer_more", "act.sqrt-L", stand_in("accounting.activations.recomputed_bytes",
        lambda recomputed_bytes, model, batch, *args, **rest:
            recomputed_bytes(model, batch, *args, **rest) + 8 * batch * model.dim)),
)
# fmt: on
