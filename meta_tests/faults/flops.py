"""Faults that the claims about forward FLOPs must notice."""

import time

import torch
from torch.utils import flop_counter

import accounting.attention
import accounting.convolution
import accounting.flops
import accounting.roofline
from meta_tests.faults import fault


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


@fault("flops.two-layer flops.two-layer-DxD flops.cubic flops.one-dimension")
def every_weight_counts_as_a_square_one(patch):
    formula = flop_counter.flop_registry[torch.ops.aten.mm]

    def of_a_square(a, b, *args, **kwargs):
        return formula(a, torch.empty(len(b), len(b), device="meta"), *args, **kwargs)

    patch.setitem(flop_counter.flop_registry, torch.ops.aten.mm, of_a_square)


@fault("flops.small-regime flops.crude", instead_of="torch.mm")
def a_product_takes_ten_nanoseconds_per_flop_and_nothing_besides(mm, a, b, out=None):
    """As long as its FLOPs say, whatever its shape and size."""
    end = time.perf_counter() + 1e-8 * 2 * len(a) * b.numel()
    result = mm(a, b, out=out)
    while time.perf_counter() < end:
        pass
    return result


@fault("flops.terms", instead_of="pathlib.Path.read_text")
def files_name_a_rate_as_an_amount(read_text, self, **how):
    return read_text(self, **how).replace("TFLOP/s", "TFLOPS")


@fault(
    "flops.matmul-2mnk flops.batched flops.example-268M flops.linear-2DK",
    "flops.two-layer flops.reason-per-output flops.add-mul-misconception",
    "grad.six-multiply-adds grad.w1 grad.w2 grad.h1 grad.two-layer-sum",
    "grad.six-micro-ops grad.reason-param-only",
)
def the_addition_of_each_multiply_add_is_forgotten(patch):
    patch.setattr(accounting.flops, "MULTIPLY_ADD_FLOPS", 1)


@fault("flops.dominates matmul.bread-and-butter")
def gelu_is_counted_once_an_element(patch):
    patch.setitem(accounting.roofline.FLOPS_PER_ELEMENT, "gelu_tanh", 1)


@fault(
    "flops.forward-2BN flops.transformer-generalises",
    instead_of="torch.nn.functional.scaled_dot_product_attention",
)
def attention_is_dispatched_for_every_other_key_only(
    original, query, key, value, *args, is_causal=False, **kwargs
):
    return original(query, key[..., ::2, :], value[..., ::2, :], *args, **kwargs)


@fault("flops.more-data", instead_of="torch.nn.functional.scaled_dot_product_attention")
def each_sequence_attends_to_those_of_the_whole_batch(original, query, key, value, **options):
    return original(query, *(x.repeat(1, 1, len(x), 1) for x in (key, value)))


@fault(
    "flops.add flops.elementwise flops.example-square flops.example-ratio",
    instead_of="accounting.flops.elementwise_flops",
)
def an_elementwise_operation_costs_a_flop_per_row(_, *shapes, flops_per_element=1):
    return shapes[0][0]


@fault("flops.linear-128-64 flops.linear-2DK", instead_of="accounting.flops.linear_flops")
def the_bias_is_added_once_for_the_whole_batch(_, batch, d, k, bias=False):
    return 2 * batch * d * k + bool(bias) * k
