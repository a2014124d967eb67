"""Faults in how torch accumulates gradients, in what a micro-batch keeps, and in the formulas of it."""

import torch

import accounting.activations
from meta_tests.faults import fault, replace


@fault("accum.equivalent")
def backward_forgets_the_gradients_of_before(patch):
    backward = torch.Tensor.backward

    def forgetting(self, *args, **kwargs):
        leaves, seen = [self.grad_fn], set()
        while leaves:
            node = leaves.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                node.variable.grad = None
            leaves += [following for following, _ in node.next_functions]
        backward(self, *args, **kwargs)

    patch.setattr(torch.Tensor, "backward", forgetting)


@fault("accum.equivalent")
def the_loss_is_a_sum_over_examples(patch):
    cross_entropy = torch.nn.functional.cross_entropy
    patch.setattr(
        torch.nn.functional, "cross_entropy", lambda scores, labels: cross_entropy(scores, labels, reduction="sum")
    )


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


@fault("accum.memory")
def a_micro_batch_is_run_as_the_whole_batch(patch):
    chunk = torch.Tensor.chunk

    def padded(self, chunks, dim=0):
        parts = chunk(self, chunks, dim)
        return [torch.cat([part, *[torch.zeros_like(part)] * (chunks - 1)]) for part in parts]

    patch.setattr(torch.Tensor, "chunk", padded)


@fault("accum.memory")
def micro_batches_are_said_to_save_nothing(patch):
    activation_bytes = accounting.activations.activation_bytes
    replace(patch, activation_bytes, lambda *args, **rest: activation_bytes(*args, **{**rest, "micro_batches": 1}))


@fault("accum.memory")
def the_peak_is_said_to_be_that_of_two_examples_more(patch):
    peak_bytes = accounting.activations.deep_linear_peak_bytes
    replace(patch, peak_bytes, lambda model, batch, **rest: peak_bytes(model, batch + 2, **rest))
