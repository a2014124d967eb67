"""Faults that the claims about tensors must notice."""

import torch

from meta_tests.faults import fault


@fault("tensor.everything-is-tensors")
def adamw_keeps_a_copy_where_nobody_looks(patch):
    original, hidden = torch.optim.AdamW.step, []

    def step(optimizer):
        hidden.extend(
            parameter.detach().clone() for parameter in optimizer.param_groups[0]["params"]
        )
        return original(optimizer)

    patch.setattr(torch.optim.AdamW, "step", step)


@fault("tensor.shapes-match", instead_of="torch.Tensor.amax")
def a_maximum_keeps_its_dimension(amax, x, dim):
    return amax(x, dim, keepdim=True)


@fault(
    "tensor.nbytes-formula tensor.half-and-quarter", instead_of="accounting.formats.element_bits"
)
def every_dtype_has_32_bits(_, name):
    return 32


@fault("tensor.gpt3-ffn", instead_of="accounting.memory.tensor_bytes")
def bytes_are_counted_in_32_bits(original, shape, dtype="fp32"):
    return (original(shape, dtype) + 2**31) % 2**32 - 2**31


@fault(
    "tensor.ex-5x10-fp16",
    instead_of="torch.Tensor.to",
    options="-p meta_tests.card.plugin --device cuda --quick",
)
def what_is_moved_is_widened(to, x, *where):
    return to(x.float(), *where)
