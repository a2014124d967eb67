"""Faults in what autograd keeps, in torch's checkpointing, and in the formulas of both."""

import torch
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


@fault("act.why act.inference-one-layer")
def a_linear_layer_prepares_for_gradients_nobody_asked_for(patch):
    with_gradients = torch.enable_grad()(torch.nn.Linear.forward)
    patch.setattr(torch.nn.Linear, "forward", with_gradients)
