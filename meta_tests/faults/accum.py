"""Faults in how torch accumulates gradients, in what a micro-batch keeps, and in its formulas."""

import torch

from meta_tests.faults import fault, leaves_of


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


# fmt: on
