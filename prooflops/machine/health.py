"""Causes of a low figure that this machine shows: clock, limits, heat, link, errors, other work.

NVML reads each of them if it can: without an answer from the driver there is no cause to show.
Unrun on a real card.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prooflops.machine.device import card_of, highest_clock_hz
from prooflops_gate.machine import nvml

# Healthy cards under a power limit run at 80 to 90 % of the highest clock.
LEAST_SHARE_OF_HIGHEST_CLOCK = 0.85
HOT_C = 85


def readings(device: torch.device) -> dict[str, Any]:
    """Link and errors of an NVIDIA card, as far as its driver answers; empty for other devices."""
    card = card_of(device) if device.type == "cuda" else None
    if card is None:
        return {}
    return nvml.answers(
        {
            "generation": lambda lib: lib.nvmlDeviceGetCurrPcieLinkGeneration(card),
            "width": lambda lib: lib.nvmlDeviceGetCurrPcieLinkWidth(card),
            "possible_generation": lambda lib: lib.nvmlDeviceGetMaxPcieLinkGeneration(card),
            "possible_width": lambda lib: lib.nvmlDeviceGetMaxPcieLinkWidth(card),
            "uncorrected_errors": lambda lib: lib.nvmlDeviceGetTotalEccErrors(
                card, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC
            ),
            "rows_to_remap": lambda lib: bool(lib.nvmlDeviceGetRemappedRows(card)[2]),
        }
    )


def link(device: torch.device) -> dict[str, int]:
    """`generation` and `width` of the card's PCI Express link, and those `possible_`.

    Empty where NVML names none.
    """
    found = readings(device)
    keys = ("generation", "width", "possible_generation", "possible_width")
    return {key: int(found[key]) for key in keys} if all(found.get(key) for key in keys) else {}


def causes(device: torch.device, conditions: Mapping[str, Any], figure: str) -> list[str]:
    """Possible causes of a low figure, in words; `conditions` are those of its measurement."""
    found = readings(device)
    return [
        *conditions.get("labels", ()),
        *conditions.get("facts", ()),
        *_clock(device, conditions),
        *_link(found, figure),
        *_defects(found),
    ]


def _clock(device: torch.device, conditions: Mapping[str, Any]) -> list[str]:
    """The clock and the heat, where they are unusual and no fact or label has named them."""
    state = conditions.get("during") or conditions.get("after", {})
    words = []
    clock, highest = state.get("clock_mhz"), (highest_clock_hz(device) or 0) / 1e6
    named = any("GHz" in fact for fact in conditions.get("facts", ()))
    if clock and not named and clock < LEAST_SHARE_OF_HIGHEST_CLOCK * highest:
        words.append(f"clock {clock:.0f} of {highest:.0f} MHz")
    if (state.get("temperature_c") or 0) >= HOT_C:
        words.append(f"temperature {state['temperature_c']:.0f} °C")
    return words


def _link(found: Mapping[str, Any], figure: str) -> list[str]:
    if figure not in ("to-device", "to-host", "peer", "launch"):
        return []
    words = []
    for key, what in (("generation", "PCI Express generation"), ("width", "PCI Express lanes")):
        possible = found.get(f"possible_{key}")
        if found.get(key) and found[key] != possible:
            words.append(f"{what} {found[key]} of {possible}")
    return words


def _defects(found: Mapping[str, Any]) -> list[str]:
    words = []
    if found.get("uncorrected_errors"):
        words.append(f"{found['uncorrected_errors']} uncorrected memory errors")
    if found.get("rows_to_remap"):
        words.append("memory rows wait to be remapped: reset the card")
    return words
