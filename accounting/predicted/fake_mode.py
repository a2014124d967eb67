"""The mode in which tensors are fake, and stay so when they are copied."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import FakeTensorMode


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Torch's mode, which `copy.deepcopy` of a tensor leaves alone.

    Torch 2.13 copies it with the tensor, and two modes do not mix: layers that are copies, as those of nn.Transformer,
    would not run.
    """

    def __deepcopy__(self, memo: dict[int, object]) -> FakeMode:
        return self


@contextmanager
def copies_without_warning() -> Iterator[None]:
    """Ignores that `copy.deepcopy` asks a fake tensor for its address."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield
