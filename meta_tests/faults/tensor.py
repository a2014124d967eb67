"""Faults that the claims about tensors must notice."""

from __future__ import annotations

from itertools import zip_longest

import torch

import accounting.formats
import accounting.layout
import accounting.memory
from meta_tests.faults import fault, replace


@fault("tensor.nbytes-formula", "tensor.half-and-quarter", "tensor.ex-5x10-fp16")
def every_dtype_has_32_bits(patch):
    replace(patch, accounting.formats.element_bits, lambda name: 32)


@fault("tensor.gpt3-ffn")
def bytes_are_counted_in_32_bits(patch):
    original = accounting.memory.tensor_bytes
    replace(patch, original, lambda shape, dtype="fp32": (original(shape, dtype) + 2**31) % 2**32 - 2**31)


@fault("tensor.example-4x8", "tensor.default-float32")
def zeros_makes_float64(patch):
    original = torch.zeros

    def wide(*shape, **options):
        return original(*shape, **{"dtype": torch.float64, **options})

    patch.setattr(torch, "zeros", wide)


@fault("tensor.nbytes-formula")
def an_expanded_view_is_charged_for_each_element_it_shows(patch):
    def as_if_fresh(shape, strides, dtype="fp32", offset=0):
        return accounting.memory.tensor_bytes(shape, dtype)

    replace(patch, accounting.memory.storage_bytes, as_if_fresh)


@fault("tensor.everything-is-tensors")
def adamw_keeps_a_copy_where_nobody_looks(patch):
    original, hidden = torch.optim.AdamW.step, []

    def step(optimizer):
        hidden.extend(parameter.detach().clone() for parameter in optimizer.param_groups[0]["params"])
        return original(optimizer)

    patch.setattr(torch.optim.AdamW, "step", step)


@fault("tensor.everything-is-tensors")
def adagrad_keeps_its_sum_as_a_number(patch):
    original = torch.optim.Adagrad.step

    def step(optimizer):
        original(optimizer)
        for state in optimizer.state.values():
            state["sum"] = float(state["sum"].sum())

    patch.setattr(torch.optim.Adagrad, "step", step)


@fault("tensor.uninitialised-then-init")
def an_initialiser_leaves_the_last_row_out(patch):
    original = torch.nn.init.xavier_normal_
    patch.setattr(torch.nn.init, "xavier_normal_", lambda x: original(x[:-1]))


@fault("tensor.shapes-match")
def shapes_are_aligned_at_the_first_dimension(patch):
    def from_the_front(*shapes):
        columns = zip_longest(*shapes, fillvalue=1)
        return tuple(next((size for size in sizes if size != 1), 1) for sizes in columns)

    replace(patch, accounting.layout.broadcast_shape, from_the_front)
