"""The least that a healthy device delivers: the floors that benchmarks assert, with sources.

A floor in `floors.json` is a rate (`B/s`), a time (`s`) or a share of a nominal rate. The nominal
rate is the dense peak of the dtype (`peak`) or the memory's bandwidth (`bandwidth`). Other nominal
rates are the link to host or peer (`link`), and this run's best product (`ceiling`). Some sources
publish a range of healthy devices (`healthy`), or a threshold for accepting a node (`accepted`).
Published figures come from other programs and hosts, so the floor is the low end less 5 %, the
allowance of SuperBench. Elsewhere the floor is the figure of one healthy device (`one`) less 10 %,
because another may differ by 5 % or more. Or it is the figure of a training run (`run`) less 15 %.
A row applies to named devices, to a generation, or to any device. A floor for any device is wide:
it finds only defects of a factor.

`one_at_clock` is a share of the rate of all units at the clock that ran. Power and heat hardly
change it. A card must reach both floors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from accounting.checks import validated_choice
from accounting.devices.lookup import device_of
from accounting.devices.peaks import Accelerator
from accounting.units import with_unit

_TABLE: dict[str, Any] = json.loads(
    Path(__file__).with_name("floors.json").read_text(encoding="utf-8")
)
_ROWS: list[dict[str, Any]] = _TABLE["rows"]
MARGIN: float = _TABLE["margin"]
MARGIN_OF_ONE: float = _TABLE["margin_of_one"]
MARGIN_OF_RUN: float = _TABLE["margin_of_run"]


# A share near 1 is not rounded to 1.
LEAST_WITH_THREE_DIGITS = 0.985


def _words(cell: str) -> list[str]:
    return cell.split(", ")


FIGURES: tuple[str, ...] = tuple(
    dict.fromkeys(figure for row in _ROWS for figure in _words(row["figures"]))
)
# One word of an option for several figures.
GROUPS = {
    "memory": ("copy", "scale", "add", "triad", "sum", "dot"),
    "link": ("to-device", "to-host"),
    "mfu": ("mfu gpt2-124m", "mfu llama-1b", "mfu transformer"),
}


class Floor(NamedTuple):
    """The least acceptable value of a figure; for a time, the greatest.

    >>> print(floor_of("A100-SXM4-80GB", "bf16"))
    at least 73 % of the dense peak; healthy A100 SXM4 80GB reach 77 to 87 %, less 5 %
    >>> print(floor_of("H200", "bf16"))
    at least 63 % of the dense peak, 76 % at the clock that ran; one healthy H200, less 10 %
    >>> print(floor_of("RTX 4090", "copy"))
    at least 70 % of the bandwidth; a wide floor
    >>> print(floor_of("RTX 4090", "mfu gpt2-124m"))
    at least 10 % of the best product's rate; a wide floor
    """

    figure: str
    limit: float
    of: str  # peak | bandwidth | link | ceiling | FLOP/s | B/s | s
    healthy: tuple[float, float] | None  # published, in the same unit
    whose: str  # the device, generation or option that the floor is of; empty: any
    source: str
    # Least share of what all units do at the clock that ran; None where none is on record.
    at_clock: float | None = None

    @property
    def is_stated(self) -> bool:
        """True if somebody stated it for this run, by an option or a reference record."""
        return self.source.startswith(("--floor", "reference "))

    def is_met(self, value: float, at_clock: float | None = None) -> bool:
        """True if a share, rate or time reaches the floor, also at the clock that ran."""
        if self.of == "s":
            return value <= self.limit
        slow = self.at_clock is not None and at_clock is not None and at_clock < self.at_clock
        return value >= self.limit and not slow

    def __str__(self) -> str:
        least = f"{'at most' if self.of == 's' else 'at least'} {shown(self.limit, self.of)}"
        if self.at_clock is not None:
            least += f", {100 * self.at_clock:.2g} % at the clock that ran"
        if self.healthy:
            low, high = (shown(each, self.of).partition(" ")[0] for each in self.healthy)
            less = f"less {100 * (1 - self.limit / self.healthy[0]):.0f} %"
            return f"{least}; healthy {self.whose} reach {low} to {high} %, {less}"
        if self.source == _TABLE["sources"]["one-h200"]:
            return f"{least}; one healthy H200, less {100 * MARGIN_OF_ONE:.0f} %"
        if self.figure in GROUPS["mfu"] and self.whose:
            return f"{least}; a published run, less {100 * MARGIN_OF_RUN:.0f} %"
        word = "from" if self.is_stated else "for"
        return f"{least}; {f'{word} {self.whose}' if self.whose else 'a wide floor'}"


NOMINAL = {
    "peak": "the dense peak",
    "bandwidth": "the bandwidth",
    "link": "the link",
    "ceiling": "the best product's rate",
}


def shown(value: float, of: str) -> str:
    """A share, rate or time with its unit.

    >>> shown(0.7125, "peak"), shown(0.999, "peak"), shown(52e9, "B/s"), shown(1.5e-5, "s")
    ('71 % of the dense peak', '99.9 % of the dense peak', '52.0 GB/s', '15 µs')
    """
    if of in NOMINAL:
        digits = 2 if value < LEAST_WITH_THREE_DIGITS else 3
        return f"{100 * value:.{digits}g} % of {NOMINAL[of]}"
    return f"{1e6 * value:.4g} µs" if of == "s" else with_unit(value, of)


def compared(
    value: float, unit: str, share: float, floor: Floor, at_clock: float | None = None
) -> str:
    """A figure, and if its floor is a share, its shares of the nominal rate and at the clock.

    >>> compared(99e12, "FLOP/s", 0.1, floor_of("H100 SXM", "bf16"), at_clock=0.12)
    '99.0 TFLOP/s, 10 % of the dense peak, 12 % at the clock that ran'
    """
    words = [shown(value, unit)]
    if floor.of in NOMINAL:
        words.append(shown(share, floor.of))
    if at_clock is not None:
        words.append(f"{100 * at_clock:.2g} % at the clock that ran")
    return ", ".join(words)


def floor_of(device: str | Accelerator | None, figure: str, kind: str = "cuda") -> Floor | None:
    """The floor of a figure on a device, by row or name; None where there is none.

    The device's own floor comes first, then its generation's, then the floor of any device. `kind`
    is `torch.device.type`: CPUs have separate floors, as shares of the bound from their instruction
    sets, cores and clock.
    Raises ValueError for an unknown figure.

    >>> floor_of("H100 SXM", "to-device").limit, floor_of(None, "bf16", "cpu").limit
    (49400000000.0, 0.1)
    >>> floor_of(None, "int8", "cpu") is None
    True
    """
    validated_choice("figure", figure, FIGURES)
    row = device_of(device)
    of_kind = [
        each
        for each in _ROWS
        if figure in _words(each["figures"]) and each.get("kind", kind) == kind
    ]
    if kind == "cpu":
        of_kind = [each for each in of_kind if "kind" in each]
    own = {"devices": row.label, "arches": row.arch} if row else {}
    for key, wanted in own.items():
        for each in of_kind:
            if wanted in _words(each.get(key, "")):
                return _floor(figure, each, wanted if key == "devices" else f"generation {wanted}")
    wide = [each for each in of_kind if "devices" not in each and "arches" not in each]
    return _floor(figure, wide[0], "") if wide else None


def _floor(figure: str, row: dict[str, Any], whose: str) -> Floor:
    healthy = tuple(row["healthy"]) if "healthy" in row else None
    published = healthy[0] if healthy else row.get("accepted", 0.0) * row.get("part", 1.0)
    if published:
        limit = published * (1 - MARGIN)
    elif "run" in row:
        limit = row["run"] * (1 - MARGIN_OF_RUN)
    elif "one" in row:
        limit = _less(row["one"], row["of"])
    else:
        limit = row["most"] if "most" in row else row["least"]
    at_clock = _less(row["one_at_clock"], row["of"]) if "one_at_clock" in row else None
    source = _TABLE["sources"][row["source"]]
    return Floor(figure, limit, row["of"], healthy, whose, source, at_clock)


def _less(one: float, of: str) -> float:
    """The floor that follows from what one healthy device reached."""
    return one / (1 - MARGIN_OF_ONE) if of == "s" else one * (1 - MARGIN_OF_ONE)


# Bytes per second of a lane in one direction, after encoding, by the generation of PCI Express.
PCIE_LANE_BYTES_PER_S = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Bandwidth of a PCI Express link in one direction: lanes · the generation's rate of a lane.

    Encoding is deducted (8b/10b, from generation 3 on 128b/130b); headers of packets are not, which
    cost 10 to 15 %.
    Raises ValueError for an unknown generation. Source: PCI-SIG, PCI Express base specification.

    >>> round(pcie_bytes_per_s(5, 16) / 1e9)
    63
    """
    return (
        lanes
        * PCIE_LANE_BYTES_PER_S[validated_choice("generation", generation, PCIE_LANE_BYTES_PER_S)]
    )


def published_mfu() -> list[dict[str, Any]]:
    """Training runs whose MFU is published: run, device, [lowest, highest], source.

    >>> [run["run"] for run in published_mfu() if run["device"].startswith("H100")]
    ['Llama 3 405B']
    """
    return list(_TABLE["published_mfu"])
