"""Fake tensors and optimizers without the import of torch's compiler, which takes seconds."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
# The compiler and two of its modules.
PARTS = ("", ".config", ".source")


class _StandIn(ModuleType):
    """A module of the compiler with a few known names; any other one imports the compiler."""

    def __init__(self, name: str, **known: object) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        # The import of one of its modules asks a package for its path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        _leave()
        # The import leaves a cycle with its caller's frame, and so with the tensors in there.
        gc.freeze()
        imported = importlib.import_module(self.__name__)
        gc.collect()
        gc.unfreeze()
        return getattr(imported, name)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Stands in for the compiler, within the block, unless it is imported or something needs it.

    torch imports it to read two settings of fake tensors, and to keep the optimizers' functions
    from being compiled. Nothing is compiled before it is imported.
    """
    if COMPILER in sys.modules:
        yield
        return
    not_compiled: list[Callable[..., Any]] = []

    def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        not_compiled.append(function)
        return function

    settings = {
        "fake_tensor_cache_enabled": True,
        "fake_tensor_cache_crosscheck_enabled": False,
        "_custom_ops_profile": None,
    }
    config = _StandIn(f"{COMPILER}.config", **settings)
    sources = {"ConstantSource": str, "RandomValueSource": bytes}
    source = _StandIn(f"{COMPILER}.source", **sources)
    known = {"disable": disable, "graph_break": lambda: None, "config": config, "source": source}
    for each in (_StandIn(COMPILER, **known), config, source):
        sys.modules[each.__name__] = each
    try:
        yield
    finally:
        _leave()
        # Torch keeps here what the compiler returned.
        for function in not_compiled:
            vars(function).pop("__dynamo_disable", None)


def _leave() -> None:
    for name in (f"{COMPILER}{part}" for part in PARTS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
