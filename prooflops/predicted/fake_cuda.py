"""Fake tensors on a CUDA device without a GPU or a driver, and the kernels that torch chooses for CUDA.

Autograd, in C++, asks the driver for the stream of every CUDA tensor, fake ones too, and torch aborts where there is
no driver. So fake CUDA tensors report the meta device, which has no streams, to C++, and CUDA to Python code and the
optimizers; tensors that C++ creates "on meta" are created on CUDA. C++ then no longer chooses the kernels that it
chooses for CUDA alone. This module makes the choices that change the bytes held, and names them in `CHOICES`.

Not yet compared with a GPU: the choices are read from torch's source. On Hopper and Blackwell, torch 2.13 with a recent
cuDNN prefers cuDNN's attention to flash, which keeps tensors of the same sizes but for some bytes of random state.
Source: attention.cpp, Dropout.cpp, layer_norm.cpp and RNN.cpp in aten/src/ATen/native, sdp_utils.cpp in its
transformers/cuda (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional

CHOICES = {
    "scaled_dot_product_attention": "flash in 16 bits, memory-efficient in 32, math in 64; never cuDNN's",
    "dropout": "one kernel, which keeps a mask of bools",
    "rms_norm": "one kernel, which keeps its input and a reciprocal root per row; composed on a torch without it",
    "batch_norm": "torch's own kernel, not cuDNN's",
    "optimizer": "foreach, where neither foreach nor fused is chosen",
}
FLASH_DTYPES = (torch.float16, torch.bfloat16)
FLASH_HEAD_DIM = 256  # the largest that flash attention takes
FLASH_ALIGNMENT = 8  # head dims are padded to a multiple of it
EFFICIENT_ALIGNMENT_BYTES = 16  # of a head's row, or attention takes the math path
_META = torch.device("meta")


@cache
def can_fake_cuda() -> bool:
    """Whether autograd takes fake CUDA tensors: always with a GPU, and in some builds of torch for CUDA without one.

    A torch built for the CPU alone would abort the process, so nothing is tried there.
    """
    if torch.cuda.is_available():
        return True
    if not torch.backends.cuda.is_built() or not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):  # type: ignore[no-untyped-call]
        return False
    try:
        with FakeTensorMode():
            torch.empty(1, device="cuda", requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Torch's mode, except that `copy.deepcopy` of a tensor does not copy it.

    Torch 2.13 copies the mode with the tensor, and two modes do not mix: layers that are copies, as those of
    nn.Transformer, would not run.
    """

    def __deepcopy__(self, memo: dict[int, object]) -> FakeMode:
        return self


class FakeCudaMode(FakeMode):
    """Fake tensors on CUDA that report the meta device to C++."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            device = args[0].fake_device
            return _META if device.type == "cuda" else device
        if kwargs and kwargs.get("device") == _META:
            kwargs = {**kwargs, "device": torch.device("cuda", 0)}
        return super().dispatch(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@contextmanager
def choices_of_cuda() -> Iterator[None]:
    """Makes composed operators choose the same kernels for fake CUDA tensors as on a CUDA device."""
    chosen = {
        "scaled_dot_product_attention": _attention,
        "dropout": _dropout,
        "rms_norm": _rms_norm,
    }
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, choice in (chosen | {name: _refused(name) for name in RECURRENT}).items():
            library.impl(name, choice, "AutogradCUDA")
        yield


RECURRENT = [
    f"{cell}.{form}"
    for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for form in ("input", "data")
]


def _refused(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"aten.{name} on CUDA keeps a workspace whose size only cuDNN knows: measure it on a GPU"
        )

    return refuse


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


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    enable_gqa: bool = False,
    **_: Any,  # the scale, which moves values alone
) -> Tensor:
    operators = torch.ops.aten
    width, widths = query.shape[-1], {part.shape[-1] for part in (query, key, value)}
    is_batch = query.dim() == 4
    takes_flash = (
        is_batch and attn_mask is None and query.dtype in FLASH_DTYPES and widths == {width}
    )
    if takes_flash and width <= FLASH_HEAD_DIM and torch._C._get_flash_sdp_enabled():
        missing = -width % FLASH_ALIGNMENT
        parts = [
            functional.pad(part, (0, missing)) if missing else part for part in (query, key, value)
        ]
        out = operators._scaled_dot_product_flash_attention(*parts, dropout_p, is_causal)
        return out[0][..., :width] if missing else out[0]  # type: ignore[no-any-return]
    is_aligned = all(
        size * query.element_size() % EFFICIENT_ALIGNMENT_BYTES == 0 for size in widths
    )
    takes_efficient = is_batch and is_aligned and query.dtype != torch.float64
    if takes_efficient and torch._C._get_mem_efficient_sdp_enabled():
        if attn_mask is not None or query.shape[1] != key.shape[1]:
            raise RuntimeError(
                "attention on CUDA with a mask, or grouped in 32 bits, takes another path in each release of torch: "
                "use is_causal instead of a mask, choose sdpa_kernel(SDPBackend.MATH), or measure it on a GPU"
            )
        trains = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
        attend = operators._scaled_dot_product_efficient_attention
        out = attend(query, key, value, None, trains, dropout_p, is_causal)
        return out[0]  # type: ignore[no-any-return]
    attend = operators._scaled_dot_product_attention_math
    out = attend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)
    return out[0]  # type: ignore[no-any-return]
