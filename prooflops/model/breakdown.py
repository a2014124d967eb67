"""Where a step of a user's model goes: by phase, by module, by operator; and what inference takes."""

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

from accounting import counted, measured
from accounting.counted.counter import uncompiled
from prooflops.model.factory import error_text
from prooflops.model.user_model import Instance, UserModel, tensors_of

PHASES = ("forward", "backward", "update")
OUTSIDE = "loss and optimizer, outside the module"
SECONDS = 1.0  # spent on the rounds of one figure
MOST_ROUNDS = 15

Key = tuple[str, str, str]  # module, phase, operator


@dataclass(frozen=True)
class ModuleRow:
    """A module with all that is inside it; `own_s` is the time without that."""

    name: str  # as in named_modules; empty for the whole
    kind: str
    depth: int
    calls: int
    output: str
    parameters: int
    forward_flops: int
    backward_flops: int
    kept_bytes: int  # of the tensors made in it that are kept for the backward pass, each storage once
    forward_s: float
    backward_s: float
    own_s: float

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
    """A step in parts. Phases are timed as they run; modules and operators in a step of which each call is timed."""

    phases_s: dict[str, float]
    modules: tuple[ModuleRow, ...]  # in the order of the tree; first what is outside it
    operators: tuple[OperatorRow, ...]  # the slowest first
    is_compiled: bool  # then modules and operators are those of the uncompiled code

    @property
    def in_operators_s(self) -> float:
        return sum(each.seconds for each in self.operators)

    def slowest(self, most: int) -> list[ModuleRow]:
        """The modules with most time of their own, of both passes."""
        return sorted(self.modules, key=lambda row: -row.own_s)[:most]


def breakdown_of(user_model: UserModel) -> Breakdown:
    """Times a few steps by phase, then traces FLOPs, kept tensors and the time of each operator."""
    instance = user_model.fresh()
    instance.step()
    phases_s = phase_seconds(instance, user_model.device)
    with uncompiled():
        running = _RunningModules(instance.module)
        with counted.flops() as count:
            flops = _sums(_traced_step(instance, running, lambda: count.total))
        kept = _kept_bytes(instance, running)
        timer = measured.clock(user_model.device)
        _traced_step(instance, running, timer)
        rounds = [_traced_step(instance, running, timer) for _ in range(3)]
    calls = Counter(key for key, *_ in rounds[0])
    times = [_sums(each) for each in rounds]
    seconds = Counter(
        {key: min(each[key] for each in times if key in each) for key in calls}
    )  # others disturb single calls
    return Breakdown(
        phases_s,
        tuple(_module_rows(instance.module, running, flops, kept, seconds)),
        tuple(_operator_rows(calls, flops, seconds)),
        user_model.is_compiled,
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
    return {name: statistics.median(times) for name, times in zip(PHASES, zip(*rounds, strict=True), strict=True)}


# ---- which operator belongs to which module ----------------------------------------------------------------------


class _RunningModules:
    """The names of the modules that are running, innermost last; how often each ran, and what it returned."""

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(each): name for name, each in module.named_modules()}
        self._stack = [OUTSIDE]
        self.phase = PHASES[0]
        self.outputs: defaultdict[str, list[str]] = defaultdict(list)

    @property
    def name(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> None:
        self._hooks = ExitStack()
        self.outputs.clear()
        for handle in (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ):
            self._hooks.callback(handle.remove)

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self._names.get(id(module), self.name))

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        self._stack.pop()
        if id(module) in self._names and self.phase == "forward":
            self.outputs[self._names[id(module)]].append(shapes_text(output))


class _Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads a meter around every operator. A gradient belongs to the module whose operator it is the gradient of."""

    def __init__(self, running: _RunningModules, meter: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readings: list[tuple[Key, Any, Any]] = []
        self._running, self._meter = running, meter
        self._module_of_node: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._meter()
        out = func(*args, **(kwargs or {}))
        after = self._meter()
        self.readings.append(((self._module(), self._running.phase, str(func._overloadpacket)), before, after))
        return out

    def _module(self) -> str:
        node = torch._C._current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            return self._module_of_node.get(node._sequence_nr(), OUTSIDE)
        # The newest node is this operator's, or, if it has none, an earlier one's, whose module is known already.
        self._module_of_node.setdefault(int(torch._C._autograd._get_sequence_nr()) - 1, self._running.name)
        return self._running.name


def _traced_step(instance: Instance, running: _RunningModules, meter: Callable[[], Any]) -> list[tuple[Key, Any, Any]]:
    instance.optimizer.zero_grad(set_to_none=True)
    with running, _Trace(running, meter) as trace:
        running.phase = "forward"
        loss = instance.forward()
        running.phase = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        running.phase = "update"
        instance.optimizer.step()
    readings: list[tuple[Key, Any, Any]] = trace.readings
    return readings


def _sums(readings: list[tuple[Key, Any, Any]]) -> Counter[Key]:
    sums: Counter[Key] = Counter()
    for key, before, after in readings:
        sums[key] += after - before
    return sums


def _kept_bytes(instance: Instance, running: _RunningModules) -> Counter[str]:
    """What the forward pass makes and keeps for the backward pass, each storage in the module that kept it first."""
    seen: dict[int, Any] = {}
    kept: Counter[str] = Counter()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata in made.storages and storage._cdata not in seen:
            seen[storage._cdata] = storage
            kept[running.name] += storage.nbytes()
        return tensor.detach()

    running.phase = "forward"
    with running, _Made() as made, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        instance.forward()
    return kept


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The storages that operators made; not those of parameters, inputs and targets, which were there before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        before, after = (
            {each.untyped_storage()._cdata for each in tree_leaves(tree) if isinstance(each, Tensor)}
            for tree in ((args, kwargs), out)
        )
        self.storages |= after - before
        return out


# ---- the rows ----------------------------------------------------------------------------------------------------


def _module_rows(
    module: nn.Module, running: _RunningModules, flops: Counter[Key], kept: Counter[str], seconds: Counter[Key]
) -> Iterator[ModuleRow]:
    own: dict[str, Counter[str]] = defaultdict(Counter)
    for figure, sums in (("flops", flops), ("s", seconds)):
        for (name, phase, _), value in sums.items():
            own[name][f"{phase} {figure}"] += value
    for name, value in kept.items():
        own[name]["kept"] += value
    inclusive: dict[str, Counter[str]] = defaultdict(Counter)
    for name, figures in own.items():
        for above in _with_ancestors(name):
            inclusive[above].update(figures)
    shown = [
        (OUTSIDE, "", 0, 0),
        *((name, type(each).__name__, _depth(name), each) for name, each in module.named_modules()),
    ]
    for name, kind, depth, each in shown:
        outputs, figures = running.outputs[name], inclusive[name]
        yield ModuleRow(
            name,
            kind,
            depth,
            len(outputs),
            outputs[0] if outputs else "",
            sum(parameter.numel() for parameter in each.parameters()) if isinstance(each, nn.Module) else 0,
            figures["forward flops"],
            figures["backward flops"],
            figures["kept"],
            figures["forward s"],
            figures["backward s"],
            own[name]["forward s"] + own[name]["backward s"],
        )


def _with_ancestors(name: str) -> Iterator[str]:
    yield name
    while name and name != OUTSIDE:
        name = name.rpartition(".")[0]
        yield name


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _operator_rows(calls: Counter[Key], flops: Counter[Key], seconds: Counter[Key]) -> list[OperatorRow]:
    rows: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0])
    for key in calls:
        _, phase, operator = key
        row = rows[operator, phase]
        row[:] = row[0] + calls[key], row[1] + seconds[key], row[2] + flops[key]
    made = [OperatorRow(name, phase, int(n), time, int(work)) for (name, phase), (n, time, work) in rows.items()]
    return sorted(made, key=lambda row: -row.seconds)


def shapes_text(output: Any) -> str:
    """The shapes of a module's output: `(2, 24, 32)`, or of several tensors `(2, 24, 32), (2, 32)`."""
    shapes = [str(tuple(each.shape)) for each in tensors_of(output)]
    return ", ".join(shapes[:3]) + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")


# ---- inference ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inference:
    """One forward pass of the module alone, in eval mode and inference mode; `why_not` where it raised."""

    seconds: float = 0.0
    spread: float = 0.0
    flops: int = 0
    activation_bytes: int = 0  # at the peak, its output included, beyond parameters, buffers and inputs
    why_not: str = ""


def inference_of(user_model: UserModel) -> Inference:
    """Runs the module as it is used once it is trained; a model that cannot run so has a reason."""
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
    except Exception as error:  # the user's code may want what only training has
        return Inference(why_not=error_text(error))
    return Inference(timing.median_s, timing.spread, count.total, held.peak_bytes)
