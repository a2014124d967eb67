"""Faults in how torch accumulates gradients, in what a micro-batch keeps, and in the formulas of it."""

import torch

from meta_tests.faults import fault, faults, leaves_of, stand_in


@fault(
    "accum.equivalent accum.memory accum.fp32-needed loop.zero-grad-position",
    instead_of="torch.Tensor.backward",
)
def backward_forgets_the_gradients_of_before(backward, self, *args, **kwargs):
    for leaf in leaves_of(self):
        leaf.grad = None
    backward(self, *args, **kwargs)


@fault("accum.equivalent")
def layer_norm_looks_across_examples(patch):
    class AcrossExamples(torch.nn.Module):
        """A LayerNorm by name."""

        def __init__(self, width):
            super().__init__()

        def forward(self, x):
            return x - x.mean()

    patch.setattr(torch.nn, "LayerNorm", AcrossExamples)


@fault("accum.memory", instead_of="torch.Tensor.chunk")
def a_micro_batch_is_run_as_the_whole_batch(chunk, self, chunks, dim=0):
    parts = chunk(self, chunks, dim)
    return [torch.cat([part, *[torch.zeros_like(part)] * (chunks - 1)]) for part in parts]


@fault("accum.fp32-needed", instead_of="torch.Tensor.backward")
def autograd_drops_what_is_below_a_256th_of_a_gradient_in_any_dtype(
    backward, self, *args, **kwargs
):
    """As an accumulation in bf16 does."""
    backward(self, *args, **kwargs)
    for leaf in leaves_of(self):
        leaf.grad = leaf.grad.bfloat16().to(leaf.dtype)


# fmt: off
faults(
    ("the_loss_is_a_sum_over_examples", "accum.equivalent", stand_in("torch.nn.functional.cross_entropy",
        lambda cross_entropy, scores, labels: cross_entropy(scores, labels, reduction="sum"))),
    ("batch_norm_does_not_look_across_examples", "accum.equivalent",
     lambda patch: patch.setattr(torch.nn, "BatchNorm1d", torch.nn.LayerNorm)),
    ("micro_batches_are_said_to_save_nothing", "accum.memory", stand_in("accounting.activations.activation_bytes",
        lambda activation_bytes, *args, **rest: activation_bytes(*args, **{**rest, "micro_batches": 1}))),
    ("the_peak_is_said_to_be_that_of_two_examples_more", "accum.memory",
     stand_in("accounting.activations.deep_linear_peak_bytes",
        lambda peak_bytes, model, batch, **rest: peak_bytes(model, batch + 2, **rest))),
)
# fmt: on
