"""Counts a net whose layers repeat without running each of them.

Layers of one class, equal sizes and equal inputs dispatch the same operators. Two of them run,
forward and at once backward; the others hand on the second one's results, and its figures are added
for each of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

# The first of equal layers may meet storage that all share.
RUN = 2
# Attributes that tell a layer's place in its net, and not what it computes.
PLACES = re.compile(
    r".*(idx|index|layer_?(id|number|num|i|no))|training|call_super_init|dump_patches"
)

Measure = Callable[[], Any]  # a context in which figures are taken


class Through(torch.autograd.Function):
    """Hands a skipped layer's results on; its inputs get gradients of zeros."""

    @staticmethod
    def forward(ctx: Any, results: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.inputs = inputs
        return tuple(each.detach() for each in results)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return None, *(torch.zeros_like(each) for each in ctx.inputs)


@contextmanager
def each_kind_once(net: nn.Module, measured: Measure) -> Iterator[list[Any]]:
    """Within the block, repeated layers of `net` are skipped; the list gets the figures of each
    layer skipped.

    `measured()` is a context that gives the figures of what runs in it. Holds for layers that hand
    on what they compute by their results alone.
    """
    skipped: list[Any] = []
    runs: dict[Any, list[Any]] = {}
    inside = False

    def wrapped(kind: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal inside
            if inside:
                return forward(*args, **options)
            given, form = tree_flatten((args, options))
            key = (kind, torch.is_grad_enabled(), str(form), *(_seen(each) for each in given))
            taken = runs.setdefault(key, [])
            if len(taken) < RUN:
                inside = True
                try:
                    taken.append(_run(forward, args, options, measured))
                finally:
                    inside = False
            else:
                skipped.append(taken[-1][0])
            _, results, shape = taken[-1]
            needing = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
            tensors = [each for each in results if isinstance(each, Tensor)]
            needing = needing or [
                torch.zeros((), requires_grad=True)
            ]  # results of parameters alone need gradients
            handed = iter(Through.apply(tensors, *needing))  # type: ignore[no-untyped-call]
            return tree_unflatten(
                [next(handed) if isinstance(each, Tensor) else each for each in results], shape
            )

        return call

    layers = list(_repeated(net))
    for layer, kind in layers:
        layer.forward = wrapped(kind, layer.forward)
    try:
        yield skipped
    finally:
        for layer, _ in layers:
            del layer.forward


def _run(
    forward: Callable[..., Any], args: Any, options: Any, measured: Measure
) -> tuple[Any, list[Any], Any]:
    """Figures of one layer's forward and backward pass, and its results."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    args, options = tree_map_only(Tensor, cut, (args, options))
    with measured() as figures:
        results, shape = tree_flatten(forward(*args, **options))
        ends = [each for each in results if isinstance(each, Tensor) and each.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
    return figures, results, shape


def _seen(value: Any) -> Any:
    """What of an input decides on the operators."""
    if isinstance(value, Tensor):
        return tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value)


def _repeated(net: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    """The layers of lists in which a kind stands more often than it has to run, with the kinds."""
    for module in net.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            kinds = [_kind(layer) for layer in module]
            often = Counter(kinds)
            yield from (
                (layer, kind)
                for layer, kind in zip(module, kinds, strict=True)
                if often[kind] > RUN
            )


def _kind(layer: nn.Module) -> Any:
    """Classes, sizes and settings of a layer and all that it is made of."""
    return tuple(
        (
            path,
            type(module),
            *((name, tuple(each.shape)) for name, each in module.named_parameters(recurse=False)),
            *(
                (name, value)
                for name, value in vars(module).items()
                if isinstance(value, (int, str)) and not PLACES.fullmatch(name)
            ),
        )
        for path, module in layer.named_modules()
    )
