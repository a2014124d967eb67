"""Outputs of CPU kernels that fake tensors get wrong: their dtypes, strides and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch.utils._pytree import tree_flatten, tree_unflatten

from prooflops.memory.calls import Call, call_of
from prooflops.memory.kernels import Kernel, Output, kernels_of

# Fake tensors give oneDNN's LSTM wrong outputs: an empty workspace for the backward pass, one
# storage for the gradients of both biases. A call of the kernel itself gives their sizes.
WRONGLY_FAKED = frozenset({"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"})
# The CPU's kernel keeps an element more than its fake; a call of it is not worth a refusal where
# none is allowed.
NEARLY_FAKED = frozenset({"aten::_embedding_bag"})
# The kernels of norms return mean and deviation, and the gradients of weight and bias, in the dtype
# of the weights, the gradient of the input in its own, in rows or with channels last, but a layer
# norm's in rows; fake ones may have others.
NORMS = ("aten::native_batch_norm", "aten::native_group_norm", "aten::native_layer_norm")

# The kernels of these losses reduce their terms into the first of them, and so keep the storage of
# all; that of a sum of patches starts as large as they are.
KEEPS_ITS_TERMS = frozenset(
    {
        "aten::mse_loss",
        "aten::smooth_l1_loss",
        "aten::soft_margin_loss",
        "aten::binary_cross_entropy",
        "aten::col2im",
    }
)

# The arguments that the loops of a kernel follow, in order, where these are not all in their own
# order; with none the output lies in rows. Found by calls of each on three or four dimensions in
# six or more orders of strides (torch 2.13).
FOLLOWED: dict[str, Sequence[int]] = {
    "aten::threshold_backward": (1, 0),
    "aten::leaky_relu_backward": (1, 0),
    "aten::_prelu_kernel_backward": (1, 2, 0),
    "aten::rrelu_with_noise_backward": (2, 0),
    "aten::log_sigmoid_backward": (0,),
    "aten::binary_cross_entropy_backward": (1,),
    "aten::soft_margin_loss_backward": (2,),
    "aten::huber_loss_backward": (),
    "aten::mse_loss_backward": (),
    "aten::smooth_l1_loss_backward": (),
    "aten::_softmax_backward_data": (),
    "aten::_log_softmax_backward_data": (),
    "aten::huber_loss": (0,),
    "aten::isin.Tensor_Tensor": (),
    "aten::log_sigmoid_forward": (),
    "aten::mvlgamma": (),
    "aten::pow.Scalar": (),
}

# rrelu draws no noise from a smaller range.
LEAST_RANGE_OF_NOISE = 1e-6

# Kernels of these losses have one implementation for both devices.
KEEPS_ITS_TERMS_ON_CUDA = frozenset({"aten::mse_loss", "aten::smooth_l1_loss"})


def with_strides_of_kernel(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """The outputs in the order of their kernel's loops; fake ones are composed, which may follow
    another operand, or a dense copy of an expanded one in another dtype.
    """
    name = func.name()
    if name == "aten::_prelu_kernel_backward":
        spread = [each.expand_as(args[0]) for each in args]
        return tuple(_in_order(spread, FOLLOWED[name], each) for each in out)
    if name == "aten::log_sigmoid_forward":
        return tuple(_in_order(args, FOLLOWED[name], each) for each in out)
    if name == "aten::rrelu_with_noise_backward":
        lower, upper, is_training = args[3:6]
        # Else it calls leaky_relu's.
        if not (is_training and upper - lower > LEAST_RANGE_OF_NOISE):
            name = "aten::leaky_relu_backward"
    if _is_pointwise(func) and isinstance(out, Tensor):
        if _are_cast(args, out):
            return out
        args = tuple(_spread(each, out) for each in args)
    return _in_order(args, FOLLOWED.get(name, range(len(args))), out)


def _is_pointwise(func: Any) -> bool:
    """Whether the operator's loop decides the order of its output; a clone is told it."""
    if func._schema.is_mutable or func.name() == "aten::clone":
        return False
    return torch.Tag.pointwise in func.tags


def _spread(leaf: Any, out: Tensor) -> Any:
    is_smaller = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape != out.shape
    return leaf.expand_as(out) if is_smaller else leaf


def _are_cast(args: tuple[Any, ...], out: Tensor) -> bool:
    """Whether operands of other dtypes than the loop's are copied first, as their fakes are."""
    dtypes = {each.dtype for each in args if isinstance(each, Tensor) and each.dim()}
    return len(dtypes | ({out.dtype} - {torch.bool})) > 1


def rolled(x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    """A roll along dimensions as its kernel on the CPU joins it, one after the other."""
    for shift, dim in zip(shifts, dims, strict=True):
        first = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, first, x.shape[dim] - first), x.narrow(dim, 0, first)], dim)
    return x


def _in_order(args: Sequence[Any], followed: Sequence[int], out: Any) -> Any:
    """The output in the order of the arguments that it follows; with none it lies in rows."""
    if not isinstance(out, Tensor):
        return out
    operands = [args[number] for number in followed]
    operands = [leaf for leaf in operands if isinstance(leaf, Tensor) and leaf.dim()]
    if any(leaf.shape != out.shape for leaf in operands) or (followed and not operands):
        return out
    in_rows = torch.empty(out.shape, device="meta").stride()
    strides = compute_elementwise_output_strides(*operands) if operands else in_rows
    return (
        out if out.stride() == strides else torch.empty_strided(out.shape, strides, dtype=out.dtype)
    )


def with_storage_of_terms(args: tuple[Any, ...], out: Tensor) -> Tensor:
    """The loss or sum in a storage of as many elements as it reduces."""
    terms = args[0].numel()
    return out if out.numel() >= terms else out.new_empty(terms).as_strided(out.shape, out.stride())


def with_tensors_of_norm(operator: Any, args: tuple[Any, ...], out: Any) -> Any:
    """The outputs of a norm, or of its backward pass, in the dtypes and the order of its kernel on
    the CPU.
    """
    given = {
        argument.name: value
        for argument, value in zip(operator._schema.arguments, args, strict=False)
    }
    (first, *others), of_input, weight = out, given["input"], given["weight"]
    if not given.get("output_mask", (True,))[0]:
        first = None
    elif first is not None:
        # A layer norm reads its input as rows.
        is_of_rows = "layer_norm" in operator._opname
        order = torch.contiguous_format if is_of_rows else suggest_memory_format(of_input)
        first = torch.empty(first.shape, dtype=of_input.dtype, memory_format=order)
    dtype = of_input.dtype if weight is None else weight.dtype
    return first, *(x if x is None else x.new_empty(x.shape, dtype=dtype) for x in others)


def with_real_sizes(call: Call, out: Any, measures: bool) -> Any:
    """`out` with the sizes that a call of the kernel returns."""
    if not measures:
        raise RuntimeError(
            f"{call.operator} returns sizes that only the kernel knows: use scratch=True, "
            "which runs it"
        )
    kernel = kernels_of([call], "cpu")[call]
    if not isinstance(kernel, Kernel):
        raise RuntimeError(f"{call.operator} cannot be run for its sizes: {kernel.reason}")
    leaves, structure = tree_flatten(out)
    real = map(_resized, leaves, kernel.outputs)
    return tree_unflatten(list(real), structure)


def _resized(fake: Any, real: Output | None) -> Any:
    if not isinstance(fake, Tensor) or real is None:
        return fake
    storage = fake.new_empty(real.storage_bytes // fake.element_size())
    return storage.as_strided(real.size, real.stride)


def with_outputs_of_kernel(
    func: Any, args: Any, kwargs: Any, out: Any, measures: bool, device: str
) -> Any:
    """`out` with the dtypes and sizes that the device's kernel returns, where fake ones differ."""
    name = func._schema.name
    if device == "cuda":
        return with_outputs_of_cuda(name, args, out)
    if name.startswith(NORMS):
        return with_tensors_of_norm(func, args, out)
    if name in KEEPS_ITS_TERMS:
        return with_storage_of_terms(args, out)
    if name in WRONGLY_FAKED or (measures and name in NEARLY_FAKED):
        return with_real_sizes(call_of(func, args, kwargs), out, measures)
    if name == "aten::channel_shuffle":
        order = suggest_memory_format(args[0])
        return torch.empty(out.shape, dtype=out.dtype, memory_format=order)
    if name == "aten::roll" and out.numel() and (*args, ())[2]:
        return rolled(*args)
    if "_backward" in name or _is_pointwise(func) or func.name() in FOLLOWED:
        return with_strides_of_kernel(func, args, out)
    return out


def with_outputs_of_cuda(name: str, args: Any, out: Any) -> Any:
    """The random state of memory-efficient attention is on the CPU, 16 bytes a call (one H200)."""
    if name in KEEPS_ITS_TERMS_ON_CUDA:
        return with_storage_of_terms(args, out)
    if name != "aten::_scaled_dot_product_efficient_attention":
        return out
    *tensors, seed, offset = out
    on_cpu = [torch.empty(each.shape, dtype=each.dtype) for each in (seed, offset)]
    return (*tensors, *on_cpu)
