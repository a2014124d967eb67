"""Faults in how torch accumulates gradients, in what a micro-batch keeps, and in its formulas."""

import torch

from meta_tests.faults import fault, leaves_of
from meta_tests.faults._kernels import BF16, FP32, last_forgotten, scaled, wrong


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


@fault("accum.memory", instead_of="torch.nn.Linear.forward")
def a_large_layer_hides_a_copy_of_its_input(forward, self, x):
    self.hidden = x.clone() if x.numel() > 65_536 else None
    return forward(self, x)


def rounded_to_bf16(x, *_):
    x.copy_(x.bfloat16().to(x.dtype))


EQUIVALENT, FP32_NEEDED = "accum.equivalent", "accum.fp32-needed"
wrong("a_large_sum_forgets_its_last_column", EQUIVALENT, "add_", FP32, last_forgotten, above=4096)
wrong("a_sum_of_gradients_in_bf16_is_scaled", EQUIVALENT, "add_", BF16, scaled)
wrong("large_sums_are_rounded_to_bf16", FP32_NEEDED, "add_", FP32, rounded_to_bf16, above=65_536)
