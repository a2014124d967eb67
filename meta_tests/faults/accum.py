"""Faults in how torch accumulates gradients, in what a micro-batch keeps, and in the formulas of it."""

import torch

from meta_tests.faults import fault, leaves_of


@fault("accum.equivalent accum.fp32-needed loop.zero-grad-position", instead_of="torch.Tensor.backward")
def backward_forgets_the_gradients_of_before(backward, self, *args, **kwargs):
    for leaf in leaves_of(self):
        leaf.grad = None
    backward(self, *args, **kwargs)


@fault("accum.equivalent", instead_of="torch.nn.functional.cross_entropy")
def the_loss_is_a_sum_over_examples(cross_entropy, scores, labels):
    return cross_entropy(scores, labels, reduction="sum")


@fault("accum.equivalent")
def layer_norm_looks_across_examples(patch):
    class AcrossExamples(torch.nn.Module):
        """A LayerNorm by name."""

        def __init__(self, width):
            super().__init__()

        def forward(self, x):
            return x - x.mean()

    patch.setattr(torch.nn, "LayerNorm", AcrossExamples)


@fault("accum.equivalent")
def batch_norm_does_not_look_across_examples(patch):
    patch.setattr(torch.nn, "BatchNorm1d", torch.nn.LayerNorm)


@fault("accum.memory", instead_of="torch.Tensor.chunk")
def a_micro_batch_is_run_as_the_whole_batch(chunk, self, chunks, dim=0):
    parts = chunk(self, chunks, dim)
    return [torch.cat([part, *[torch.zeros_like(part)] * (chunks - 1)]) for part in parts]


@fault("accum.memory", instead_of="accounting.activations.activation_bytes")
def micro_batches_are_said_to_save_nothing(activation_bytes, *args, **rest):
    return activation_bytes(*args, **{**rest, "micro_batches": 1})


@fault("accum.memory", instead_of="accounting.activations.deep_linear_peak_bytes")
def the_peak_is_said_to_be_that_of_two_examples_more(peak_bytes, model, batch, **rest):
    return peak_bytes(model, batch + 2, **rest)


@fault("accum.fp32-needed", instead_of="torch.Tensor.backward")
def autograd_drops_what_is_below_a_256th_of_a_gradient_in_any_dtype(backward, self, *args, **kwargs):
    """As an accumulation in bf16 does."""
    backward(self, *args, **kwargs)
    for leaf in leaves_of(self):
        leaf.grad = leaf.grad.bfloat16().to(leaf.dtype)
