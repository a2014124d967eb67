"""The peak table has the vendors' figures of each accelerator, with sources.

Query it through `accounting.devices`.

A figure in `peaks.json` is the rate of *one device as the framework sees it*: dense, without 2:4
sparsity, a fused multiply-add counted as 2. Peaks are in TFLOP/s (int8: TOP/s), bandwidths in GB/s.
A row has two clocks in MHz, of the vector units and of the matrix units. A figure that is
not settled is absent, never filled by analogy. So is the figure of a unit that the device lacks.

A cell is a bare number if the vendor prints it as dense. Otherwise it names its kind:

- {"dense": d, "sparse": s}: both are printed.
- {"sparse": s}: half of it is used.
- {"card": c}: printed for a card of two devices.
- {"derived": x}: follows from units, clock and the rate of the die. So do all peaks of a row
  without "peaks".
- {"secondary": x}: read in a repository, or on a page that is not the vendor's.

The source class of a row is P1 if the vendor's text was read directly. It is P2 if a vendor's
document was quoted figure by figure, and S if all sources are secondary.

The formats `fp64` and `fp32` are those of vector units, `fp64_tensor` and `fp32_tensor` those of
matrix units. `fp16` and `fp8` accumulate in fp32, which GeForce does at half the rate; `fp16_acc16`
and `fp8_acc16` accumulate in fp16. `fp8_fnuz` is CDNA 3's encoding.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

TABLE = json.loads(Path(__file__).with_name("peaks.json").read_text(encoding="utf-8"))

# Dense FLOP per clock and unit, by die and format. A figure is the product of units, this rate and
# the clock, to within its rounding.
FLOP_PER_CLOCK: dict[str, dict[str, int]] = TABLE["flop_per_clock"]
SOURCES: dict[str, str] = TABLE["sources"]

# A printed figure divided by the divisor of its kind is the dense figure of one device.
DIVISORS = {
    "dense": 1,
    "sparse": 2,
    "card": 2,
    "derived": 1,
    "secondary": 1,
}


class Figure(NamedTuple):
    """A printed figure, its divisor, and the sparse figure printed beside it.

    >>> str(Figure(1979, 2, "sparse")), Figure(1979, 2, "sparse").value
    ('1979 / 2', 989.5)
    """

    printed: float
    divisor: int = 1
    kind: str = "dense"
    sparse: float | None = None

    @property
    def value(self) -> float:
        """The dense figure of one device, in the printed unit."""
        return self.printed / self.divisor

    def __str__(self) -> str:
        return f"{self.printed:g}" if self.divisor == 1 else f"{self.printed:g} / {self.divisor}"


class Accelerator(NamedTuple):
    """One row of the table.

    `names` are torch's exact names, and empty if not settled: they come from the README.md of
    NVIDIA/open-gpu-kernel-modules @015742d, libdrm's amdgpu.ids, and programs' output. `arch` is a
    compute capability or a gfx architecture, `die` a key of FLOP_PER_CLOCK. `units` are the enabled
    SMs, CUs, matrix engines or EUs. `clocks_mhz` are nominal, of the vector and the matrix units.
    `memory` is the vendor's label, whose GB are in effect GiB. A row that is `planning_only` has no
    torch, and is found by its label alone.

    >>> row = next(row for row in ROWS if row.label == "A100 SXM4 80GB")
    >>> row.peaks["bf16"].value, row.peaks["bf16"].sparse, row.units, row.clocks_mhz
    (312.0, 624, 108, (1410, 1410))
    """

    label: str
    names: tuple[str, ...]
    arch: str
    die: str
    units: int | None
    clocks_mhz: tuple[float | None, float | None]
    peaks: dict[str, Figure]
    bandwidth: Figure | None
    memory: str | None
    unit: str
    sources: tuple[str, ...]
    source_class: str
    planning_only: bool = False
    note: str = ""

    @property
    def memory_sizes(self) -> list[int]:
        """The sizes in `memory`, in bytes."""
        return [int(label) * 2**30 for label in re.findall(r"\d+(?= (?:/|GB))", self.memory or "")]


class CpuPath(NamedTuple):
    """FLOPs per cycle of one core on one kind of instruction.

    `per` names another unit where several cores share one. A rate is None if the instruction exists
    and its rate is not settled. `kind` is vendor, measured or derived. `requires` are features as
    `torch.cpu.get_capabilities()` names them; without any, no feature identifies such a core.
    `fma_units_512` is the number of 512-bit units, where the rates depend on it.

    >>> [path.flops_per_cycle for path in CPU_PATHS if path.requires == ("amx_bf16",)]
    [{'bf16': 1024}]
    """

    label: str
    flops_per_cycle: dict[str, int | None]
    evidence: str
    kind: str
    requires: tuple[str, ...] = ()
    fma_units_512: int | None = None
    per: str = "core"
    note: str = ""


def _figure(cell: Any) -> Figure:
    figures = dict(cell) if isinstance(cell, dict) else {"dense": cell}
    sparse_beside = figures.pop("sparse", None) if "dense" in figures else None
    [(kind, printed)] = figures.items()
    return Figure(printed, DIVISORS[kind], kind, sparse_beside)


def _accelerator(cells: dict[str, Any]) -> Accelerator:
    """The row of these cells, where one key of the peaks may name several formats."""
    clocks = tuple(cells.get("clocks_mhz", (None, None)))
    peaks = cells.get("peaks")
    if peaks is None:
        rates, unit_mhz = FLOP_PER_CLOCK[cells["die"]], cells["units"] * clocks[0]
        peaks = {}
        for column, rate in rates.items():
            formats = "fp16 bf16" if column == "bf16" else column
            peaks[formats] = {"derived": round(rate * unit_mhz / 1e6, 1)}
    typed = {
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
    return Accelerator(**cells | typed)


SECTIONS = ("nvidia", "amd", "intel", "for_planning")
ROWS: tuple[Accelerator, ...] = tuple(
    _accelerator(cells) for section in SECTIONS for cells in TABLE[section]
)
CPU_PATHS: tuple[CpuPath, ...] = tuple(
    CpuPath(**cells | {"requires": tuple(cells.get("requires", ()))})
    for cells in TABLE["cpu_paths"]
)
