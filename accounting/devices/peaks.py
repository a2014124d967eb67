"""The peak table: the vendors' figures of each accelerator, with sources. Look devices up in
`accounting.devices`.

A figure in `peaks.json` is the rate of *one device as the framework sees it*: dense, without 2:4
sparsity, a fused multiply-add counted as 2. In TFLOP/s (int8: TOP/s), bandwidth in GB/s, clocks in
MHz, of the vector and of the matrix units. An unsettled figure is absent, never filled by analogy,
and so is one of a unit that the device lacks.

A cell is a bare number if the vendor prints it as dense, else it names its kind: {"dense": d,
"sparse": s} if both are printed; {"sparse": s} alone, of which half is used; {"card": c} for a card
of two devices; {"derived": x} follows from units, clock and the rate of the die, like all peaks of
a row without "peaks"; {"secondary": x} was read in a repository or on a page that is not the
vendor's. Class of a row: P1 the vendor's text read directly, P2 a vendor's document quoted figure
by figure, S secondary only.

Formats: `fp64` and `fp32` are the vector units, `fp64_tensor` and `fp32_tensor` the matrix units;
`fp16` and `fp8` accumulate in fp32, `fp16_acc16` and `fp8_acc16` in fp16 (GeForce halves the
former); `fp8_fnuz` is CDNA 3's encoding.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

TABLE = json.loads(Path(__file__).with_name("peaks.json").read_text(encoding="utf-8"))

# Dense FLOP per clock and unit. Every figure of a row is units · this · clock, within its rounding.
FLOP_PER_CLOCK: dict[str, dict[str, int]] = TABLE["flop_per_clock"]
SOURCES: dict[str, str] = TABLE["sources"]

# Each leads from the printed figure to the dense one of a device.
DIVISORS = {
    "dense": 1,
    "sparse": 2,
    "card": 2,
    "derived": 1,
    "secondary": 1,
}


class Figure(NamedTuple):
    """A printed figure, its divisor to a dense figure per device, and the sparse figure printed
    beside it.

    >>> str(Figure(1979, 2, "sparse")), Figure(1979, 2, "sparse").value
    ('1979 / 2', 989.5)
    """

    printed: float
    divisor: int = 1
    kind: str = "dense"  # one of DIVISORS
    sparse: float | None = None

    @property
    def value(self) -> float:
        """Dense, per device, in the printed unit."""
        return self.printed / self.divisor

    def __str__(self) -> str:
        return f"{self.printed:g}" if self.divisor == 1 else f"{self.printed:g} / {self.divisor}"


class Accelerator(NamedTuple):
    """One row of the table. `names` are torch's exact names; empty if not settled.

    >>> row = next(row for row in ROWS if row.label == "A100 SXM4 80GB")
    >>> row.peaks["bf16"].value, row.peaks["bf16"].sparse, row.units, row.clocks_mhz
    (312.0, 624, 108, (1410, 1410))
    """

    label: str
    # From NVIDIA/open-gpu-kernel-modules README.md @015742d, libdrm's amdgpu.ids, and programs'
    # output.
    names: tuple[str, ...]
    arch: str  # compute capability, or gfx architecture
    die: str  # key of FLOP_PER_CLOCK
    units: int | None  # SMs, CUs, matrix engines or EUs that are enabled
    clocks_mhz: tuple[float | None, float | None]  # nominal, of the vector and of the matrix units
    peaks: dict[str, Figure]
    bandwidth: Figure | None
    memory: str | None  # the vendor's label, whose GB are in effect GiB
    unit: str
    sources: tuple[str, ...]
    source_class: str  # P1 | P2 | S
    # The clock follows from the printed peak itself.
    clock_is_inferred: bool = False
    planning_only: bool = False  # torch itself does not run there: found by its label alone
    note: str = ""

    @property
    def memory_sizes(self) -> list[int]:
        """The sizes in `memory`, in bytes."""
        return [int(label) * 2**30 for label in re.findall(r"\d+(?= (?:/|GB))", self.memory or "")]


class CpuPath(NamedTuple):
    """FLOPs per cycle of one core (or of one unit that several cores share) on one kind of
    instruction.

    >>> [path.flops_per_cycle for path in CPU_PATHS if path.requires == ("amx_bf16",)]
    [{'bf16': 1024}]
    """

    label: str
    flops_per_cycle: dict[str, int | None]  # None: the path exists, its rate is not settled
    evidence: str
    kind: str  # vendor | measured | derived
    requires: tuple[
        str, ...
    ] = ()  # features as `torch.cpu.get_capabilities()` names them; none tells such a core
    fma_units_512: int | None = (
        None  # the number of 512-bit units that the figures are for, if they depend on it
    )
    per: str = "core"
    note: str = ""


def _figure(cell: Any) -> Figure:
    figures = dict(cell) if isinstance(cell, dict) else {"dense": cell}
    beside = figures.pop("sparse", None) if "dense" in figures else None
    [(kind, printed)] = figures.items()
    return Figure(printed, DIVISORS[kind], kind, beside)


def _accelerator(cells: dict[str, Any]) -> Accelerator:
    """A row; one key of its peaks may name several formats."""
    clocks = tuple(cells.get("clocks_mhz", (None, None)))
    peaks = cells.get("peaks")
    if peaks is None:
        rates, per_us = FLOP_PER_CLOCK[cells["die"]], cells["units"] * clocks[0]
        peaks = {
            "fp16 bf16" if column == "bf16" else column: {"derived": round(rate * per_us / 1e6, 1)}
            for column, rate in rates.items()
        }
    read = {
        "names": tuple(cells.get("names", ())),
        "units": cells.get("units"),
        "clocks_mhz": clocks,
        "peaks": {
            column: _figure(cell) for columns, cell in peaks.items() for column in columns.split()
        },
        "bandwidth": _figure(cells["bandwidth"]) if "bandwidth" in cells else None,
        "memory": cells.get("memory"),
        "sources": tuple(cells["sources"].split()),
    }
    return Accelerator(**cells | read)


MAKERS = (
    "nvidia",
    "amd",
    "intel",
    "for_planning",
)  # the last also of makers whose devices torch gives no name
ROWS: tuple[Accelerator, ...] = tuple(
    _accelerator(cells) for maker in MAKERS for cells in TABLE[maker]
)
CPU_PATHS: tuple[CpuPath, ...] = tuple(
    CpuPath(**cells | {"requires": tuple(cells.get("requires", ()))})
    for cells in TABLE["cpu_paths"]
)
