"""Values of fake tensors, where a model decides by them: above all whether a mask masks anything.

A whole number or truth value that is given has its value, and so has what follows from it alone,
and a tensor of ones. transformers leaves out a mask of ones, but not a fake one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from prooflops.trace import tensors_in

ONES = {"ones", "ones_like", "new_ones"}
# Following larger ones would take time and memory.
MOST_VALUES = 2**20
LIBRARY = "transformers.utils.import_utils"


def keep_values(fake: Tensor, tensor: Tensor) -> None:
    """Keeps the values of what the fake tensor stands for, if it may be a mask or a number."""
    is_number = not (tensor.is_floating_point() or tensor.is_complex())
    if is_number and type(tensor) is Tensor and not tensor.is_meta:
        fake.known_values = tensor  # type: ignore[attr-defined]


class KnownValues:
    """The values of fake tensors, until an operation writes to them."""

    def __init__(self) -> None:
        self._written: set[int] = set()

    def of(self, tensor: object) -> Tensor | None:
        values: Tensor | None = getattr(tensor, "known_values", None)
        if values is None or _storage(values) in self._written:
            return None
        return values

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Notes the values of an operation's output, which must follow from one operand's alone."""
        if func._opname in ONES:
            with _apart():
                out.known_values = torch.ones((), dtype=out.dtype).expand(out.shape)
            return
        values = self.of(args[0]) if args else None
        if values is None:
            return
        if func._schema.is_mutable:
            self._written.add(_storage(values))
            return
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags
        is_one = isinstance(out, Tensor) and len(tensors_in((args, kwargs))) == 1
        if is_one and not is_drawn and max(out.numel(), values.numel()) <= MOST_VALUES:
            # The values may lie elsewhere.
            settings = {name: kwargs[name] for name in kwargs if name != "device"}
            with _apart():
                out.known_values = func(values, *args[1:], **settings)


def _storage(values: Tensor) -> int:
    with _apart():
        return int(values.untyped_storage()._cdata)


@contextmanager
def _apart() -> Iterator[None]:
    """Runs an operation that no mode sees."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


@contextmanager
def read_by_transformers(known: KnownValues) -> Iterator[None]:
    """Has transformers read a fake tensor whose values are known, as it would a real one."""
    library = sys.modules.get(LIBRARY)
    if not hasattr(library, "is_fake_tensor"):
        yield
        return

    def has_no_values(tensor: object) -> bool:
        return isinstance(tensor, FakeTensor) and known.of(tensor) is None

    with patch.object(library, "is_fake_tensor", has_no_values):
        yield
