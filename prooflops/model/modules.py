"""The module that runs at each moment of a step, by its name in the whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from prooflops.model.user_model import format_name, tensors_of
from prooflops.trace import FORWARD, phase

OUTSIDE = "loss and optimizer, outside the module"


class Output(NamedTuple):
    """The shape and the format of the first tensor that a module returns."""

    shape: str
    dtype: str


@dataclass
class _Running:
    """A module that was called, and what it called itself."""

    name: str
    calls: Counter[int] = field(default_factory=Counter)


class RunningModules:
    """Follows the calls of all modules within `watched`; `name` names the innermost.

    A module that several parents share has as many names. A call counts for the name by which the
    calling module has it, or for the next of several in turn. A call of `module.forward` is none;
    products with its weights count for it all the same.
    """

    def __init__(self, whole: nn.Module) -> None:
        self.outputs: defaultdict[str, list[Output]] = defaultdict(list)
        self._names: defaultdict[int, list[str]] = defaultdict(list)
        self._owners: defaultdict[int, list[str]] = defaultdict(list)
        # A module in a list is called by the parent of the list.
        self._callers: dict[str, str] = {}
        lists = set[str]()
        for name, each in whole.named_modules(remove_duplicate=False):
            self._names[id(each)].append(name)
            owner = f".{name}".partition(".parametrizations.")[0][1:]
            for parameter in each.parameters(recurse=False):
                self._owners[id(parameter)].append(owner)
            parent = name.rpartition(".")[0]
            self._callers[name] = self._callers[parent] if parent in lists else parent
            # A compiled module has a forward of its instance's own, and is no list.
            if getattr(each.forward, "__func__", None) is nn.Module.forward:
                lists.add(name)
        self._running = [_Running(OUTSIDE)]

    @property
    def name(self) -> str:
        return self._running[-1].name

    @contextmanager
    def watched(self) -> Iterator[None]:
        entering = register_module_forward_pre_hook(self._enter)
        leaving = register_module_forward_hook(self._leave, always_call=True)
        with entering, leaving:
            yield

    def owner_of(self, parameters: Iterable[nn.Parameter]) -> str:
        """The module that a product with these parameters belongs to.

        It is the one within the running module that has all of them, else the running module.
        """
        owners = {self._owner_within(self.name, each) for each in parameters}
        return owners.pop() if len(owners) == 1 else self.name

    def _owner_within(self, running: str, parameter: nn.Parameter) -> str:
        names = self._owners[id(parameter)]
        is_top = running in ("", OUTSIDE)
        within = [name for name in names if is_top or name.startswith(f"{running}.")]
        if running in names or not within:
            return running
        # A model looks up an embedding's tied weights by a call.
        return min(within, key=lambda name: len(self.outputs[name]))

    def owners_other_than(self, name: str, parameters: Iterable[nn.Parameter]) -> set[str]:
        """The modules whose parameters these are, if another one uses them."""
        owners = [self._owners[id(each)] for each in parameters]
        return {owner for names in owners if name not in names for owner in names}

    def _enter(self, module: nn.Module, _: Any) -> None:
        running = _Running(self._name_of(module))
        self._running[-1].calls[id(module)] += 1
        self._running.append(running)

    def _name_of(self, module: nn.Module) -> str:
        caller = self.name
        names = self._names.get(id(module), [caller])
        own = [name for name in names if self._callers.get(name) == caller]
        is_top = caller in ("", OUTSIDE)
        within = [name for name in names if is_top or name.startswith(f"{caller}.")]
        names = own or within or names
        return names[self._running[-1].calls[id(module)] % len(names)]

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        name = self._running.pop().name
        if id(module) in self._names and phase() == FORWARD:
            self.outputs[name].append(_output(output))


def _output(output: Any) -> Output:
    """The shape, such as 2×24×32, and the format of its first tensor."""
    tensors = tensors_of(output)
    if not tensors:
        return Output("", "")
    return Output("×".join(map(str, tensors[0].shape)), format_name(tensors[0].dtype))
