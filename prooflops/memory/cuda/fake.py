"""Fake tensors on a CUDA device without a GPU or a driver.

Autograd, in C++, queries the driver for the stream of every CUDA tensor, fake ones too, and torch
aborts where there is no driver. So fake CUDA tensors report the meta device, which has no streams,
to C++, and CUDA to Python code and the optimizers; tensors that C++ creates "on meta" are created
on CUDA. C++ then no longer chooses the kernels that it chooses for CUDA alone: `choices` does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_META = torch.device("meta")
# C++ dispatches this to query a fake tensor's device: more often than any operation.
DEVICE_OF = torch.ops.prim.device.default


@cache
def can_fake_cuda() -> bool:
    """True if autograd accepts fake CUDA tensors.

    It does so with a GPU, and without one in some builds of torch for CUDA. A torch built for the
    CPU alone would abort the process, so nothing is tried there.
    """
    if torch.cuda.is_available():
        return True
    is_built: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    if not is_built or not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        return False
    try:
        with FakeTensorMode():
            total = torch.empty(1, device="cuda", requires_grad=True).sum()
            total.backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


def reported_device(tensor: FakeTensor) -> torch.device:
    """The device that C++ is told where there is no CUDA device."""
    device = tensor.fake_device
    return _META if device.type == "cuda" else device


def _is_fused_update(func: Any) -> bool:
    """True if an optimizer's one kernel runs, which returns nothing.

    Those of SGD and Adagrad have no fake: torch would run the kernel itself on tensors of zeros.
    """
    return func._schema.name.startswith("aten::_fused_") and not func._schema.returns


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Torch's mode, except that `copy.deepcopy` of a tensor does not copy it.

    Torch 2.13 copies the mode with the tensor, and two modes do not mix: layers that are copies, as
    those of nn.Transformer, would not run.
    """

    def __init__(self) -> None:
        super().__init__()
        # It would keep what `KnownOutputs` keeps, at eight times the cost of a look-up.
        self.cache_enabled = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled within the block: torch's wrapper would only cost time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, types, args, kwargs)

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_fused_update(func):
            return None
        if func.name() == "aten::_grouped_mm":
            return self._grouped_product(*args, **(kwargs or {}))
        return super().dispatch(func, types, args, kwargs or {})

    def _grouped_product(
        self,
        a: FakeTensor,
        b: FakeTensor,
        offs: FakeTensor | None = None,
        _bias: FakeTensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Any:
        """An output whose rows are rounded up to 16 bytes, as its kernels make it.

        Torch's own fake refuses other dtypes than bf16, and rounds only where it is built for CUDA.
        """
        dtype = out_dtype or a.dtype
        shape = [a.shape[-2], b.shape[-1]]
        step = 16 // dtype.itemsize
        row = -(-shape[1] // step) * step
        strides = [row, 1]
        if a.dim() == b.dim():
            shape.insert(0, len(a) if offs is None else len(offs))
            strides.insert(0, shape[1] * row)
        with self:
            return torch.empty_strided(shape, strides, dtype=dtype, device=a.fake_device)

    def __deepcopy__(self, memo: dict[int, object]) -> FakeMode:
        return self


class FakeCudaMode(FakeMode):  # type: ignore[no-untyped-call]
    """Fake tensors on CUDA that report the meta device to C++."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE_OF and isinstance(args[0], FakeTensor):
            return reported_device(args[0])
        if kwargs and kwargs.get("device") == _META:
            kwargs = {**kwargs, "device": torch.device("cuda", 0)}
        return super().dispatch(func, types, args, kwargs)
