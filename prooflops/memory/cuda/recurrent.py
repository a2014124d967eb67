"""cuDNN's LSTM, GRU and RNN on fake tensors: what they allocate, return and keep.

torch's own fake of `_cudnn_rnn` keeps no reserve space and cannot be differentiated, so these
layers are entered here, with a GPU and without. The reserve space that the backward pass reads
holds, for each layer, the gates and the cell of every step, and the output of each layer but the
last. Held against one LSTM on one NVIDIA H200 (torch 2.11, cuDNN 9.19, 26 November 2026), whose
live bytes come out exactly in all phases; for GRU and RNN the reserve is at least what is said. The
workspace that a call takes and frees is known to cuDNN alone: it is named in
`PredictedMemory.unknown`. Source: _cudnn_rnn and _cudnn_rnn_backward in
aten/src/ATen/native/cudnn/RNN.cpp (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Numbers that a layer keeps for each element of its output; an LSTM's four gates and its cell.
KEPT_PER_ELEMENT = {"lstm": 5, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}
RESERVE_EXTRA_BYTES = 256


class Options(NamedTuple):
    """The arguments of a recurrent layer that are no tensors."""

    kind: str
    layers: int
    directions: int
    dropout: float
    batch_first: bool


def recurrent_layers() -> dict[str, Callable[..., Any]]:
    """What to register for each operator of torch's recurrent layers."""
    found: dict[str, Callable[..., Any]] = {}
    for kind in KEPT_PER_ELEMENT:
        found[f"{kind}.input"] = _layer(kind)
        found[f"{kind}.data"] = _refused(kind)
    return found


def _layer(kind: str) -> Callable[..., Any]:
    def layer(
        x: Tensor, hx: Any, params: Sequence[Tensor], _has_biases: bool, layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        states = tuple(hx) if kind == "lstm" else (hx,)
        if torch.is_autocast_enabled("cuda"):
            raise RuntimeError(
                f"aten.{kind} under autocast on CUDA is not modelled: cast its input"
            )
        if any(parameter.shape[-1] != states[0].shape[-1] for parameter in params[1:2]):
            raise RuntimeError(f"aten.{kind} with proj_size on CUDA is not modelled")
        options = Options(kind, layers, 1 + bidirectional, dropout if train else 0.0, batch_first)
        apply: Callable[..., tuple[Tensor, ...]] = _Recurrent.apply
        return apply(options, train, x, *states, *params)

    return layer


def _refused(kind: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"aten.{kind}.data (a packed sequence) on CUDA is not modelled: "
            "its reserve space depends on the lengths; pad the sequences, or measure it on a GPU"
        )

    return refuse


class _Recurrent(torch.autograd.Function):
    """The allocations of `_cudnn_rnn` and of its backward pass, without their values."""

    @staticmethod
    def forward(
        ctx: Any, options: Options, train: bool, x: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        count = 2 if options.kind == "lstm" else 1
        states, params = rest[:count], rest[count:]
        by_steps = x.transpose(0, 1) if options.batch_first else x
        copied = by_steps.contiguous()
        width = states[0].shape[-1] * options.directions
        out = x.new_empty((*copied.shape[:-1], width))
        last = [torch.empty_like(state) for state in states]
        if train:
            reserve = x.new_empty(_reserve_bytes(options, out), dtype=torch.uint8)
        else:
            reserve = x.new_empty(0, dtype=torch.uint8)
        _workspace(out)
        result = out.transpose(0, 1) if options.batch_first else out
        ctx.save_for_backward(x, result, reserve, *states, *params)
        ctx.options = options
        return result, *last

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        x, out, _, *rest = ctx.saved_tensors
        count = 2 if ctx.options.kind == "lstm" else 1
        states, params = rest[:count], rest[count:]
        grad = torch.zeros_like(out) if grad is None else grad
        of_steps = (grad.transpose(0, 1) if ctx.options.batch_first else grad).contiguous()
        of_input = x.new_empty((x.transpose(0, 1) if ctx.options.batch_first else x).shape)
        of_states = [torch.empty_like(state) for state in states]
        _workspace(of_steps)
        del of_steps
        by_steps = (x.transpose(0, 1) if ctx.options.batch_first else x).contiguous()
        of_weights = _flat(params)
        _workspace(by_steps)
        of_input = of_input.transpose(0, 1) if ctx.options.batch_first else of_input
        of_x = of_input if ctx.needs_input_grad[2] else None
        return None, None, of_x, *of_states, *of_weights


# An operator of its own, so that the workspace stands in `unknown` by name.
@torch.library.custom_op("prooflops::cudnn_rnn_workspace", mutates_args=())
def _workspace(of: Tensor) -> Tensor:
    raise RuntimeError(f"a workspace of cuDNN for {tuple(of.shape)} is only named, never made")


@_workspace.register_fake
def _(of: Tensor) -> Tensor:
    return of.new_empty(0)


def _reserve_bytes(options: Options, out: Tensor) -> int:
    kept = KEPT_PER_ELEMENT[options.kind] * options.layers + options.layers - 1
    return kept * out.numel() * out.element_size() + RESERVE_EXTRA_BYTES


def _flat(params: Sequence[Tensor]) -> list[Tensor]:
    """Tensors like these, as parts of one storage."""
    storage = params[0].new_zeros(sum(each.numel() for each in params))
    parts = torch.split(storage, [each.numel() for each in params])
    return [part.view(each.shape) for part, each in zip(parts, params, strict=True)]


def flatten_parameters(model: nn.Module) -> None:
    """Puts the parameters of each recurrent layer into one storage, as cuDNN wants them."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            params = list(module.parameters(recurse=False))
            with torch.no_grad():
                for parameter, part in zip(params, _flat(params), strict=True):
                    parameter.data = part
