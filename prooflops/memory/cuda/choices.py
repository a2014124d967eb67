"""The kernels that torch chooses in C++ for CUDA tensors alone, chosen again for fake ones.

Only choices that change the bytes held are made. On one NVIDIA H200 (torch 2.11, 26 November 2026)
attention in bf16 and fp32, dropout, batch norm and the optimizers' foreach gave these bytes. The
others are read from torch's source.
Source: attention.cpp, Dropout.cpp, layer_norm.cpp and Normalization.cpp in aten/src/ATen/native,
sdp_utils.cpp in its transformers/cuda (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn import functional

from prooflops.memory.cuda.autocast import autocast_of_cuda

LOW_PRECISIONS = (torch.float16, torch.bfloat16)
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# The largest width of a head that flash attention accepts, and cuDNN's.
FLASH_HEAD_DIM = 256
CUDNN_HEAD_DIM = 128
# Head dims are padded to a multiple of it for flash; cuDNN accepts no others.
HEAD_ALIGNMENT = 8
# Attention with heads whose rows are no multiple of it is composed of products.
EFFICIENT_ALIGNMENT_BYTES = 16
# The rows of a mask for memory-efficient attention begin at multiples of this many numbers.
MASK_ALIGNMENT = 8
# Major compute capabilities (Hopper, Blackwell) on which torch prefers cuDNN's attention.
PREFER_CUDNN = (9, 10)
# The first major one with flash attention, and with memory-efficient attention in bf16.
FIRST_WITH_FLASH = 8
# The largest batch that cuDNN's batch norm accepts in training.
CUDNN_NORM_BATCH = 880_801


@contextmanager
def choices_of_cuda(capability: tuple[int, int] | None, has_device: bool) -> Iterator[None]:
    """Makes operators choose the same kernels for fake CUDA tensors as on a CUDA device.

    With a device torch chooses by itself. Recurrent layers are refused: torch's fake of them keeps
    nothing for the backward pass.
    """
    chosen: dict[str, Callable[..., Any]] = {
        f"{kind}.{form}": partial(_refuse_recurrent, kind)
        for kind in RECURRENT
        for form in ("input", "data")
    }
    if not has_device:
        chosen |= {
            "scaled_dot_product_attention": partial(_attention, kernels_of(capability)),
            "dropout": _dropout,
            "rms_norm": _rms_norm,
            "batch_norm": _batch_norm,
        }
    with ExitStack() as stack:
        if not has_device:
            stack.enter_context(autocast_of_cuda())
            if capability is not None:
                asked = patch.object(torch.cuda, "get_device_capability", lambda *_: capability)
                stack.enter_context(asked)
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        for name, choice in chosen.items():
            library.impl(name, choice, "AutogradCUDA")
        yield


def _refuse_recurrent(kind: str, *_: Any) -> Any:
    raise RuntimeError(
        f"what aten.{kind} keeps for its backward pass is unknown: only cuDNN knows its reserve "
        "space; measure the step on a GPU"
    )


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.native_dropout(x, p, True)[0]


def _rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    one_kernel = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    if one_kernel and (weight is None or weight.dtype == x.dtype):
        out: Tensor = _FusedRMSNorm.apply(x, len(shape), weight)  # type: ignore[no-untyped-call]
        return out
    wide = x.float() if x.element_size() < 4 else x
    dims = tuple(range(-len(shape), 0))
    rate = (
        wide.pow(2).mean(dims, keepdim=True).add_(torch.finfo(x.dtype).eps if eps is None else eps)
    ).rsqrt()
    scaled = wide * rate
    return (scaled if weight is None else scaled * weight).type_as(x)


class _FusedRMSNorm(torch.autograd.Function):
    """The tensors of `_fused_rms_norm` and of its backward pass, without their values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: int, weight: Tensor | None) -> Tensor:
        wide = torch.float32 if x.element_size() < 4 else x.dtype
        reciprocal_root = torch.empty((*x.shape[:-dims], *(1,) * dims), dtype=wide, device=x.device)
        ctx.save_for_backward(x, reciprocal_root, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        x, _reciprocal_root, weight = ctx.saved_tensors
        wanted = weight is not None and ctx.needs_input_grad[2]
        of_input = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        return of_input, None, torch.empty_like(weight) if wanted else None


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    uses_cudnn = (
        cudnn_enabled
        and training
        and weight is not None
        and bias is not None
        and x.dim() >= 3
        and len(x) <= CUDNN_NORM_BATCH
        and x.dtype in (torch.float32, torch.float64, torch.float16)
        and (weight.dtype == torch.float32 if x.dtype == torch.float16 else x.dtype == weight.dtype)
    )
    if uses_cudnn:
        x = x.contiguous(memory_format=suggest_memory_format(x))
        norm = torch.ops.aten.cudnn_batch_norm
        results = norm(x, weight, bias, mean, variance, True, momentum, eps)
    else:
        norm = torch.ops.aten.native_batch_norm
        results = norm(x, weight, bias, mean, variance, training, momentum, eps)
    normalised: Tensor = results[0]
    return normalised


class AttentionKernels(NamedTuple):
    """The attention kernels of torch on cards of a compute capability."""

    prefers_cudnn: bool
    has_flash: bool


def kernels_of(capability: tuple[int, int] | None) -> AttentionKernels:
    """An unknown card has flash attention, and does not prefer cuDNN's."""
    major = FIRST_WITH_FLASH if capability is None else capability[0]
    return AttentionKernels(major in PREFER_CUDNN, major >= FIRST_WITH_FLASH)


def _attention(
    kernels: AttentionKernels,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    enable_gqa: bool = False,
    **_: Any,
) -> Tensor:
    """One of the four kernels; the scale, which moves values alone, is left out."""
    given = query, key, value
    is_low = query.dtype in LOW_PRECISIONS
    widths = {part.shape[-1] for part in given}
    is_batch = query.dim() == 4
    is_grouped = is_batch and query.shape[1] != key.shape[1]
    takes_heads = enable_gqa or not is_grouped
    if kernels.prefers_cudnn and is_batch and is_low and takes_heads and _fits_cudnn(widths):
        return _cudnn(given, _additive(attn_mask, query), dropout_p, is_causal)
    one_width = len(widths) == 1 and max(widths) <= FLASH_HEAD_DIM
    uses_flash = is_batch and is_low and takes_heads and attn_mask is None and one_width
    if kernels.has_flash and uses_flash and torch._C._get_flash_sdp_enabled():
        return _flash(given, dropout_p, is_causal)
    mask = _additive(attn_mask, query)
    row_bytes = [width * query.element_size() for width in widths]
    is_aligned = not any(size % EFFICIENT_ALIGNMENT_BYTES for size in row_bytes)
    has_dtype = query.dtype != torch.float64
    if not kernels.has_flash:
        has_dtype = query.dtype in (torch.float16, torch.float32)
    uses_efficient = is_batch and is_aligned and has_dtype and not is_grouped
    if uses_efficient and torch._C._get_mem_efficient_sdp_enabled():
        return _efficient(given, mask, dropout_p, is_causal)
    attend = torch.ops.aten._scaled_dot_product_attention_math
    out = attend(*given, mask, dropout_p, is_causal, enable_gqa=enable_gqa)
    return out[0]  # type: ignore[no-any-return]


Parts = tuple[Tensor, Tensor, Tensor]


def _fits_cudnn(widths: set[int]) -> bool:
    is_enabled = getattr(torch._C, "_get_cudnn_sdp_enabled", lambda: True)()
    is_aligned = not any(width % HEAD_ALIGNMENT for width in widths)
    return bool(is_enabled) and is_aligned and max(widths) <= CUDNN_HEAD_DIM


def _trains(given: Parts) -> bool:
    return torch.is_grad_enabled() and any(part.requires_grad for part in given)


def _cudnn(given: Parts, mask: Tensor | None, dropout: float, is_causal: bool) -> Tensor:
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    out = attend(*given, mask, _trains(given), dropout, is_causal)
    return out[0]  # type: ignore[no-any-return]


def _flash(given: Parts, dropout: float, is_causal: bool) -> Tensor:
    width = given[0].shape[-1]
    missing = -width % HEAD_ALIGNMENT
    parts = [functional.pad(part, (0, missing)) for part in given] if missing else given
    out = torch.ops.aten._scaled_dot_product_flash_attention(*parts, dropout, is_causal)
    return out[0][..., :width] if missing else out[0]  # type: ignore[no-any-return]


def _efficient(given: Parts, mask: Tensor | None, dropout: float, is_causal: bool) -> Tensor:
    options = _aligned(mask, *given[:2]), _trains(given), dropout, is_causal
    out = torch.ops.aten._scaled_dot_product_efficient_attention(*given, *options)
    return out[0]  # type: ignore[no-any-return]


def _additive(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask of bools as the number that is added to each score."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    added = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(mask.logical_not(), float("-inf"), added)


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask with rows as the kernel reads them, the same for all heads where it is."""
    if mask is None:
        return None
    if mask.stride(-1) != 1 or any(step % MASK_ALIGNMENT for step in mask.stride()[:-1]):
        width = mask.shape[-1]
        mask = functional.pad(mask, (0, MASK_ALIGNMENT - width % MASK_ALIGNMENT))[..., :width]
    return mask.expand(*query.shape[:3], key.shape[2])
