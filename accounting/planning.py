"""Napkin answers about a training run: time, throughput, cost, largest model.

The answers assume one sustained rate from the first step to the last and ignore interruptions. The
answers are therefore bounds: no run is faster or cheaper, no trainable model larger. Each docstring
lists what it ignores. All raise ValueError for a negative count, no device, a rate or price that is
not above 0, an unknown name or stage.

The examples use the lecture's H100, whose vendor prints 1,979 TFLOP/s for sparse bf16: 1979e12 / 2
for dense.
"""

from __future__ import annotations

from accounting.checks import at_least_one, checked, validated_choice, validated_positive
from accounting.memory import ModelState, model_state
from accounting.models import rule_flops
from accounting.optimizers import Optimizer, Recipe
from accounting.parallel import ZERO_SHARDS

SECONDS_PER_HOUR = 60 * 60
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


@checked(devices=at_least_one, peak_flop_per_s=validated_positive, mfu=validated_positive)
def sustained_flop_per_s(devices: int, peak_flop_per_s: float, mfu: float = 1.0) -> float:
    """Model FLOP/s of a group of devices: devices · peak · MFU.

    The peak is one device's, dense, in the dtype of the products
    (`accounting.devices.peak_flop_per_s`). The sparse peak is twice as high; dense training never
    reaches it, and using it halves every time.
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

    An MFU of 1 gives the hardware's limit; training gets about half. Ignores the same as
    `training_days`.

    >>> [f"{affordable_flops(7 * weeks, 8, 1979e12 / 2):.2e}" for weeks in (1, 2)]
    ['4.79e+21', '9.58e+21']
    """
    return sustained_flop_per_s(devices, peak_flop_per_s, mfu) * SECONDS_PER_DAY * days


@checked("flops")
def training_s(flops: int, devices: int, peak_flop_per_s: float, mfu: float) -> float:
    """Seconds that FLOPs of training last: FLOPs / (devices · peak · MFU).

    For a better count than 6ND: steps · `accounting.models.step_flops(...).model`. Ignores the same
    as `training_days`.

    >>> round(training_s(10**15, 1, 1979e12 / 2, mfu=0.5), 3)
    2.021
    """
    return flops / sustained_flop_per_s(devices, peak_flop_per_s, mfu)


def training_days(
    parameters: int, tokens: int, devices: int, peak_flop_per_s: float, mfu: float
) -> float:
    """Days of a training run: 6 · parameters · tokens / (devices · peak · MFU · 86,400).

    The days are a lower bound. Ignored: communication outside the measured MFU, checkpoints,
    failures, data loading and evaluation. FLOPs beyond 6ND are ignored, too: attention, +15 % for a
    70B model at 8,192 tokens, and the optimizer. Recomputation costs up to a third more time at the
    same MFU. For a mixture of experts pass the active parameters.

    >>> round(training_days(70 * 10**9, 15 * 10**12, 1024, 1979e12 / 2, mfu=0.5))
    144

    The sparse peak, used by mistake, halves the days.

    >>> round(training_days(70 * 10**9, 15 * 10**12, 1024, 1979e12, mfu=0.5))
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

    Ignored: storage, network, separately billed hosts, idle reserves, and every run before the
    last.

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
    """Bytes of model state on the fullest device.

    Sharded classes have ⌈parameters / devices⌉ elements. Stage 0 (data parallel) shards nothing; 1
    the optimizer state and master copy, 2 also gradients, 3 (FSDP) also parameters. Ignored:
    activations, padding of each tensor, and layers that stages 2 and 3 store whole while they run.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: 120, 31.4, 16.6 and 1.9 GB.

    >>> for stage in (0, 1, 2, 3):
    ...     state = device_state(7_500_000_000, 64, stage, recipe="bf16-fp32-master")
    ...     round(state.total / 1e9, 1)
    120.0
    31.4
    16.6
    1.9
    """
    sharded = ZERO_SHARDS[validated_choice("zero_stage", zero_stage, ZERO_SHARDS)]
    whole = model_state(parameters, optimizer, recipe)
    shard = model_state(-(-parameters // devices), optimizer, recipe)
    parts = {}
    for part in ("parameters", "gradients", "state", "master"):
        parts[part] = getattr(shard if part in sharded else whole, part)
    return ModelState(**parts)


@checked("memory_bytes", devices=at_least_one)
def largest_model_parameters(
    memory_bytes: int,
    devices: int = 1,
    zero_stage: int = 3,
    optimizer: str | Optimizer = "adamw",
    recipe: str | Recipe = "fp32",
) -> int:
    """Parameters of the largest model whose `device_state` fits into `memory_bytes`.

    With everything sharded it is devices · memory / bytes per parameter (16 for AdamW in fp32).
    With stage 0 it is memory / 16 on any number of devices. The number is an upper bound. Ignored:
    activations, workspaces, fragmentation, the driver's own memory.

    >>> largest_model_parameters(80 * 10**9, devices=8)
    40000000000
    >>> largest_model_parameters(80 * 2**30, devices=8)
    42949672960
    """

    def state_bytes(parameters: int) -> int:
        return device_state(parameters, devices, zero_stage, optimizer, recipe).total

    # Every recipe has parameters of at least 4 bits, so no more than two a byte of all devices fit.
    most = 2 * memory_bytes * devices
    # No parameters have no bytes, but a wrong name is refused.
    fitting = state_bytes(0)
    while fitting < most:
        middle = (fitting + most + 1) // 2
        if state_bytes(middle) <= memory_bytes:
            fitting = middle
        else:
            most = middle - 1
    return fitting
