"""Examines one untimed call: the FLOPs it dispatches, and the tensors it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prooflops import counted

SAMPLED_ELEMENTS = 4096
# A smaller input is not looked at.
FEWEST_INPUT_ELEMENTS = 64
# One value may make up a quarter of a sample; of fp8 numbers drawn from a normal it is 4 %.
LARGEST_SHARE = 0.25


@dataclass(frozen=True)
class Examined:
    """One call: its result, the FLOPs of its products, its operators, and the tensors it read."""

    result: object
    flops: int
    operators: int
    inputs: tuple[torch.Tensor, ...]


class _Reads(TorchDispatchMode):
    """Collects the tensors that operators read and that no operator before them wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.read: dict[int, torch.Tensor] = {}
        # Weak references keep no data alive, but the address of a storage from being used again.
        self._written: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        written = self._results_of(func, args, kwargs)
        for tensor in _tensors((args, kwargs)):
            storage = _storage(tensor)
            if storage not in self._written and storage not in written:
                self.read.setdefault(storage, tensor)
        for tensor in _tensors(out):
            self._written.setdefault(_storage(tensor), StorageWeakRef(tensor.untyped_storage()))
        self.operators += not getattr(func, "is_view", False)
        return out

    @staticmethod
    def _results_of(func: Any, args: Any, kwargs: Any) -> set[int]:
        """The arguments that the operator writes without reading: those handed in as `out`."""
        schema = func._schema.arguments
        handed = [(argument, args[place] if place < len(args) else kwargs.get(argument.name))
                  for place, argument in enumerate(schema)]  # fmt: skip
        outs = [value for argument, value in handed if argument.is_out]
        if func._schema.name == "aten::copy_":
            outs.append(args[0])
        return {_storage(tensor) for tensor in _tensors(outs)}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def examine(function: Callable[[], object]) -> Examined:
    """Calls `function` once and returns its operators, FLOPs and inputs."""
    reads = _Reads()
    with counted.flops() as count, reads:
        result = function()
    return Examined(result, count.total, reads.operators, tuple(reads.read.values()))


def assert_random(tensors: Iterable[torch.Tensor]) -> None:
    """Raises AssertionError if one value makes up more than a quarter of an input.

    Zeros and constants switch few transistors, so a power-limited processor multiplies them faster
    than real data (on GPUs by a tenth or more). Sparse or repeated values may take shortcuts.
    """
    __tracebackhide__ = True
    for tensor in tensors:
        if tensor.numel() < FEWEST_INPUT_ELEMENTS:
            continue
        flat = tensor.detach().reshape(-1)
        places = torch.randint(
            flat.numel(), (min(SAMPLED_ELEMENTS, flat.numel()),), device=flat.device
        )
        # Values are compared as bits, as NaN is unequal to itself; + 0.0 makes -0.0 and 0.0 equal.
        bits, counts = (
            (flat[places].cpu().double() + 0.0).view(torch.int64).unique(return_counts=True)
        )
        value = float(bits[counts.argmax()].view(torch.float64))
        share = float(counts.max() / counts.sum())
        assert share <= LARGEST_SHARE, (
            f"{share:.0%} of an input of {tuple(tensor.shape)} {tensor.dtype} are {value:g}, "
            "but inputs should be random"
        )


def overwrite(examined: Examined) -> None:
    """Fills the tensors that a call returned, and did not read, with values that no result has.

    These are NaN, or the least integer.
    """
    read = {_storage(tensor) for tensor in examined.inputs}
    for tensor in _tensors(examined.result):
        if _storage(tensor) in read or tensor.dtype == torch.bool:
            continue
        with torch.no_grad():
            tensor.fill_(
                float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min
            )


def in_fp64(tensor: torch.Tensor) -> torch.Tensor:
    """The values in fp64, on the host where the device has none."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def assert_declared(flops: int, examined: Examined) -> None:
    """Raises AssertionError where the FLOPs declared are not those of the dispatched products.

    A formula that is wrong by a factor is found so.
    """
    __tracebackhide__ = True
    assert flops == examined.flops, (
        f"{flops} FLOPs are declared, but the dispatched products have {examined.flops}"
    )
