"""Faults of single kernels, of one dtype or one range of sizes, planted below autograd."""

from functools import partial

import torch

from meta_tests.faults import fault
from meta_tests.faults._kernels import (
    BF16,
    FP16,
    FP32,
    last_forgotten,
    scaled,
    two_percent_more,
    wrong,
)


def total_in_format(x):
    """The sum of all elements, of 64 at a time, whose partial sums have the format of `x`."""
    total = x.new_zeros(())
    for part in x.flatten().split(64):
        total += part.sum()
    return total


def norm_added_in_format(x, of, *_):
    x.copy_(total_in_format(of.square()).sqrt())


def means_added_in_format(x, of, *_):
    totals = [total_in_format(row) for row in of.flatten(0, -2)]
    x.copy_((torch.stack(totals) / of.shape[-1]).view_as(x))


def without_row_sum(x, above, y, *_):
    x.copy_(above * y)


def products_of_bf16(x, a, b):
    x.copy_(a.bfloat16().float() @ b.bfloat16().float())


def without_bias(x, _bias, a, b):
    x.copy_(a @ b)


def by_tanh(x, of, *_):
    x.copy_(torch.nn.functional.gelu(of, approximate="tanh"))


def truncated(x, of, *_):
    if of.dtype == FP32 and x.dtype == BF16:
        upper_half = of.contiguous().view(torch.int32) >> 16
        x.copy_(upper_half.short().view(BF16))


def flushed(x, *_):
    if x.dtype == FP16:
        x.masked_fill_(x.abs() < torch.finfo(FP16).smallest_normal, 0)


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = f"{ATTENTION}_backward"
ROUNDING, OPTIMIZER, CAST = "kernel.rounding", "kernel.optimizer", "kernel.cast"
LINEAR = f"{ROUNDING} module.linear-class matmul.bsm-mk"
UPDATES = "optim.adagrad-update optim.rmsprop-ema optim.adam-combo"
wrong("mm_of_bf16_errs_by_two_percent", f"{ROUNDING} grad.no-manual", "mm", BF16, two_percent_more)
wrong(
    "addmm_of_fp16_forgets_the_bias", f"{ROUNDING} module.linear-class", "addmm", FP16, without_bias
)
wrong("addmm_of_bf16_above_a_million", LINEAR, "addmm", BF16, scaled, above=2**20)
wrong("bmm_of_fp32_multiplies_in_bf16", ROUNDING, "bmm", FP32, products_of_bf16, up_to=4096)
wrong("bmm_of_fp16_is_wrong_above_65536", ROUNDING, "bmm", FP16, two_percent_more, above=65_536)
wrong("softmax_of_fp16", ROUNDING, "_softmax", FP16, two_percent_more, up_to=65_536)
wrong("log_softmax_of_fp32", ROUNDING, "_log_softmax", FP32, last_forgotten)
wrong("gelu_of_fp32_by_tanh", ROUNDING, "gelu", FP32, by_tanh)
wrong("attention_of_bf16", ROUNDING, ATTENTION, BF16, scaled)
wrong("embedding_of_fp16_above_a_million", ROUNDING, "embedding", FP16, last_forgotten, above=2**20)
wrong("mean_of_bf16_adds_in_bf16", ROUNDING, "mean", BF16, means_added_in_format, 4096, 65_536)
wrong("sum_of_fp32", ROUNDING, "sum", FP32, partial(scaled, factor=1 + 2**-11), up_to=65_536)
wrong("vector_norm_of_bf16", ROUNDING, "linalg_vector_norm", BF16, norm_added_in_format, above=4096)
wrong("softmax_backward_of_bf16", ROUNDING, "_softmax_backward_data", BF16, without_row_sum)
wrong("layer_norm_backward", ROUNDING, "native_layer_norm_backward", FP32, two_percent_more)
wrong("tanh_backward_of_fp32", ROUNDING, "tanh_backward", FP32, two_percent_more, up_to=4096)
wrong("attention_backward_of_fp16", ROUNDING, BACKWARD, FP16, scaled)
wrong("addcdiv_of_bf16", f"{OPTIMIZER} {UPDATES}", "addcdiv_", BF16, two_percent_more, above=4096)
wrong("add_of_many_fp32", "optim.sgd-update", "_foreach_add_", FP32, scaled)
wrong("addcdiv_of_many_fp32", UPDATES, "_foreach_addcdiv_", FP32, scaled, above=65_536)
wrong("lerp_of_many_fp16", OPTIMIZER, "_foreach_lerp_", FP16, scaled)
wrong("norms_of_many_fp16", f"{OPTIMIZER} loop.clipping", "_foreach_norm", FP16, two_percent_more)
wrong("a_cast_of_fp32_to_bf16_truncates", CAST, "_to_copy", BF16, truncated)
wrong("a_cast_to_fp16_flushes_subnormals", CAST, "_to_copy", FP16, flushed, above=2**16)


class SteeperBackward(torch.autograd.Function):
    """Its argument, whose gradient is half as large again."""

    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, *gradients):
        return gradients[0] * 1.5


@fault("kernel.rounding", instead_of="torch.nn.functional.linear")
def gradients_of_bf16_linear_layers_are_half_as_large_again(linear, x, weight, bias=None):
    y = linear(x, weight, bias)
    return SteeperBackward.apply(y) if y.dtype == BF16 and y.requires_grad else y
