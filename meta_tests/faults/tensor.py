"""Faults that the claims about tensors must notice."""

import torch

import accounting.formats
import accounting.layout
import accounting.memory
from meta_tests.faults import fault, faults, stand_in


@fault("tensor.everything-is-tensors")
def adamw_keeps_a_copy_where_nobody_looks(patch):
    original, hidden = torch.optim.AdamW.step, []

    def step(optimizer):
        hidden.extend(
            parameter.detach().clone() for parameter in optimizer.param_groups[0]["params"]
        )
        return original(optimizer)

    patch.setattr(torch.optim.AdamW, "step", step)


# fmt: off
faults(
    ("a_maximum_keeps_its_dimension", "tensor.shapes-match",
     stand_in("torch.Tensor.amax", lambda amax, x, dim: amax(x, dim, keepdim=True))),
    ("every_dtype_has_32_bits", "tensor.nbytes-formula tensor.half-and-quarter",
     stand_in("accounting.formats.element_bits", lambda _, name: 32)),
    ("bytes_are_counted_in_32_bits", "tensor.gpt3-ffn", stand_in("accounting.memory.tensor_bytes",
        lambda original, shape, dtype="fp32": (original(shape, dtype) + 2**31) % 2**32 - 2**31)),
    ("zeros_makes_float64", "tensor.example-4x8 tensor.default-float32", stand_in("torch.zeros",
        lambda original, *shape, **options: original(*shape, **{"dtype": torch.float64, **options}))),
    ("an_expanded_view_is_charged_for_each_element_it_shows", "tensor.nbytes-formula",
     stand_in("accounting.memory.storage_bytes",
        lambda _, shape, strides, dtype="fp32", offset=0: accounting.memory.tensor_bytes(shape, dtype))),
    ("an_initialiser_leaves_the_last_row_out", "tensor.uninitialised-then-init",
     stand_in("torch.nn.init.xavier_normal_", lambda original, x: original(x[:-1]))),
)
faults(
    ("what_is_moved_is_widened", "tensor.ex-5x10-fp16",
     stand_in("torch.Tensor.to", lambda to, x, *where: to(x.float(), *where))),
    options="-p meta_tests.simulated_card.plugin --device cuda --quick",
)
# fmt: on
