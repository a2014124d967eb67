"""Faults that the claims about forward FLOPs must notice."""

import dataclasses
import functools
import math
import time

import torch
from torch.utils import flop_counter

import accounting.attention
import accounting.convolution
import accounting.flops
import accounting.roofline
from meta_tests.faults import fault, faults, stand_in


@fault("flops.matmul-2mnk flops.example-268M flops.forward-2BN flops.step-without-B")
def torchs_counter_takes_a_multiply_add_for_one_operation(patch):
    formula = flop_counter.flop_registry[torch.ops.aten.mm]
    patch.setitem(
        flop_counter.flop_registry,
        torch.ops.aten.mm,
        lambda *args, **kwargs: formula(*args, **kwargs) // 2,
    )
    added = flop_counter.flop_registry[torch.ops.aten.addmm]
    patch.setitem(
        flop_counter.flop_registry,
        torch.ops.aten.addmm,
        lambda *args, **kwargs: added(*args, **kwargs) // 2,
    )


def torchs_counter_reads_the_weight_as(shape):
    """Has torch's counter see another shape than that of a product's second operand."""

    def plant(patch):
        formula = flop_counter.flop_registry[torch.ops.aten.mm]
        patch.setitem(flop_counter.flop_registry, torch.ops.aten.mm, lambda a, b, *args, **kwargs: formula(
            a, torch.empty(shape(*b.shape), device="meta"), *args, **kwargs))  # fmt: skip

    return plant


@fault("flops.small-regime flops.crude", instead_of="torch.mm")
def a_product_takes_ten_nanoseconds_per_flop_and_nothing_besides(mm, a, b, out=None):
    """As long as its FLOPs say, whatever its shape and size."""
    end = time.perf_counter() + 1e-8 * 2 * len(a) * b.numel()
    result = mm(a, b, out=out)
    while time.perf_counter() < end:
        pass
    return result


@fault("flops.terms")
def a_rate_is_named_as_an_amount(patch):
    def peak_flops(device: str) -> float:
        """Peak of a device in TFLOPS."""

    peak_flops.__module__ = accounting.flops.__name__
    patch.setattr(accounting.flops, "peak_flops", peak_flops, raising=False)


# fmt: off
faults(
    ("the_addition_of_each_multiply_add_is_forgotten",
     ("flops.matmul-2mnk flops.batched flops.example-268M flops.linear-2DK flops.two-layer flops.reason-per-output "
      "flops.add-mul-misconception grad.six-multiply-adds "
      "grad.w1 grad.w2 grad.h1 grad.two-layer-sum grad.six-micro-ops grad.reason-param-only"),
     lambda patch: patch.setattr(accounting.flops, "MULTIPLY_ADD_FLOPS", 1)),
    ("a_product_is_said_to_take_two_flops_per_output", "flops.reason-per-output flops.matmul-2mnk",
     stand_in("accounting.flops.matmul_flops", lambda _, m, k, n, batch=1: 2 * m * n * batch)),
    ("every_weight_counts_as_a_square_one", "flops.two-layer flops.two-layer-DxD flops.cubic",
     torchs_counter_reads_the_weight_as(lambda rows, columns: (rows, rows))),
    ("a_relu_is_remembered_and_takes_no_time", "flops.dominates", stand_in("torch.clamp_min", functools.cache(
        lambda clamp_min, *args, **options: clamp_min(*args, **options)))),
    ("gelu_is_counted_once_an_element", "flops.dominates matmul.bread-and-butter",
     lambda patch: patch.setitem(accounting.roofline.FLOPS_PER_ELEMENT, "gelu_tanh", 1)),
    ("only_the_first_operand_has_a_batch", "flops.batched", stand_in("accounting.flops.broadcast_matmul_flops",
        lambda original, a_shape, b_shape: original(a_shape, b_shape[-2:]))),
    ("attention_is_dispatched_for_every_other_key_only", "flops.forward-2BN flops.transformer-generalises",
     stand_in("torch.nn.functional.scaled_dot_product_attention",
        lambda original, query, key, value, *args, is_causal=False, **kwargs:
            original(query, key[..., ::2, :], value[..., ::2, :], *args, **kwargs))),
    ("each_sequence_attends_to_those_of_the_whole_batch", "flops.more-data",
     stand_in("torch.nn.functional.scaled_dot_product_attention", lambda original, query, key, value, **options:
        original(query, *(x.repeat(1, 1, len(x), 1) for x in (key, value))))),
    ("a_convolution_counts_one_image_of_its_batch", "flops.forward-2BN", stand_in(
        "accounting.convolution.convolution_flops", lambda flops, of: flops(dataclasses.replace(of, batch=1)))),
    ("an_elementwise_operation_costs_a_flop_per_row",
     "flops.add flops.elementwise flops.example-square flops.example-ratio",
     stand_in("accounting.flops.elementwise_flops", lambda _, *shapes, flops_per_element=1: shapes[0][0])),
    ("an_elementwise_operation_costs_a_flop_per_element_of_its_larger_operand", "flops.add flops.elementwise",
     stand_in("accounting.flops.elementwise_flops",
        lambda _, *shapes, flops_per_element=1: flops_per_element * max(map(math.prod, shapes)))),
    ("the_bias_is_added_once_for_the_whole_batch", "flops.linear-128-64 flops.linear-2DK",
     stand_in("accounting.flops.linear_flops", lambda _, batch, d, k, bias=False: 2 * batch * d * k + bool(bias) * k)),
)
# fmt: on
