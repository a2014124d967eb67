"""Faults in what training holds: in the tables, in the formulas, and in torch's own optimizers."""

import dataclasses

import torch

from accounting.optimizers import OPTIMIZERS, Optimizer
from meta_tests.faults import fault, stand_in


@fault(
    "mem.16-bytes mem.4gb-per-1b mem.adam-formula mem.bf16-recipe mem.total-formula ckpt.size",
    "optim.linear-1024 optim.adam-2 optim.mixed-precision-answer mem.checkpoint-copy",
)
def adam_is_said_to_keep_one_buffer(patch):
    for name in ("adam", "adamw"):
        patch.setitem(OPTIMIZERS, name, Optimizer("AdamW", ("exp_avg",)))


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


def stepping(step):
    def plant(patch):
        # A subclass keeps the step that it had when one was first made.
        for name in ("AdamW", "Adam"):
            stand_in(f"torch.optim.{name}.step", step)(patch)

    return plant


# Bytes in no tensor that torch shows: neither a parameter nor a gradient, nor state.
fault(TRAINING, ADAM_STATE, name="adam_hides_a_copy_of_every_parameter")(stepping(hides_a_copy))
fault("optim.state-keyed", name="adam_hides_one_more_copy_at_each_step")(
    stepping(hides_one_more_at_each_step)
)


@fault("mem.adagrad-12 mem.496 mem.470gb")
def adagrad_is_said_to_keep_two_buffers(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum", "square"), eager=True))


@fault("mem.total-formula optim.adagrad-1")
def adagrad_is_said_to_allocate_at_the_first_step(patch):
    patch.setitem(OPTIMIZERS, "adagrad", Optimizer("Adagrad", ("sum",)))


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


@fault("mem.fragmentation", instead_of="prooflops.memory.caching_allocator.CachingAllocator.free")
def every_freed_block_goes_back_to_the_driver(free, self, block):
    free(self, block)
    self.reserved_bytes = self.allocated_bytes


@fault("mem.kv-cache", instead_of="accounting.parts.AttentionLayers.cached_elements")
def a_window_is_said_to_keep_every_token(cached_elements, part, context):
    return cached_elements(dataclasses.replace(part, window=0), context)


@fault("mem.communication-buffers")
def data_parallel_training_makes_no_buckets(patch):
    patch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda net, **_: net)
