"""Reads and sets how torch rounds the factors of fp32 products, by the API that this torch has.

From 2.9 on each operation has an `fp32_precision`. Once one is set, the older getters fail, so
nothing else here calls them.
"""

from __future__ import annotations

from typing import Any

import torch

_BACKENDS: Any = torch.backends
# Empty before torch 2.9.
OPERATIONS: dict[str, Any] = {}
if hasattr(_BACKENDS.cudnn, "conv"):
    OPERATIONS = {
        "cuda.matmul": _BACKENDS.cuda.matmul,
        "cudnn.conv": _BACKENDS.cudnn.conv,
        "cudnn.rnn": _BACKENDS.cudnn.rnn,
        "mkldnn.matmul": _BACKENDS.mkldnn.matmul,
        "mkldnn.conv": _BACKENDS.mkldnn.conv,
        "mkldnn.rnn": _BACKENDS.mkldnn.rnn,
    }
PRODUCTS = ("cuda.matmul", "mkldnn.matmul")
ROUNDED_BY_DEFAULT = ("cudnn.conv", "cudnn.rnn")


def format_of(operation: str) -> str:
    """The format in which an operation multiplies fp32: fp32, tf32 or bf16."""
    if OPERATIONS:
        setting = OPERATIONS[operation].fp32_precision
        return "fp32" if setting in ("none", "ieee") else str(setting)
    flags = _BACKENDS.cudnn if operation in ROUNDED_BY_DEFAULT else _BACKENDS.cuda.matmul
    return "tf32" if flags.allow_tf32 else "fp32"


def unusual_formats() -> dict[str, str]:
    """The operations whose format differs from a fresh torch's; empty before torch 2.9."""
    usual = dict.fromkeys(OPERATIONS, "fp32") | dict.fromkeys(ROUNDED_BY_DEFAULT, "tf32")
    formats = {name: format_of(name) for name in OPERATIONS}
    return {name: each for name, each in formats.items() if each != usual[name]}


def of_products() -> str:
    """The setting of products in the words of torch.set_float32_matmul_precision."""
    if not OPERATIONS:
        return torch.get_float32_matmul_precision()
    formats = [format_of(name) for name in PRODUCTS]
    if "bf16" in formats:
        return "medium"
    return "high" if "tf32" in formats else "highest"


def set_format(operation: Any, setting: str) -> None:
    """Sets the `fp32_precision` of an operation, also where torch's own tests have frozen it."""
    if _BACKENDS.flags_frozen():
        with getattr(_BACKENDS, "__allow_nonbracketed_mutation")():
            operation.fp32_precision = setting
    else:
        operation.fp32_precision = setting


class Float32Products:
    """Inside the block, fp32 products round their operands to tf32, or use full precision.

    A class, because it is entered within the timed region, where a generator would take longer.
    """

    def __init__(self, dtype: str = "fp32") -> None:
        self._setting = "high" if dtype == "tf32" else "highest"

    def __enter__(self) -> None:
        operations = [OPERATIONS[name] for name in PRODUCTS if OPERATIONS]
        self._settings = [(each, each.fp32_precision) for each in operations]
        for operation in operations:
            # In this state the older getter never fails.
            set_format(operation, "ieee")
        self._before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self._setting)

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self._before)
        for operation, setting in self._settings:
            set_format(operation, "none")
            # Otherwise the operation follows its backend's setting, as before.
            if operation.fp32_precision != setting:
                set_format(operation, setting)
