"""What an operation on fake tensors returns, made again where it was asked for before.

A stack of layers asks for the same operations with the same shapes in each layer, and torch's own
record of them takes most of the time that a prediction takes. A result is remembered only if the
call changed none of its arguments, and if what is made from the description is alike in all that a
fake tensor has: an argument itself, a view of an argument, or a tensor with a storage of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)


class Traits(NamedTuple):
    """All that a fake tensor has beside the storage that it lies in."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    dtype: torch.dtype
    device: torch.device
    storage_bytes: int
    requires_grad: bool
    # Whether it is negated, quantised or of inference mode.
    dispatch_keys: int


class Made(NamedTuple):
    """A tensor that an operation makes: a view of the argument of this number; for None, new."""

    argument: int | None
    traits: Traits


# An output is None, the number of the argument that is returned, or made.
Output = int | Made | None


class NotPlainError(Exception):
    """A call or an output that is left to torch."""


class Call:
    """What the result of a call depends on, and the tensors among its arguments, in order."""

    def __init__(self, mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> None:
        self.tensors: list[FakeTensor] = []
        # The number of the first tensor in each storage: later ones may be views of it.
        self.owners: dict[int, int] = {}
        self._mode = mode
        self._key: list[Any] = [
            func,
            torch.get_default_dtype(),
            torch._C._get_default_device(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch._C._is_any_autocast_enabled(),
        ]
        self._add(tuple(args))
        for name in sorted(kwargs):
            self._add((name, kwargs[name]))
        self.key = tuple(self._key)

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind is FakeTensor:
            self._add_tensor(value)
        elif kind is list or kind is tuple:
            self._key.append(len(value))
            for each in value:
                self._add(each)
        elif isinstance(value, Tensor):
            raise NotPlainError
        else:
            # 1, 1.0 and True are equal, and so are 0.0 and -0.0, whose results are laid out alike.
            self._key += (kind, value)

    def _add_tensor(self, tensor: FakeTensor) -> None:
        # A sparse tensor has no storage, so its traits come first.
        traits, number = _traits(tensor, self._mode), len(self.tensors)
        owner = self.owners.setdefault(_storage(tensor), number)
        is_again = owner < number and any(tensor is each for each in self.tensors)
        self._key += (traits, owner, is_again)
        self.tensors.append(tensor)


class Repeats:
    """The results of one mode's operations, by what was asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[type, list[Output]]] = {}

    def result(
        self, mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, fake: Callable[[], Any]
    ) -> Any:
        """The result of an operation, which `fake` calls where it was not asked for before."""
        if func.namespace != "aten":
            return fake()
        try:
            call = Call(mode, func, args, kwargs)
            known = self._known.get(call.key)
        except (NotPlainError, TypeError):
            # TypeError: an argument has no hash.
            return fake()
        if known is not None:
            kind, outputs = known
            made = [_made(mode, each, call.tensors) for each in outputs]
            return kind(made) if kind in (list, tuple) else made[0]
        out = fake()
        with suppress(NotPlainError):
            described = _described(mode, call, out)
            if Call(mode, func, args, kwargs).key == call.key:
                self._known[call.key] = described
        return out


def _described(mode: FakeTensorMode, call: Call, out: Any) -> tuple[type, list[Output]]:
    """How to make the result again. Raises NotPlainError."""
    kind = type(out)
    leaves = list(out) if kind in (list, tuple) else [out]
    new: set[int] = set()
    outputs: list[Output] = []
    for leaf in leaves:
        output = _output_of(mode, call, leaf)
        outputs.append(output)
        if isinstance(output, Made) and output.argument is None:
            if _storage(leaf) in new:
                raise NotPlainError
            new.add(_storage(leaf))
    return kind, outputs


def _output_of(mode: FakeTensorMode, call: Call, leaf: Any) -> Output:
    if leaf is None:
        return None
    for number, tensor in enumerate(call.tensors):
        if leaf is tensor:
            return number
    if type(leaf) is not FakeTensor:
        raise NotPlainError
    traits = _traits(leaf, mode)
    output = Made(call.owners.get(_storage(leaf)), traits)
    again = _made(mode, output, call.tensors)
    if _traits(again, mode) != traits:
        raise NotPlainError
    return output


def _made(mode: FakeTensorMode, output: Output, tensors: list[FakeTensor]) -> Any:
    if output is None:
        return None
    if isinstance(output, int):
        return tensors[output]
    traits = output.traits
    size, stride = traits.size, traits.stride
    with in_kernel_invocation_manager(mode):
        like = torch.empty_strided(size, stride, dtype=traits.dtype, device="meta")
        if output.argument is not None:
            storage = tensors[output.argument].untyped_storage()
            like.set_(storage, traits.offset, size, stride)
    return FakeTensor(mode, like, traits.device)


def _traits(tensor: FakeTensor, mode: FakeTensorMode) -> Traits:
    """Raises NotPlainError for a tensor whose value is known, a sparse one or one of another
    mode.
    """
    is_plain = tensor.constant is None and tensor.layout == torch.strided
    if not is_plain or tensor.fake_mode is not mode:
        raise NotPlainError
    return Traits(
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.fake_device,
        tensor.untyped_storage().nbytes(),
        tensor.requires_grad,
        torch._C._dispatch_keys(tensor).raw_repr(),
    )


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
