"""Fake outputs of operations that ran before on tensors that lie alike, without running them."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from prooflops.trace import Alike

_UNKNOWN = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    # It changes how its operand lies.
    torch.Tag.inplace_view,
}
_TORCH_SETTINGS = {torch.dtype, torch.device, torch.layout, torch.memory_format}
_SETTINGS = {int, float, complex, bool, str, type(None), *_TORCH_SETTINGS}
_LIFT = torch.ops.aten.lift_fresh.default


class Layout(NamedTuple):
    """The layout of an output, in its own storage or an operand's."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    # The place of the operand among the tensors of the call.
    shared_with: int | None


class Operand(NamedTuple):
    """An output that is an operand, by its place among the tensors of the call."""

    place: int


class Known(NamedTuple):
    """The outputs of all calls that are alike."""

    recipe: Any
    alike: Alike


# All predictions of the process share these; an operator, settings and operands' layouts are a key.
_KNOWN: dict[tuple[Any, ...], Known] = {}


class KnownOutputs:
    """The outputs of operations, whose layouts are kept by those of the operands.

    C++ is told the meta device of tensors of the type `meta_to_torch`, as of those that they wrap:
    it need not ask.
    """

    def __init__(self, mode: FakeTensorMode, meta_to_torch: str = "") -> None:
        self._mode = mode
        self._meta_to_torch = meta_to_torch
        # The attributes of a new fake tensor, by its device.
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Alike | None]:
        """The outputs of an operation, which runs only where they are not known.

        The second value is None if calls that seem alike may differ.
        """
        if func is _LIFT and _is_number_or_empty(args[0]):
            return self._lifted(args[0]), None
        if not _follows_from_layouts(func):
            return func(*args, **kwargs), None
        tensors: list[FakeTensor] = []
        parts: list[Any] = [func, torch.get_default_dtype(), self._meta_to_torch]
        if not (_describe(args, parts, tensors) and _describe(kwargs, parts, tensors)):
            return func(*args, **kwargs), None
        key = tuple(parts)
        known = _KNOWN.get(key)
        if known is not None:
            with torch._C._DisableTorchDispatch():
                return self._made(known.recipe, tensors), known.alike
        out = func(*args, **kwargs)
        with suppress(ValueError):
            _KNOWN[key] = Known(_recipe(out, tensors), Alike())
        return out, None

    def _lifted(self, tensor: Tensor) -> FakeTensor:
        """A fake of what the code has made; a number keeps its value, which the code may read."""
        with torch._C._DisableTorchDispatch():
            layout = tensor.shape, tensor.stride()
            made = self._fake(
                torch.empty_strided(*layout, dtype=tensor.dtype, device="meta"), tensor.device
            )
            if tensor.dim():
                return made
            made.constant = tensor.clone()
        # An operation that changes it in an unknown way takes the value from it.
        self._mode.fake_tensor_converter.add_constant_storage_mapping(made)
        return made

    def _made(self, recipe: Any, tensors: list[FakeTensor]) -> Any:
        kind = type(recipe)
        if kind is Operand:
            return tensors[recipe.place]
        if kind in (list, tuple):
            return kind(self._made(each, tensors) for each in recipe)
        if kind is not Layout:
            return recipe
        shape, stride, offset, dtype, device, shared_with = recipe
        empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        if shared_with is not None:
            empty.set_(tensors[shared_with].untyped_storage(), offset, shape, stride)
        return self._fake(empty, device)

    def _fake(self, empty: Tensor, device: torch.device) -> FakeTensor:
        if device not in self._attributes:
            self._attributes[device] = vars(FakeTensor(self._mode, empty, device)).copy()
        made = Tensor._make_subclass(
            FakeTensor,
            empty,
            dispatch_device=device.type != self._meta_to_torch,
            device_for_backend_keys=device,
        )
        # Whoever reads its memory is warned, as of any fake tensor.
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        vars(made).update(self._attributes[device])
        return made


def _is_number_or_empty(tensor: Any) -> bool:
    is_cpus = type(tensor) is Tensor and tensor.device.type == "cpu"
    return is_cpus and not (tensor.dim() and tensor.numel())


@cache
def _follows_from_layouts(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace not in ("aten", "prims"):
        return False
    writes_out = any(each.is_out for each in func._schema.arguments)
    return not (_UNKNOWN & {*func.tags} or writes_out)


def _describe(value: Any, key: list[Any], tensors: list[FakeTensor]) -> bool:
    """Adds an argument to the key; False where the outputs may depend on more than that says."""
    if isinstance(value, FakeTensor):
        if value.constant is not None or value.layout is not torch.strided:
            return False
        tensors.append(value)
        key += (
            value.dtype,
            value.shape,
            value.stride(),
            value.storage_offset(),
            value.fake_device,
            value.is_conj(),
            value.is_neg(),
        )
        return True
    kind = type(value)
    key.append(kind)
    if kind in _SETTINGS:
        # 1, 1.0 and True are equal, and of three types.
        key.append(value)
        return True
    if kind is dict:
        key.extend(value)
        value = value.values()
    elif kind in (list, tuple):
        key.append(len(value))
    else:
        return False
    return all(_describe(each, key, tensors) for each in value)


def _recipe(out: Any, tensors: list[FakeTensor]) -> Any:
    """The way to make these outputs anew. Raises ValueError if it cannot make all of them."""
    if out is None or type(out) is int:
        return out
    if type(out) in (list, tuple):
        return type(out)(_recipe(each, tensors) for each in out)
    if not isinstance(out, FakeTensor) or out.layout is not torch.strided:
        raise ValueError
    if out.is_conj() or out.is_neg() or out.requires_grad:
        raise ValueError
    for place, each in enumerate(tensors):
        if out is each:
            return Operand(place)
    storage = out.untyped_storage()
    keys = [each.untyped_storage()._cdata for each in tensors]
    shared_with = keys.index(storage._cdata) if storage._cdata in keys else None
    ends = [(size - 1) * step for size, step in zip(out.shape, out.stride(), strict=True)]
    elements = sum(ends) + 1 if out.numel() else 0
    is_whole = storage.nbytes() == elements * out.element_size()
    if shared_with is None and not is_whole:
        raise ValueError
    offset = int(out.storage_offset())
    return Layout(out.shape, out.stride(), offset, out.dtype, out.fake_device, shared_with)
