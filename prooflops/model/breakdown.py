"""The parts of a step of a user's model by phase, by module and by operator; and the figures of inference."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prooflops import counted, measured
from prooflops.counted.counter import uncompiled
from prooflops.model.factory import error_text
from prooflops.model.user_model import Instance, UserModel, tensors_of

PHASES = ("forward", "backward", "update")
OUTSIDE = "loss and optimizer, outside the module"
SECONDS = 1.0  # spent on the rounds of one figure
MOST_ROUNDS = 15

Key = tuple[str, str, str]  # module, phase, operator


@dataclass(frozen=True)
class ModuleRow:
    """A module, its submodules included."""

    name: str  # as in named_modules; empty for the whole
    kind: str
    depth: int
    calls: int
    output: str
    parameters: int
    forward_flops: int
    backward_flops: int
    kept_bytes: (
        int  # of the tensors made in it that are kept for the backward pass, each storage once
    )
    forward_s: float
    backward_s: float
    own_s: float  # without the submodules

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class OperatorRow:
    """All calls of an operator in one phase."""

    name: str
    phase: str
    calls: int
    seconds: float
    flops: int


@dataclass(frozen=True)
class Breakdown:
    """A step in parts. Phases are timed in whole steps; modules and operators in a step that times each call."""

    phases_s: dict[str, float]
    modules: tuple[ModuleRow, ...]  # in the order of the tree, behind the one of all outside it
    operators: tuple[OperatorRow, ...]  # the slowest first
    is_compiled: bool  # then modules and operators are those of the uncompiled code


def breakdown_of(user_model: UserModel) -> Breakdown:
    """Times a few steps by phase, then traces FLOPs, kept tensors and the time of each operator."""
    instance = user_model.fresh()
    instance.step()
    phases_s = phase_seconds(instance, user_model.device)
    timer = measured.clock(user_model.device)
    with uncompiled():
        with counted.flops() as count:
            traced = _Trace(instance.module, lambda: count.total, keeps=True).step(instance)
        _Trace(instance.module, timer).step(instance)
        rounds = [_Trace(instance.module, timer).step(instance) for _ in range(3)]
    calls = Counter(key for key, *_ in rounds[0].readings)
    times = [each.sums() for each in rounds]
    seconds = Counter(
        {key: min(each[key] for each in times if key in each) for key in calls}
    )  # the least disturbed
    modules = tuple(_module_rows(instance.module, traced, seconds))
    return Breakdown(
        phases_s, modules, _operator_rows(calls, traced.sums(), seconds), user_model.is_compiled
    )


def phase_seconds(instance: Instance, device: torch.device) -> dict[str, float]:
    """The median time of each phase, over rounds of whole steps."""
    timer = measured.clock(device)
    rounds: list[list[float]] = []
    while len(rounds) < 3 or (len(rounds) < MOST_ROUNDS and sum(map(sum, rounds)) < SECONDS):
        instance.optimizer.zero_grad(set_to_none=True)
        moments = [timer()]
        loss = instance.forward()
        moments.append(timer())
        loss.backward()  # type: ignore[no-untyped-call]
        moments.append(timer())
        instance.optimizer.step()
        moments.append(timer())
        rounds.append([later - earlier for earlier, later in itertools.pairwise(moments)])
    return {
        name: statistics.median(times)
        for name, times in zip(PHASES, zip(*rounds, strict=True), strict=True)
    }


# Only these two private calls assign the operators of a backward pass to those of the forward pass.
if not hasattr(torch._C, "_current_autograd_node") or not hasattr(
    torch._C._autograd, "_get_sequence_nr"
):
    raise ImportError(
        f"prooflops.model does not know torch {torch.__version__}: its autograd names no node"
    )


def newest_node() -> int:
    """The number of the newest autograd node: that of the operator being dispatched, if it has one."""
    return int(torch._C._autograd._get_sequence_nr()) - 1


class _Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One step with a meter read around each operator, which belongs to the innermost module that runs.

    A gradient belongs to the module whose operator it is the gradient of. With `keeps`, `kept` are the bytes that the
    forward pass makes and keeps for the backward pass, each storage in the module that keeps it first; parameters,
    inputs and targets were there before.
    """

    def __init__(self, module: nn.Module, meter: Callable[[], Any], keeps: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readings: list[tuple[Key, Any, Any]] = []
        self.outputs: defaultdict[str, list[str]] = defaultdict(list)  # shapes, by module
        self.kept: Counter[str] = Counter()
        self._names = {id(each): name for name, each in module.named_modules()}
        self._meter, self._keeps = meter, keeps
        self._running, self._phase = [OUTSIDE], PHASES[0]
        self._module_of_node: dict[int, str] = {}
        self._made: set[int] = set()
        self._storages: dict[
            int, Any
        ] = {}  # kept alive so that no other storage gets their address

    def step(self, instance: Instance) -> _Trace:
        """Takes one training step."""
        instance.optimizer.zero_grad(set_to_none=True)
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(self)
            if self._keeps:
                stack.enter_context(
                    torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
                )
            loss = instance.forward()
            self._phase = "backward"
            loss.backward()  # type: ignore[no-untyped-call]
            self._phase = "update"
            instance.optimizer.step()
        return self

    def sums(self) -> Counter[Key]:
        sums: Counter[Key] = Counter()
        for key, before, after in self.readings:
            sums[key] += after - before
        return sums

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names.get(id(module), self._running[-1]))

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        self._running.pop()
        if id(module) in self._names and self._phase == "forward":
            self.outputs[self._names[id(module)]].append(shapes_text(output))

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (
            self._phase == "forward"
            and storage._cdata in self._made
            and storage._cdata not in self._storages
        ):
            self._storages[storage._cdata] = storage
            self.kept[self._running[-1]] += storage.nbytes()
        return tensor.detach()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._meter()
        out = func(*args, **(kwargs or {}))
        after = self._meter()
        self.readings.append(
            ((self._module(), self._phase, str(func._overloadpacket)), before, after)
        )
        if self._keeps:
            self._made |= _storages(out) - _storages((args, kwargs))
        return out

    def _module(self) -> str:
        node = torch._C._current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            return self._module_of_node.get(node._sequence_nr(), OUTSIDE)
        # The newest node is this operator's, or, if it has none, an earlier one's, whose module is known already.
        self._module_of_node.setdefault(newest_node(), self._running[-1])
        return self._running[-1]


def _storages(tree: Any) -> set[int]:
    return {each.untyped_storage()._cdata for each in tree_leaves(tree) if isinstance(each, Tensor)}


def _module_rows(module: nn.Module, traced: _Trace, seconds: Counter[Key]) -> Iterator[ModuleRow]:
    own: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for figure, sums in (("flops", traced.sums()), ("s", seconds)):
        for (name, phase, _), value in sums.items():
            own[name][f"{phase} {figure}"] += value
    for name, value in traced.kept.items():
        own[name]["kept"] += value
    inclusive: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, figures in own.items():
        for above in _with_ancestors(name):
            inclusive[above].update(figures)
    for name, each in ((OUTSIDE, None), *module.named_modules()):
        outputs, figures = traced.outputs[name], inclusive[name]
        yield ModuleRow(
            name=name,
            kind=type(each).__name__ if each is not None else "",
            depth=len(list(_with_ancestors(name))) - 1,
            calls=len(outputs),
            output=outputs[0] if outputs else "",
            parameters=sum(parameter.numel() for parameter in each.parameters())
            if each is not None
            else 0,
            forward_flops=figures["forward flops"],
            backward_flops=figures["backward flops"],
            kept_bytes=figures["kept"],
            forward_s=figures["forward s"],
            backward_s=figures["backward s"],
            own_s=own[name]["forward s"] + own[name]["backward s"],
        )


def _with_ancestors(name: str) -> Iterator[str]:
    yield name
    while name and name != OUTSIDE:
        name = name.rpartition(".")[0]
        yield name


def _operator_rows(
    calls: Counter[Key], flops: Counter[Key], seconds: Counter[Key]
) -> tuple[OperatorRow, ...]:
    sums: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key in calls:
        _, phase, operator = key
        sums[operator, phase].update(
            {"calls": calls[key], "seconds": seconds[key], "flops": flops[key]}
        )
    rows = [
        OperatorRow(*names, each["calls"], each["seconds"], each["flops"])
        for names, each in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def shapes_text(output: Any) -> str:
    """The shapes of a module's output: `(2, 24, 32)`, or of several tensors `(2, 24, 32), (2, 32)`."""
    shapes = [str(tuple(each.shape)) for each in tensors_of(output)]
    return ", ".join(shapes[:3]) + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")


@dataclass(frozen=True)
class Inference:
    """One forward pass of the module alone, in eval mode and inference mode; `why_not` if it raised."""

    seconds: float = 0.0
    spread: float = 0.0
    flops: int = 0
    activation_bytes: int = (
        0  # at the peak, its output included, beyond parameters, buffers and inputs
    )
    why_not: str = ""


def inference_of(user_model: UserModel) -> Inference:
    """Counts, times and measures a forward pass; the reason for a model that runs only in training."""
    instance = user_model.fresh()
    module = instance.module.eval()

    def run() -> Any:
        return module(*instance.arguments, **instance.keywords)

    try:
        with torch.inference_mode():
            with counted.flops() as count:
                run()
            once = measured.time(run, user_model.device, warmup=1, rounds=2).median_s
            rounds = max(3, min(MOST_ROUNDS, int(SECONDS / max(once, 1e-9))))
            timing = measured.time(run, user_model.device, warmup=1, rounds=rounds)
            with measured.memory(user_model.device) as held:
                output = run()
            del output
    except Exception as error:  # the user's code may need values that only training has
        return Inference(why_not=error_text(error))
    return Inference(timing.median_s, timing.spread, count.total, held.peak_bytes)
