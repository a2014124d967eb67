"""Faults of single kernels, of one dtype or one range of sizes, planted below autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meta_tests.faults import Plant, fault, faults

Spoil = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


class WrongKernel(TorchDispatchMode):
    """Spoils the results of one operator, where it reads or makes tensors of this dtype and size."""

    def __init__(
        self, operator: str, spoil: Spoil, dtype: torch.dtype, above: int, up_to: float
    ) -> None:
        super().__init__()
        self.operator, self.spoil, self.dtype = operator, spoil, dtype
        self.above, self.up_to = above, up_to

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        if operation.overloadpacket.__name__ != self.operator:
            return result
        # What works in place on a list returns nothing.
        made = tree_leaves(args[0] if result is None else result)
        read = tree_leaves(args)
        of_dtype = [x for x in made + read if isinstance(x, torch.Tensor) and x.dtype == self.dtype]
        if any(self.above < x.numel() <= self.up_to for x in of_dtype):
            for x in made:
                self.spoil(x, *args)
        return result


class Planted:
    """Enters the mode that is set as `mode`, and leaves the one before it."""

    def __init__(self) -> None:
        self._mode: TorchDispatchMode | None = None

    @property
    def mode(self) -> TorchDispatchMode | None:
        return self._mode

    @mode.setter
    def mode(self, mode: TorchDispatchMode | None) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        self._mode = mode
        if mode is not None:
            mode.__enter__()


PLANTED = Planted()


def wrong(
    operator: str, dtype: torch.dtype, spoil: Spoil, above: int = 0, up_to: float = math.inf
) -> Plant:
    """Plants a wrong kernel for tensors of more than `above` and at most `up_to` elements."""
    return lambda patch: patch.setattr(
        PLANTED, "mode", WrongKernel(operator, spoil, dtype, above, up_to)
    )


def scaled(x: torch.Tensor, *_: Any, factor: float = 1.5) -> None:
    if x.is_floating_point():
        x.mul_(factor)


two_percent_more = partial(scaled, factor=1.02)


def last_forgotten(x: torch.Tensor, *_: Any) -> None:
    """The tail that a vectorised loop leaves over."""
    if x.is_floating_point() and x.dim():
        x[..., -1] = 0


def total_in_format(x: torch.Tensor) -> torch.Tensor:
    """The sum of all elements, of 64 at a time, whose partial sums have the format of `x`."""
    total = x.new_zeros(())
    for part in x.flatten().split(64):
        total += part.sum()
    return total


def norm_added_in_format(x: torch.Tensor, of: torch.Tensor, *_: Any) -> None:
    x.copy_(total_in_format(of.square()).sqrt())


def means_added_in_format(x: torch.Tensor, of: torch.Tensor, *_: Any) -> None:
    totals = [total_in_format(row) for row in of.flatten(0, -2)]
    x.copy_((torch.stack(totals) / of.shape[-1]).view_as(x))


def without_row_sum(x: torch.Tensor, above: torch.Tensor, y: torch.Tensor, *_: Any) -> None:
    x.copy_(above * y)


def products_of_bf16(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    x.copy_(a.bfloat16().float() @ b.bfloat16().float())


def without_bias(x: torch.Tensor, _bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    x.copy_(a @ b)


def by_tanh(x: torch.Tensor, of: torch.Tensor, *_: Any) -> None:
    x.copy_(torch.nn.functional.gelu(of, approximate="tanh"))


def truncated(x: torch.Tensor, of: torch.Tensor, *_: Any) -> None:
    if of.dtype == FP32 and x.dtype == BF16:
        upper_half = of.contiguous().view(torch.int32) >> 16
        x.copy_(upper_half.short().view(BF16))


def flushed(x: torch.Tensor, *_: Any) -> None:
    if x.dtype == FP16:
        x.masked_fill_(x.abs() < torch.finfo(FP16).smallest_normal, 0)


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
ROUNDING = [
    ("mm_of_bf16_errs_by_two_percent", wrong("mm", BF16, two_percent_more)),
    ("addmm_of_fp16_forgets_the_bias", wrong("addmm", FP16, without_bias)),
    ("bmm_of_fp32_multiplies_in_bf16", wrong("bmm", FP32, products_of_bf16, up_to=4096)),
    ("bmm_of_fp16_is_wrong_above_65536", wrong("bmm", FP16, two_percent_more, above=65_536)),
    ("layer_norm_of_bf16", wrong("native_layer_norm", BF16, two_percent_more, above=4096)),
    ("softmax_of_fp16", wrong("_softmax", FP16, two_percent_more, up_to=65_536)),
    ("log_softmax_of_fp32", wrong("_log_softmax", FP32, last_forgotten)),
    ("gelu_of_fp32_by_tanh", wrong("gelu", FP32, by_tanh)),
    ("silu_of_bf16_drops_its_tail", wrong("silu", BF16, last_forgotten)),
    ("attention_of_bf16", wrong(ATTENTION, BF16, scaled)),
    ("embedding_of_fp16_above_a_million", wrong("embedding", FP16, last_forgotten, above=2**20)),
    (
        "mean_of_bf16_adds_in_bf16",
        wrong("mean", BF16, means_added_in_format, above=4096, up_to=65_536),
    ),
    ("sum_of_fp32", wrong("sum", FP32, partial(scaled, factor=1 + 2**-11), up_to=65_536)),
    ("vector_norm_of_bf16", wrong("linalg_vector_norm", BF16, norm_added_in_format, above=4096)),
    ("rsqrt_of_fp32", wrong("rsqrt", FP32, two_percent_more)),
    ("mse_loss_of_fp32", wrong("mse_loss", FP32, two_percent_more, above=65_536)),
    ("nll_loss_of_bf16", wrong("nll_loss_forward", BF16, scaled)),
    ("softmax_backward_of_fp32", wrong("_softmax_backward_data", FP32, without_row_sum)),
    ("softmax_backward_of_bf16", wrong("_softmax_backward_data", BF16, without_row_sum)),
    ("log_softmax_backward_of_fp16", wrong("_log_softmax_backward_data", FP16, scaled)),
    ("layer_norm_backward_of_fp32", wrong("native_layer_norm_backward", FP32, two_percent_more)),
    ("gelu_backward_of_bf16", wrong("gelu_backward", BF16, two_percent_more, above=2**20)),
    ("silu_backward_of_fp16", wrong("silu_backward", FP16, last_forgotten)),
    ("tanh_backward_of_fp32", wrong("tanh_backward", FP32, two_percent_more, up_to=4096)),
    ("attention_backward_of_fp16", wrong(f"{ATTENTION}_backward", FP16, scaled)),
    ("embedding_backward_of_bf16", wrong("embedding_dense_backward", BF16, last_forgotten)),
    ("mse_loss_backward_of_bf16", wrong("mse_loss_backward", BF16, scaled, above=65_536)),
    ("nll_loss_backward_of_fp16", wrong("nll_loss_backward", FP16, scaled)),
]
OPTIMIZER = [
    ("addcdiv_of_bf16", wrong("addcdiv_", BF16, two_percent_more, above=4096)),
    ("addcmul_of_fp32_above_65536", wrong("addcmul_", FP32, scaled, above=65_536)),
    ("lerp_of_many_fp16", wrong("_foreach_lerp_", FP16, scaled)),
    ("norms_of_many_fp16", wrong("_foreach_norm", FP16, two_percent_more)),
]
CAST = [
    ("a_cast_of_fp32_to_bf16_truncates", wrong("_to_copy", BF16, truncated)),
    ("a_cast_to_fp16_flushes_subnormals", wrong("_to_copy", FP16, flushed, above=2**20)),
]
for check, rows in {
    "kernel.rounding": ROUNDING,
    "kernel.optimizer": OPTIMIZER,
    "kernel.cast": CAST,
}.items():
    faults(*((name, check, plant) for name, plant in rows))


class SteeperBackward(torch.autograd.Function):
    """Its argument, whose gradient is half as large again."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1.5


@fault("kernel.rounding", instead_of="torch.nn.functional.linear")
def gradients_of_bf16_linear_layers_are_half_as_large_again(linear, x, weight, bias=None):
    y = linear(x, weight, bias)
    return SteeperBackward.apply(y) if y.dtype == BF16 and y.requires_grad else y
