"""Outputs of kernels that fake tensors get wrong: their sizes, dtypes and devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

# The kernels of these losses reduce their terms into the first of them, and so keep the storage of
# all; the storage of a sum of patches starts as large as they are.
KEEPS_ITS_TERMS = {
    "cpu": frozenset(
        {
            "aten::mse_loss",
            "aten::smooth_l1_loss",
            "aten::soft_margin_loss",
            "aten::binary_cross_entropy",
            "aten::col2im",
        }
    ),
    "cuda": frozenset({"aten::mse_loss", "aten::smooth_l1_loss"}),
}
# Some kernels return strides that fake tensors do not have. They are contiguous, like the incoming
# gradient, or in the memory format of the first or second argument.
CONTIGUOUS, AS_GRADIENT, AS_FIRST, AS_SECOND = "contiguous", "gradient", "first", "second"
_OF_ALL = {
    "aten::native_layer_norm": CONTIGUOUS,
    "aten::native_layer_norm_backward": CONTIGUOUS,
    "aten::_log_softmax_backward_data": CONTIGUOUS,
    "aten::elu_backward": AS_GRADIENT,
    "aten::hardswish_backward": AS_GRADIENT,
    "aten::hardtanh_backward": AS_GRADIENT,
    "aten::softplus_backward": AS_GRADIENT,
}
LAYOUTS = {
    "cpu": {
        **_OF_ALL,
        "aten::log_sigmoid_forward": CONTIGUOUS,
        "aten::native_batch_norm": AS_FIRST,
        "aten::native_batch_norm_backward": AS_SECOND,
        "aten::reflection_pad2d_backward": AS_SECOND,
        "aten::replication_pad2d_backward": AS_SECOND,
    },
    "cuda": _OF_ALL,
}
NORMS = ("aten::native_batch_norm", "aten::native_group_norm", "aten::native_layer_norm")
ONEDNN_LSTM = "aten::mkldnn_rnn_layer"
# The parts of oneDNN's workspace begin at multiples of it.
PAGE_BYTES = 4096
EMBEDDING_BAG = "aten::_embedding_bag"
SUM = 0
EFFICIENT_ATTENTION = "aten::_scaled_dot_product_efficient_attention"


def with_outputs_of_kernel(func: Any, args: Any, out: Any, device: str) -> Any:
    """`out` with the sizes and dtypes that the device's kernel returns, where fake ones differ."""
    name = func._schema.name
    if name in KEEPS_ITS_TERMS[device]:
        return _in_storage_of_terms(args[0], out)
    if (rule := LAYOUTS[device].get(name)) is not None:
        out = _as_kernel_lays_out(rule, args, out)
    if device == "cuda":
        return _with_states_on_cpu(out) if name == EFFICIENT_ATTENTION else out
    if name == EMBEDDING_BAG:
        return _with_offsets_of_bags(args, out)
    if name.startswith(NORMS):
        return _in_dtypes_of_norm(func, args, out)
    if name == ONEDNN_LSTM:
        return _with_workspace_of_lstm(func, args, out)
    return out


def _in_storage_of_terms(terms: Tensor, out: Tensor) -> Tensor:
    """The loss or sum, in a storage with room for all the elements that it reduces."""
    if out.numel() >= terms.numel():
        return out
    return out.new_empty(terms.numel()).as_strided(out.shape, out.stride())


def _as_kernel_lays_out(rule: str, args: Any, out: Any) -> Any:
    """The output, or the first of several, with the strides that its kernel returns."""
    first, *others = out if isinstance(out, tuple) else (out,)
    if first is None:
        return out
    if rule == AS_GRADIENT:
        # An expanded gradient has no order of its own.
        made = first if 0 in args[0].stride() else torch.empty_like(args[0])
    else:
        how = torch.contiguous_format
        if rule != CONTIGUOUS:
            how = suggest_memory_format(args[rule == AS_SECOND])
        made = torch.empty_like(first, memory_format=how)
    if made.stride() == first.stride():
        return out
    return (made, *others) if isinstance(out, tuple) else made


def _in_dtypes_of_norm(func: Any, args: Any, out: Any) -> Any:
    """The outputs of a norm, or of its backward pass, in the dtypes of its kernel on the CPU.

    Mean and deviation, and the gradients of weight and bias, are in the dtype of the weights, the
    output and the gradient of the input in that of the input; fake ones may be in others.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False))
    dtype = given["input"].dtype
    weight = given["weight"]
    dtypes = [dtype, *[dtype if weight is None else weight.dtype] * (len(out) - 1)]
    return tuple(
        each if each is None or each.dtype == dtype else torch.empty_like(each, dtype=dtype)
        for each, dtype in zip(out, dtypes, strict=True)
    )


def _with_offsets_of_bags(args: Any, out: Any) -> Any:
    """The kernel on the CPU keeps one offset more, and none for sums in 16 bits without padding."""
    bags, offsets, *others = out
    mode, padding = args[4], args[8] if len(args) > 8 else -1
    if mode == SUM and padding < 0 and bags.element_size() < 4:
        return bags, offsets.new_empty(0), *others
    count = offsets.numel()
    return bags, offsets.new_empty(count + 1)[:count] if count else offsets, *others


def _with_states_on_cpu(out: Any) -> Any:
    """The random state of memory-efficient attention is on the CPU, 16 bytes a call (one H200)."""
    *tensors, seed, offset = out
    on_cpu = [torch.empty(each.shape, dtype=each.dtype) for each in (seed, offset)]
    return (*tensors, *on_cpu)


def _with_workspace_of_lstm(func: Any, args: Any, out: Any) -> Any:
    """One layer of an LSTM in fp32, and what oneDNN keeps of it for the backward pass.

    Its gates and outputs, two copies of the states and one of the cells, and the gradients of both.
    Source: set_conf in src/cpu/rnn/rnn_utils.hpp of oneDNN, and its calls on AVX2.
    """
    x, hidden, trains = args[0], args[10], args[15]
    if x.dtype != torch.float32:
        raise RuntimeError(f"what {func} keeps in {x.dtype} is known to oneDNN alone: measure it")
    if not trains:
        return out
    steps, batch, width = x.shape
    of_all_states = 2 * (steps + 1) * batch
    states = of_all_states * _row_of_onednn(max(width, hidden))
    gates = steps * batch * _row_of_onednn(4 * hidden)
    outputs = steps * batch * _row_of_onednn(hidden)
    parts = [gates, outputs, *[states] * 3, *[of_all_states * hidden] * 2]
    size = sum(-(-4 * part // PAGE_BYTES) for part in parts) * PAGE_BYTES
    return *out[:3], out[3].new_empty(size)


def _row_of_onednn(elements: int) -> int:
    """Elements from one row to the next: whole cache lines, at no multiple of 1,024 bytes."""
    row = -(-elements // 16) * 16
    return row if row % 256 else row + 16
