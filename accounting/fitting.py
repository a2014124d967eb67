"""The cheapest way of training that fits on devices, by the formulas of state and activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accounting.activations import activation_bytes
from accounting.checks import at_least_one, checked
from accounting.models import parameter_count
from accounting.parallel import ZERO_SHARDS
from accounting.parts import Parts
from accounting.planning import device_state

MOST_DEVICES = 1024
EIGHT_BIT = {"adam": "adam-8bit", "adamw": "adam-8bit"}
NARROW = {"fp32": "bf16"}


@dataclass(frozen=True)
class Way:
    """A way of training, with the bytes of state and saved activations on each device.

    A lower bound: workspaces, gathered layers and gaps between blocks are not counted.
    """

    optimizer: str
    recipe: str
    recomputes: bool
    devices: int
    zero_stage: int
    state_bytes: int
    activation_bytes: int
    changes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes

    def __str__(self) -> str:
        return ", ".join(self.changes) or "as it is"


@checked(batch=at_least_one, sequence=at_least_one)
def ways(
    model: Parts, batch: int, sequence: int, dtype: str, optimizer: str, recipe: str
) -> Iterator[Way]:
    """Ways of training, the cheapest first, with a batch on each device; the first changes nothing.

    The order is recomputed layers, which make a step slower, then narrower state, which changes
    values. Last come the fewest devices that can share the state, without and with recomputed
    layers.
    Raises ValueError for a model whose activations are unknown.

    >>> from accounting.models import GPT2_SMALL
    >>> for way, _ in zip(ways(GPT2_SMALL, 8, 1024, "bf16", "adamw", "fp32"), range(3)):
    ...     print(f"{way}: {way.total_bytes:,} B")
    as it is: 4,437,667,840 B
    layers recomputed: 2,167,238,656 B
    in bf16: 3,442,149,376 B
    """
    saved = {
        recomputes: activation_bytes(
            model, batch, sequence, dtype, fused_norms=True, checkpoint_every=int(recomputes)
        )
        for recomputes in (False, True)
    }
    parameters = parameter_count(model)

    def way(
        recomputes: bool = False,
        to_optimizer: str = optimizer,
        to_recipe: str = recipe,
        devices: int = 1,
        stage: int = 0,
    ) -> Way:
        state = device_state(parameters, devices, stage, to_optimizer, to_recipe).total
        changes = {
            "layers recomputed": recomputes,
            f"in {to_recipe}": to_recipe != recipe,
            "8-bit AdamW": to_optimizer != optimizer,
            f"ZeRO stage {stage} on {devices:,} devices": stage > 0,
        }
        named = tuple(name for name, is_made in changes.items() if is_made)
        held = state, saved[recomputes]
        return Way(to_optimizer, to_recipe, recomputes, devices, stage, *held, named)

    small = EIGHT_BIT.get(optimizer.lower(), optimizer)
    narrow = NARROW.get(recipe, recipe)
    alone = [
        way(),
        way(True),
        way(to_recipe=narrow),
        way(to_optimizer=small),
        way(True, small, narrow),
    ]
    yield from dict.fromkeys(alone)
    for exponent in range(1, MOST_DEVICES.bit_length()):
        for recomputes in (False, True):
            for stage in (each for each in ZERO_SHARDS if each):
                yield way(recomputes, devices=2**exponent, stage=stage)
