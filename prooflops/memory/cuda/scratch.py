"""Scratch of CUDA kernels by formula, from torch's source.

Scratch is what a kernel allocates beyond its outputs, and frees again.

None stands for what is not known: cuDNN's workspaces, sorts, and all that is not listed. Where a
record of a card shows a formula, the formula says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from prooflops.memory.cuda.reductions import staging_bytes

# The number of an H100 or H200 with SXM. Other cards have 46 to 192: other staging buffers.
MULTIPROCESSORS = 132
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_LISTED: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("without_scratch.json").read_text(encoding="utf-8")
)
WITHOUT_SCRATCH = frozenset().union(*_LISTED.values())
# Flash attention splits keys where blocks of 64 queries fill less of two to a multiprocessor.
LEAST_FILLED = 0.8
# The fewest of any width of heads.
KEYS_OF_A_BLOCK = 64
# The largest number of indices for which the gradient of an embedding is not sorted.
UNSORTED_INDICES = 3072
# The number of `reduction="none"` in a loss.
NO_REDUCTION = 0
# Above this number of rows, the gradients of a layer norm's weights are summed in two passes.
LAYER_NORM_ROWS = 64 * 1024


@dataclass(frozen=True)
class Given:
    """A call: its arguments by name, and its outputs."""

    arguments: Mapping[str, Any]
    out: Any

    def __getitem__(self, name: str) -> Any:
        """The argument of this name; None where it was not given."""
        return self.arguments.get(name)


Formula = Callable[[Given], tuple[int, ...] | None]
FORMULAS: dict[str, Formula] = {}


def of(*names: str) -> Callable[[Formula], Formula]:
    """Registers a formula for these operators."""

    def register(formula: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(names, formula))
        return formula

    return register


def scratch_sizes(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, ...] | None:
    """Bytes of each allocation that the kernel makes and frees again; None if unknown."""
    if func.is_view:
        return ()
    if func.namespace != "aten":
        return None
    name = func._opname.rstrip("_")
    if name in FORMULAS:
        given = Given({**dict(zip(_argument_names(func), args, strict=False)), **kwargs}, out)
        return FORMULAS[name](given)
    if name in WITHOUT_SCRATCH or name.startswith("_foreach_"):
        return ()
    return None


@cache
def _argument_names(func: Any) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# --- products: cuBLAS keeps its workspace, which is a class of its own ----------------------------


@of("mm", "addmm", "bmm", "baddbmm")
def product(given: Given) -> tuple[int, ...]:
    """A copy of each matrix that cuBLAS cannot read by rows or by columns."""
    factors = [given["self"], given["mat2"], given["mat1"], given["batch1"], given["batch2"]]
    matrices = [each for each in factors if each is not None and each.dim() > 1]
    return tuple(_bytes(each) for each in matrices if not _is_ready(each))


def _is_ready(matrix: Tensor) -> bool:
    (*_, rows, columns), (*_, down, right) = matrix.shape, matrix.stride()
    by_rows = right == 1 and down >= max(1, columns)
    by_columns = down == 1 and right >= max(1, rows)
    return by_rows or by_columns or down == 0


# --- reductions -----------------------------------------------------------------------------------


@of("sum", "mean", "amax", "amin", "prod", "linalg_vector_norm", "any", "all")
def reduction(given: Given) -> tuple[int, ...]:
    """Staging of a reduction over some dimensions, all where none is named.

    On one H200 the sum of 524,288 numbers needs 260 bytes, and that of 2,048 rows of
    256, a bias's gradient, 4,194,312.
    """
    tensor = given["self"]
    dims = given["dim"]
    if dims is None or dims == []:
        dims = range(tensor.dim())
    elif isinstance(dims, int):
        dims = [dims]
    accumulator = max(4, tensor.element_size())
    return staging_bytes(tensor, list(dims), accumulator, MULTIPROCESSORS)


@of("mse_loss", "smooth_l1_loss")
def reduced_loss(given: Given) -> tuple[int, ...]:
    """Staging of the sum or mean of its terms, for which its output has room."""
    tensor = given["self"]
    if given["reduction"] == NO_REDUCTION:
        return ()
    accumulator = max(4, tensor.element_size())
    return staging_bytes(tensor, range(tensor.dim()), accumulator, MULTIPROCESSORS)


@of("_softmax", "_log_softmax")
def softmax(given: Given) -> tuple[int, ...]:
    return _copies(given["self"])


@of("_safe_softmax")
def safe_softmax(given: Given) -> tuple[int, ...]:
    """A bool for each number and each row, and a zero for the rows that are masked whole.

    Torch composes it of operators that it does not dispatch.
    Source: _safe_softmax in transformers/attention.cpp (torch 2.13), and its calls on the CPU.
    """
    numbers = given["self"]
    rows = numbers.numel() // max(1, numbers.shape[given["dim"]])
    return (*_copies(numbers), numbers.numel(), rows, numbers.element_size())


@of("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(given: Given) -> tuple[int, ...]:
    return _copies(given["grad_output"], given["output"])


@of("native_layer_norm", "_fused_rms_norm")
def layer_norm(given: Given) -> tuple[int, ...]:
    return _copies(given["input"])


@of("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(given: Given) -> tuple[int, ...] | None:
    rows = given["input"].numel() // max(1, prod(given["normalized_shape"]))
    if rows > LAYER_NORM_ROWS:
        return None
    return _copies(given["grad_out"], given["input"])


def _copies(*tensors: Tensor) -> tuple[int, ...]:
    """Bytes of a contiguous copy of each tensor that is not contiguous."""
    return tuple(_bytes(each) for each in tensors if not each.is_contiguous())


@of("embedding_dense_backward")
def embedding_dense_backward(given: Given) -> tuple[int, ...] | None:
    indices = given["indices"].numel()
    if indices > UNSORTED_INDICES or given["scale_grad_by_freq"]:
        return None
    return _copies(given["grad_output"])


# --- attention ------------------------------------------------------------------------------------


@of("_scaled_dot_product_efficient_attention")
def efficient_attention(given: Given) -> tuple[int, ...]:
    """No scratch: in 16 bits with heads wider than 128 it accumulates in fp32 beside its output."""
    value = given["value"]
    if value.element_size() < 4 and value.shape[-1] > 128:
        return (given.out[0].numel() * 4,)
    return ()


@of("_scaled_dot_product_efficient_attention_backward")
def efficient_attention_backward(given: Given) -> tuple[int, ...]:
    """A copy of the output's gradient, the row sums of gradient · output, and tiles of dQ.

    In fp32 the row sums are made by torch: the product of both tensors and its sum are held
    together. Blocks of different keys add into one tile of dQ, so each tile of 64 (or 128) queries
    has a buffer with a lock: 16 bytes and 64 · 64 numbers a tile.
    Source: _efficient_attention_backward in transformers/cuda/attention_backward.cu and Params in
    mem_eff_attention/kernel_backward.h. Not shown by the record of an H200, whose peaks lie
    elsewhere: what its encoder took beyond its tensors is the staging of a sum (`reduction`).
    """
    query, key, value = given["query"], given["key"], given["value"]
    gradient, out = given["grad_out_"], given["out"]
    batch, heads, queries, width = query.shape
    copied = _copies(gradient.transpose(1, 2))
    is_half = query.element_size() < 4
    rows_bytes = 4 * batch * heads * queries
    widest = max(width, value.shape[-1])
    tile = 128 if widest > 64 else 64
    blocks, columns = -(-queries // tile), -(-width // 64)
    elements = blocks * columns * (16 + 4 * tile * 64) // 4
    if is_half and widest > tile:
        keys = -(-key.shape[-2] // 64)
        elements += keys * 64 * (-(-width // tile) + -(-value.shape[-1] // tile)) * tile
    tiles_bytes = batch * heads * (-(-elements // 4) * 4) * 4
    if is_half:
        return (*copied, rows_bytes, tiles_bytes)
    return (*copied, rows_bytes, max(tiles_bytes, out.numel() * 4 + rows_bytes))


@of("_scaled_dot_product_flash_attention")
def flash_attention(given: Given) -> tuple[int, ...] | None:
    """No scratch where the queries fill the card, or the keys one block; else keys are split."""
    batch, heads, queries, _ = given["query"].shape
    fills_card = batch * heads * -(-queries // 64) >= LEAST_FILLED * 2 * MULTIPROCESSORS
    is_whole = fills_card or given["dropout_p"] or given["key"].shape[-2] <= KEYS_OF_A_BLOCK
    return () if is_whole else None


def _rounded(width: int) -> int:
    step = 32 if width <= 128 else 64
    return -(-width // step) * step


@of("_scaled_dot_product_flash_attention_backward")
def flash_attention_backward(given: Given) -> tuple[int, ...]:
    """dQ in fp32, row sums, and dK and dV of every query head where heads are grouped.

    Queries are rounded up to 128, widths to 32 (64 beyond 128).
    Source: mha_bwd in transformers/cuda/flash_attn/flash_api.cpp; not yet compared with a card.
    """
    query, key = given["query"], given["key"]
    batch, heads, queries, width = query.shape
    rows = batch * heads * (-(-queries // 128) * 128)
    sizes = [4 * rows, 4 * rows * _rounded(width)]
    if key.shape[1] != heads:
        of_all_heads = batch * key.shape[-2] * heads * width * key.element_size()
        sizes += [of_all_heads, of_all_heads]
    copies = _copies(given["grad_out"].transpose(1, 2), given["out"].transpose(1, 2))
    return (*copies, *sizes)
