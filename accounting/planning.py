"""Napkin answers about a training run: time, throughput, cost, largest model.

They assume one sustained rate from the first step to the last and ignore interruptions, so they are bounds: no run is
faster or cheaper, no trainable model larger. Each docstring lists what it ignores. All raise ValueError for a negative
count, no device, a rate or price that is not above 0, an unknown name or stage.

The examples use the lecture's H100, whose vendor prints 1,979 TFLOP/s for sparse bf16: 1979e12 / 2 for dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import gcd
from typing import Any

from accounting.checks import (
    at_least_one,
    checked,
    instance_of,
    validated_choice,
    validated_model,
    validated_positive,
)
from accounting.memory import ModelState, model_state
from accounting.models import Model, rule_flops, step_flops
from accounting.optimizers import Optimizer, Recipe, recipe_of
from accounting.parallel import (
    KINDS,
    ZERO_SHARDS,
    Parallelism,
    collectives,
    device_activation_bytes,
    device_parameters,
)
from accounting.parts import layers_of

SECONDS_PER_HOUR = 60 * 60
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


@checked(devices=at_least_one, peak_flop_per_s=validated_positive, mfu=validated_positive)
def sustained_flop_per_s(devices: int, peak_flop_per_s: float, mfu: float = 1.0) -> float:
    """Model FLOP/s of a group of devices: devices · peak · MFU.

    The peak is one device's, dense, in the dtype of the products (`accounting.devices.peak_flop_per_s`). The sparse
    peak is twice as high; dense training never reaches it, and using it halves every time.
    Raises ValueError for an MFU outside (0, 1], TypeError for a peak of None (none on record).

    >>> f"{sustained_flop_per_s(1024, 1979e12 / 2, mfu=0.5):.3e}"
    '5.066e+17'
    """
    if mfu > 1:
        raise ValueError(f"mfu must be at most 1, got {mfu!r}")
    return devices * peak_flop_per_s * mfu


@checked(days=validated_positive)
def affordable_flops(days: float, devices: int, peak_flop_per_s: float, mfu: float = 1.0) -> float:
    """FLOPs that fit into some days: devices · peak · MFU · 86,400 · days.

    An MFU of 1 gives the hardware's limit; training gets about half. Ignores the same as `training_days`.

    >>> [f"{affordable_flops(7 * weeks, 8, 1979e12 / 2):.2e}" for weeks in (1, 2)]
    ['4.79e+21', '9.58e+21']
    """
    return sustained_flop_per_s(devices, peak_flop_per_s, mfu) * SECONDS_PER_DAY * days


@checked("flops")
def training_s(flops: int, devices: int, peak_flop_per_s: float, mfu: float) -> float:
    """Seconds that FLOPs of training take: FLOPs / (devices · peak · MFU).

    For a better count than 6ND: steps · `accounting.models.step_flops(...).model`. Ignores the same as `training_days`.

    >>> round(training_s(10**15, 1, 1979e12 / 2, mfu=0.5), 3)
    2.021
    """
    return flops / sustained_flop_per_s(devices, peak_flop_per_s, mfu)


def training_days(
    parameters: int, tokens: int, devices: int, peak_flop_per_s: float, mfu: float
) -> float:
    """Days of a training run: 6 · parameters · tokens / (devices · peak · MFU · 86,400).

    A bound from below. Ignored: communication outside the measured MFU, checkpoints, failures, data loading,
    evaluation; of the FLOPs all but 6ND: attention, +15 % for a 70B model at 8,192
    tokens, and the optimizer. Recomputation takes up to a third more time at the same MFU. For a mixture of experts
    pass the active parameters.

    >>> round(training_days(70 * 10**9, 15 * 10**12, 1024, 1979e12 / 2, mfu=0.5))
    144
    >>> round(training_days(70 * 10**9, 15 * 10**12, 1024, 1979e12, mfu=0.5))  # the sparse peak by mistake
    72
    """
    return (
        training_s(rule_flops("step", parameters, tokens), devices, peak_flop_per_s, mfu)
        / SECONDS_PER_DAY
    )


@checked(parameters=at_least_one)
def tokens_per_s(parameters: int, devices: int, peak_flop_per_s: float, mfu: float) -> float:
    """Tokens trained on per second by all devices: devices · peak · MFU / (6 · parameters).

    Ignores the same as `training_days`.

    >>> round(tokens_per_s(70 * 10**9, 1024, 1979e12 / 2, mfu=0.5))
    1206248
    """
    return sustained_flop_per_s(devices, peak_flop_per_s, mfu) / rule_flops("step", parameters, 1)


@checked(days=validated_positive, devices=at_least_one, price_per_device_hour=validated_positive)
def training_cost(days: float, devices: int, price_per_device_hour: float) -> float:
    """Price of a run, in the currency of the hourly price: days · 24 · devices · price.

    Ignored: storage, network, separately billed hosts, idle reserves, and every run before the last.

    >>> f"{training_cost(144, 1024, price_per_device_hour=2.0):,.0f}"
    '7,077,888'
    """
    return days * 24 * devices * price_per_device_hour


@checked("parameters", devices=at_least_one)
def device_state(
    parameters: int,
    devices: int = 1,
    zero_stage: int = 0,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
) -> ModelState:
    """Bytes of model state on the fullest device: sharded classes hold ⌈parameters / devices⌉ elements.

    Stage 0 (data parallel) shards nothing; 1 the optimizer state and master copy, 2 also gradients, 3 (FSDP) also
    parameters. Ignored: activations, padding of each tensor, and layers that stages 2 and 3 hold whole while at work.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: 120, 31.4, 16.6 and 1.9 GB.

    >>> states = [device_state(7_500_000_000, 64, stage, recipe="bf16-fp32-master") for stage in (0, 1, 2, 3)]
    >>> [round(state.total / 1e9, 1) for state in states]
    [120.0, 31.4, 16.6, 1.9]
    """
    sharded = ZERO_SHARDS[validated_choice("zero_stage", zero_stage, ZERO_SHARDS)]
    whole, shard = (
        model_state(each, optimizer, recipe) for each in (parameters, -(-parameters // devices))
    )
    parts = ("parameters", "gradients", "state", "master")
    return ModelState(
        **{part: getattr(shard if part in sharded else whole, part) for part in parts}
    )


@checked("memory_bytes", devices=at_least_one)
def largest_model_parameters(
    memory_bytes: int,
    devices: int = 1,
    zero_stage: int = 3,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
) -> int:
    """Parameters of the largest model whose `device_state` fits into `memory_bytes`.

    With everything sharded devices · memory / bytes per parameter (16 for AdamW in fp32); with stage 0 memory / 16 on
    any number of devices. An upper bound. Ignored: activations, workspaces, fragmentation, the driver's own memory.

    >>> largest_model_parameters(80 * 10**9, devices=8), largest_model_parameters(80 * 2**30, devices=8)
    (40000000000, 42949672960)
    """

    def state_bytes(parameters: int) -> int:
        return device_state(parameters, devices, zero_stage, optimizer, recipe).total

    # Every recipe has parameters of at least 4 bits, so no more than two a byte of all devices fit.
    most = 2 * memory_bytes * devices
    fitting = state_bytes(0)  # none: nothing takes no bytes, unless it is refused
    while fitting < most:
        middle = (fitting + most + 1) // 2
        fitting, most = (
            (middle, most) if state_bytes(middle) <= memory_bytes else (fitting, middle - 1)
        )
    return fitting


@dataclass(frozen=True)
class StepPlan:
    """The load of one step per device: bytes held, seconds of arithmetic including idle time, seconds on each wire.

    >>> plan = StepPlan(Parallelism(data=8), model_state(10**9), 20 * 10**9, 80 * 10**9, 1.5, {"data": 0.4})
    >>> plan.held_bytes, plan.bound, plan.seconds
    (36000000000, 'compute', 1.5)
    """

    split: Parallelism
    state: ModelState
    activation_bytes: int
    memory_bytes: int
    compute_s: float
    wire_s: dict[str, float]

    @property
    def held_bytes(self) -> int:
        return self.state.total + self.activation_bytes

    @property
    def bound(self) -> str:
        """The bottleneck: "memory" if the bytes do not fit, else the longest of "compute" and the wires."""
        times = {"compute": self.compute_s, **self.wire_s}
        return (
            "memory"
            if self.held_bytes > self.memory_bytes
            else max(times, key=lambda name: times[name])
        )

    @property
    def seconds(self) -> float:
        """The least time of a step: the longest of them, the others hidden behind it."""
        return max([self.compute_s, *self.wire_s.values()])


@checked("batch", "sequence", "memory_bytes", model=validated_model, split=instance_of(Parallelism))
def step_plan(
    model: Model,
    split: Parallelism,
    batch: int,
    sequence: int,
    *,
    memory_bytes: int,
    peak_flop_per_s: float,
    wire_bytes_per_s: float | Mapping[str, float],
    recipe: str | Recipe = "bf16-fp32-gradients-master",
    optimizer: str | Optimizer = "adamw",
    recompute: str = "none",
    pairs: str = "full",
) -> StepPlan:
    """Bytes and seconds of a step of `batch` sequences on each of `split.devices`, by `accounting.parallel`.

    Arithmetic takes hardware FLOPs / (devices · peak) · (1 + bubble); a wire takes sent bytes over its rate, one for
    all kinds of parallelism or by kind. A lower bound: products run below the peak, and some communication is not
    hidden.
    Raises KeyError for a kind without a rate.

    >>> from accounting.models import LLAMA3_70B
    >>> wires = {"tensor": 450e9, "context": 50e9, "pipeline": 50e9, "data": 50e9}
    >>> h100 = {"memory_bytes": 80 * 10**9, "peak_flop_per_s": 989.4e12, "wire_bytes_per_s": wires}
    >>> split = Parallelism(data=32, tensor=8, zero_stage=1, micro_batches=8)
    >>> plan = step_plan(LLAMA3_70B, split, 256, 8192, recompute="full", **h100)
    >>> plan.bound, round(plan.compute_s, 1), {name: round(s, 1) for name, s in plan.wire_s.items()}
    ('compute', 5.3, {'tensor': 2.0, 'data': 1.0})
    >>> plan.held_bytes, step_plan(LLAMA3_70B, split, 256, 8192, **h100).bound
    (57953975296, 'memory')
    """
    dtypes, wire = recipe_of(recipe), dict.fromkeys(KINDS, 0.0)
    for each in collectives(model, split, batch, sequence, dtypes, recompute):
        rate = (
            wire_bytes_per_s[each.kind]
            if isinstance(wire_bytes_per_s, Mapping)
            else wire_bytes_per_s
        )
        wire[each.kind] += each.sent_bytes / validated_positive("wire_bytes_per_s", rate)
    layers, routed, ends = device_parameters(model, split)
    dense = device_state(layers + ends, split.replicas, split.zero_stage, optimizer, dtypes)
    experts = device_state(
        routed, split.replicas // split.expert, split.zero_stage, optimizer, dtypes
    )
    return StepPlan(
        split,
        ModelState(*(sum(part) for part in zip(astuple(dense), astuple(experts), strict=True))),
        device_activation_bytes(
            model, split, batch, sequence, dtypes.parameters, recompute=recompute
        ),
        memory_bytes,
        _hardware_flops(model, batch, sequence, recompute, pairs)  # type: ignore[arg-type]
        / sustained_flop_per_s(split.devices, peak_flop_per_s)
        * (1 + split.bubble),
        {name: seconds for name, seconds in wire.items() if seconds},
    )


@lru_cache(maxsize=1)  # the same for every way to split a step
def _hardware_flops(model: Any, batch: int, sequence: int, recompute: str, pairs: str) -> int:
    flops = step_flops(
        model, batch, sequence, pairs=pairs, checkpoint_every=int(recompute == "full")
    ).hardware
    again = sum(each.forward_flops(batch, sequence, pairs) for each in model.attentions)
    return flops + (again if recompute == "selective" else 0)


@checked("batch", "sequence", "largest_tensor", model=validated_model, devices=at_least_one)
def fitting_plans(
    model: Model,
    devices: int,
    batch: int,
    sequence: int,
    *,
    largest_tensor: int = 8,
    **options: Any,
) -> list[StepPlan]:
    """The ways to train `model` on this many devices that fit their memory, the fastest first.

    Tries each tensor · context · pipeline · data = `devices`: tensor divides the heads and is at most `largest_tensor`
    (the devices of a host), context divides the sequence, pipeline is at most the layers, data divides the batch,
    a device holds all experts or as few as it can; ZeRO stages 1 and 3 (1 alone without replicas), one
    sequence per micro-batch. For Llama-3-70B and a batch of 2,048 these are 364 ways on 1,024 devices, at half a
    millisecond each. `options` are those of `step_plan`.

    >>> from accounting.models import LLAMA3_8B
    >>> h100 = {"memory_bytes": 80 * 10**9, "peak_flop_per_s": 989.4e12, "wire_bytes_per_s": 50e9}
    >>> fastest = fitting_plans(LLAMA3_8B, 8, 32, 8192, **h100)[0]
    >>> fastest.split.data, fastest.split.tensor, fastest.split.zero_stage, fastest.bound
    (4, 2, 1, 'compute')
    """
    step_plan(
        model, Parallelism(), batch, sequence, **options
    )  # raises errors that do not depend on the split
    heads = [each.heads for each in model.attentions if hasattr(each, "heads")]
    experts = gcd(*(maps.copies for maps in model.linear_maps if maps.copies > maps.uses)) or 1
    splits = [
        Parallelism(data, tensor, context, pipeline, expert, stage, micro_batches=batch // data)
        for tensor in _divisors(gcd(devices, *heads) if heads else 1, largest_tensor)
        for context in _divisors(gcd(devices // tensor, sequence) if heads else 1, sequence)
        for pipeline in _divisors(
            devices // tensor // context, max(1, sum(number for number, _ in layers_of(model)[0]))
        )
        if batch % (data := devices // (tensor * context * pipeline)) == 0
        for expert in sorted({1, gcd(experts, data * context)})
        for stage in ((1, 3) if data * context > 1 else (1,))
    ]
    plans = [step_plan(model, split, batch, sequence, **options) for split in splits]
    fitting = [plan for plan in plans if plan.bound != "memory"]
    return sorted(fitting, key=lambda plan: (plan.seconds, sum(plan.wire_s.values())))


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]
