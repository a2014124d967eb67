"""Wrong kernels, planted below autograd: of one operator, one dtype and one range of sizes."""

import math
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meta_tests.faults import _caller, fault

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


class WrongKernel(TorchDispatchMode):
    """Spoils the results of one operator that reads or makes tensors of this dtype and size."""

    def __init__(self, operator, spoil, dtype, above, up_to):
        super().__init__()
        self.operator, self.spoil, self.dtype = operator, spoil, dtype
        self.above, self.up_to = above, up_to

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if operation.overloadpacket.__name__ != self.operator:
            return result
        # What works in place on a list returns nothing.
        made = tree_leaves(args[0] if result is None else result)
        read = tree_leaves(args)
        of_dtype = [x for x in made + read if isinstance(x, torch.Tensor) and x.dtype == self.dtype]
        if any(self.above < x.numel() <= self.up_to for x in of_dtype):
            for x in made:
                self.spoil(x, *args)
        return result


class Planted:
    """Enters the mode that is set as `mode`, and leaves the one before it."""

    def __init__(self):
        self._mode = None

    @property
    def mode(self):
        return self._mode

    @mode.setter
    def mode(self, mode):
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        self._mode = mode
        if mode is not None:
            mode.__enter__()


PLANTED = Planted()


def wrong(
    name,
    check,
    operator,
    dtype,
    spoil,
    above=0,
    up_to=math.inf,
):
    """Registers a wrong kernel for tensors of more than `above` and at most `up_to` elements.

    A spoiler gets a result of the operator, and its arguments.
    """

    def plant(patch):
        patch.setattr(PLANTED, "mode", WrongKernel(operator, spoil, dtype, above, up_to))

    fault(check, name=name, topic=_caller())(plant)


def scaled(x, *_, factor=1.5):
    if x.is_floating_point():
        x.mul_(factor)


two_percent_more = partial(scaled, factor=1.02)


def last_forgotten(x, *_):
    """The tail that a vectorised loop leaves over."""
    if x.is_floating_point() and x.dim():
        x[..., -1] = 0
