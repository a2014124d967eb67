"""One step of a user's model, operator by operator: in which module and phase each runs, and what a
meter reads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prooflops.model.user_model import Instance, tensors_of

PHASES = ("forward", "backward", "update")
OUTSIDE = "loss and optimizer, outside the module"

# Module, phase, operator.
Key = tuple[str, str, str]

# Only these two private calls assign the operators of a backward pass to those of the forward pass.
if not hasattr(torch._C, "_current_autograd_node") or not hasattr(
    torch._C._autograd, "_get_sequence_nr"
):
    raise ImportError(
        f"prooflops.model does not know torch {torch.__version__}: its autograd names no node"
    )


def newest_node() -> int:
    """The number of the newest autograd node: that of the operator being dispatched, if it has
    one.
    """
    return int(torch._C._autograd._get_sequence_nr()) - 1


class Observer(Protocol):
    """Hears of each operator after it has run."""

    def saw(
        self, func: Any, given: list[Tensor], made: list[Tensor], phase: str, amount: int
    ) -> None: ...


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads a meter around each operator, which belongs to the innermost module that runs.

    A gradient belongs to the module whose operator it is the gradient of. With an observer, `kept`
    are the bytes that the forward pass makes and keeps for the backward pass, each storage in the
    module that keeps it first; parameters, inputs and targets were there before.
    """

    def __init__(
        self, module: nn.Module, meter: Callable[[Any], Any], observer: Observer | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = PHASES[0]
        self.calls: Counter[Key] = Counter()
        self.sums: Counter[Key] = Counter()
        # Shapes by module.
        self.outputs: defaultdict[str, list[str]] = defaultdict(list)
        self.kept: Counter[str] = Counter()
        # A module that several parents hold has as many names.
        self._names: defaultdict[int, list[str]] = defaultdict(list)
        # The name of the module that calls each, as it holds it itself or in a list.
        self._callers: dict[str, str] = {}
        lists = set[str]()
        for name, each in module.named_modules(remove_duplicate=False):
            self._names[id(each)].append(name)
            caller = name.rpartition(".")[0]
            self._callers[name] = self._callers[caller] if caller in lists else caller
            # Not one whose forward is its instance's own, as that of a compiled module is.
            if getattr(each.forward, "__func__", None) is nn.Module.forward:
                lists.add(name)
        # How often each module was called by the call that runs, innermost last.
        self._called: list[Counter[int]] = [Counter()]
        self._meter, self._observer = meter, observer
        self._running = [OUTSIDE]
        self._module_of_node: dict[int, str] = {}
        self._made: set[int] = set()
        # Kept alive, so that no other storage gets their address.
        self._storages: dict[int, Any] = {}

    def passes(self, instance: Instance) -> None:
        """The forward and the backward pass of a step."""
        instance.optimizer.zero_grad(set_to_none=True)
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(self)
            if self._observer:
                hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
                stack.enter_context(hooks)
            self.phase = "forward"
            loss = instance.forward()
            self.phase = "backward"
            loss.backward()  # type: ignore[no-untyped-call]

    def update(self, instance: Instance) -> None:
        """The optimizer's step."""
        self.phase = "update"
        with self:
            instance.optimizer.step()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._meter(func)
        out = func(*args, **(kwargs or {}))
        amount = self._meter(func) - before
        key = self._module(), self.phase, str(func._overloadpacket)
        self.calls[key] += 1
        self.sums[key] += amount
        if self._observer:
            given, made = tensors_in((args, kwargs)), tensors_in(out)
            self._made |= _storages(made) - _storages(given)
            self._observer.saw(func, given, made, self.phase, amount)
        return out

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._name_of(module))
        self._called[-1][id(module)] += 1
        self._called.append(Counter())

    def _name_of(self, module: nn.Module) -> str:
        """The name by which the running module holds this one; of several, the next in turn."""
        running = self._running[-1]
        names = self._names.get(id(module), [running])
        own = [name for name in names if self._callers.get(name) == running]
        within = [
            name for name in names if running in ("", OUTSIDE) or name.startswith(f"{running}.")
        ]
        names = own or within or names
        return names[self._called[-1][id(module)] % len(names)]

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        name = self._running.pop()
        self._called.pop()
        if id(module) in self._names and self.phase == "forward":
            self.outputs[name].append(shapes_text(output))

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_new = storage._cdata in self._made and storage._cdata not in self._storages
        if self.phase == "forward" and is_new:
            self._storages[storage._cdata] = storage
            self.kept[self._running[-1]] += storage.nbytes()
        return tensor.detach()

    def _module(self) -> str:
        node = torch._C._current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            return self._module_of_node.get(node._sequence_nr(), OUTSIDE)
        # The newest node is this operator's, or, if it has none, an earlier one's, whose module is
        # known already.
        self._module_of_node.setdefault(newest_node(), self._running[-1])
        return self._running[-1]


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tensors: list[Tensor]) -> set[int]:
    return {each.untyped_storage()._cdata for each in tensors}


def shapes_text(output: Any) -> str:
    """The shapes of a module's output: `(2, 24, 32)`, or of several tensors `(2, 24, 32), (2,
    32)`.
    """
    shapes = [str(tuple(each.shape)) for each in tensors_of(output)]
    more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
    return ", ".join(shapes[:3]) + more
