"""The peak table: what the vendors print for each accelerator, and where. Data only; look devices up in `devices`.

A figure is what *one device as the framework sees it* does per second: dense, no 2:4 sparsity, one fused multiply-add
counted as 2. In TFLOP/s (int8: TOP/s), bandwidth in GB/s, clocks in MHz. A figure that is not settled is absent, never
filled by analogy, and so is one for a unit that the device does not have.

Kinds of figure: a bare number is printed by the vendor as dense; `both(dense, sparse)` where both are printed;
`sparse(x)` where only the sparse one is, and half of it is used; `card(x)` where a card of two devices is quoted;
`derived(x)` is printed nowhere and follows from units, clock and the rate of the die; `secondary(x)` was read in a
repository or on a page that is not the vendor's. Class of a row: P1 the vendor's text read directly, P2 a vendor's
document quoted figure by figure, S secondary only.

Formats: `fp64` and `fp32` are the vector units, `fp64_tensor` and `fp32_tensor` the matrix units; `fp16` and `fp8`
accumulate in fp32, `fp16_acc16` and `fp8_acc16` in fp16 (GeForce halves the former); `fp8_fnuz` is CDNA 3's encoding.
"""

from typing import NamedTuple


class Figure(NamedTuple):
    """A printed figure, what it must be divided by to be dense and per device, and the sparse one printed beside it."""

    printed: float
    divisor: int = 1
    kind: str = "dense"  # dense | sparse | card | derived | secondary
    sparse: float | None = None

    @property
    def value(self) -> float:
        """Dense, per device, in the printed unit."""
        return self.printed / self.divisor

    def __str__(self) -> str:
        return f"{self.printed:g}" if self.divisor == 1 else f"{self.printed:g} / {self.divisor}"


def both(dense: float, sparse: float) -> Figure:
    """The vendor prints the dense and the sparse figure."""
    return Figure(dense, sparse=sparse)


def sparse(printed: float) -> Figure:
    """The vendor prints only the sparse figure; dense is half of it."""
    return Figure(printed, 2, "sparse")


def card(printed: float) -> Figure:
    """The vendor prints the figure of a card that holds two devices."""
    return Figure(printed, 2, "card")


def derived(value: float) -> Figure:
    """Not printed: units · FLOP per clock · clock."""
    return Figure(value, kind="derived")


def secondary(value: float) -> Figure:
    """Not read in, or quoted from, a document of the vendor."""
    return Figure(value, kind="secondary")


class Accelerator(NamedTuple):
    """One row of the table. `names` are exactly what torch reports; empty where that string is not settled."""

    label: str
    # From NVIDIA/open-gpu-kernel-modules README.md @015742d, libdrm's amdgpu.ids, and programs' output.
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
    clock_is_inferred: bool = False  # from the printed peak itself
    planning_only: bool = False  # torch itself does not run there: found by its label alone


# Dense FLOP per clock and unit. Every figure of a row is units · this · clock, within the rounding of what is printed.
FLOP_PER_CLOCK: dict[str, dict[str, int]] = {
    "GV100": {"fp64": 64, "fp32": 128, "fp16": 1024, "fp16_acc16": 1024, "int8": 512},
    "TU104": {"fp32": 128, "fp16": 1024, "fp16_acc16": 1024, "int8": 2048},
    "GA100": {"fp64": 64, "fp64_tensor": 128, "fp32": 128, "tf32": 1024, "bf16": 2048, "int8": 4096},
    "GA102": {"fp32": 256, "tf32": 512, "bf16": 1024, "int8": 2048},
    "GA102 GeForce": {"fp32": 256, "tf32": 256, "bf16": 512, "fp16_acc16": 1024, "int8": 2048},
    "AD102": {"fp64": 4, "fp32": 256, "tf32": 512, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "AD102 GeForce": {
        "fp32": 256, "tf32": 256, "bf16": 512, "fp16_acc16": 1024, "fp8": 1024, "fp8_acc16": 2048, "int8": 2048,
    },
    "GH100": {"fp64": 128, "fp64_tensor": 256, "fp32": 256, "tf32": 2048, "bf16": 4096, "fp8": 8192, "int8": 8192},
    "GB100": {
        "fp64": 128, "fp64_tensor": 128, "fp32": 256, "tf32": 4096, "bf16": 8192, "fp8": 16384, "int8": 16384,
        "fp4": 32768,
    },
    "GB110": {"tf32": 4096, "bf16": 8192, "fp8": 16384, "fp4": 49152},
    "GB202": {"fp32": 256, "tf32": 512, "bf16": 1024, "fp8": 2048, "int8": 2048, "fp4": 4096},
    "GB202 GeForce": {
        "fp32": 256, "tf32": 256, "bf16": 512, "fp16_acc16": 1024, "fp8": 1024, "fp8_acc16": 2048, "int8": 2048,
        "fp4": 4096,
    },
    "CDNA2": {"fp64": 128, "fp64_tensor": 256, "fp32": 128, "fp32_tensor": 256, "bf16": 1024, "int8": 1024},
    "CDNA3": {
        "fp64": 128, "fp64_tensor": 256, "fp32": 256, "fp32_tensor": 256, "tf32": 1024, "bf16": 2048, "fp8_fnuz": 4096,
        "int8": 4096,
    },
    "CDNA4": {
        "fp64": 128, "fp64_tensor": 128, "fp32": 256, "fp32_tensor": 256, "bf16": 4096, "fp8": 8192, "int8": 8192,
        "fp4": 16384,
    },
    "Gaudi 2": {"bf16": 131072, "fp8": 262144},
    "Gaudi 3": {"fp32": 16384, "tf32": 32768, "fp16": 32768, "bf16": 131072, "fp8": 131072},
    "Xe-HPC": {"bf16": 512},
    # Of a matrix unit of 128 x 128 or 256 x 256 multiply-adds.
    "TPU v4": {"bf16": 32768, "int8": 32768},
    "TPU v5e": {"bf16": 32768, "int8": 65536},
    "TPU v5p": {"bf16": 32768, "fp8": 32768},
    "TPU v6e": {"bf16": 131072, "fp8": 131072, "int8": 262144},
    "TPU7x": {"bf16": 131072, "fp8": 262144},
    "NeuronCore-v2": {"tf32": 32768, "bf16": 32768, "int8": 65536},
    "NeuronCore-v3": {"tf32": 32768, "bf16": 32768, "fp8": 65536},
    "Apple GPU": {"fp32": 256},
}  # fmt: skip


SOURCES: dict[str, str] = {
    "ampere-in-depth": "NVIDIA, Ampere Architecture In-Depth (table of the A100 white paper)",
    "a100-datasheet": "NVIDIA A100 datasheet 2188504 (2022-05) and MIG guide",
    "a100-datasheet-r4": "NVIDIA A100 datasheet, fourth revision; T4 product page; Ada white paper, Table 5",
    "h100-whitepaper": "NVIDIA H100 Tensor Core GPU Architecture V1.04, Tables 1 and 3",
    "h100-page": "NVIDIA H100 product page, columns SXM and NVL",
    "h100-pcie-brief": "NVIDIA H100 PCIe GPU Product Brief PB-11133-001_v02",
    "h200-datasheet": "NVIDIA H200 datasheet 3512650 (November 2024)",
    "gh200-datasheet": "NVIDIA GH200 datasheet 2705455",
    "blackwell-datasheet": "NVIDIA Blackwell Datasheet 4204213 (October 2025), individual GPU specifications",
    "blackwell-brief": "NVIDIA Blackwell Architecture Technical Brief v2.1, Table 3",
    "blackwell-ultra": "NVIDIA Blackwell Ultra Datasheet (2025-10-02); Inside NVIDIA Blackwell Ultra",
    "rtx-pro-blackwell-whitepaper": "NVIDIA RTX Blackwell PRO GPU Architecture v1.0, Table 4",
    "rtx-blackwell-whitepaper": "NVIDIA RTX Blackwell GPU Architecture (GeForce), appendix A, Table 3",
    "ada-whitepaper": "NVIDIA Ada GPU Architecture v2.1, appendix A, Table 2",
    "ga102-whitepaper": "NVIDIA GA102 Architecture v2, Table 3 and appendix A",
    "l40s-page": "NVIDIA L40S product page",
    "l40-datasheet": "NVIDIA L40 datasheet",
    "l4-page": "NVIDIA L4 product page (figures with sparsity, one half lower without)",
    "a10-datasheet": "NVIDIA A10 datasheet",
    "a10g-datasheet": "NVIDIA A10G for AWS datasheet (2022-02-17)",
    "a40-datasheet": "astroC86/gpu-datasheet README.md, which links the A40 datasheet",
    "cdna3-whitepaper": "AMD CDNA 3 white paper, Table 2 and endnotes",
    "cdna4-whitepaper": "AMD CDNA 4 white paper, Table 2",
    "mi355x-datasheet": "AMD MI355X datasheet LE-92703-00",
    "mi350x-brochure": "AMD MI350X brochure LE-92701-00 C",
    "mi325x-datasheet": "AMD MI325X datasheet",
    "rocm-docs": "AMD ROCm documentation, conceptual/gpu-arch/mi300.md and mi250.md",
    "gaudi3-paper": "Intel Gaudi 3 AI Accelerator Technical Paper, July 2025, V1 Rev. 3, Table 1",
    "lightning": "Lightning-AI/pytorch-lightning src/lightning/fabric/utilities/throughput.py @0810121",
    "torchtitan": "pytorch/torchtitan torchtitan/tools/utils.py @0258167 (cites the vendor's optimization guide)",
    "inductor": "pytorch/pytorch torch/_inductor/analysis/device_info.py @00604d0 (cites the MI210 brochure)",
    "gpu-specs": "winston-zhang-orz/gpu-specs specs.md",
    "llm-viewer": "hahnyuan/LLM-Viewer hardwares/hardware_params.py",
    "llm-prof": "citsjtu2020/LLM-Prof hardware_spec.md",
    "ml-engineering": "stas00/ml-engineering compute/accelerator/README.md",
    "gpumap": "lamonoai/gpumap nvidia/GPU.md @8d5e174 (SMs, boost clock, bandwidth of GeForce cards)",
    "tpu-v4-page": "Google Cloud, TPU v4",
    "tpu-v5e-page": "Google Cloud, TPU v5e (an earlier copy prints 819 GB/s, that of 2026-08-26 800 GiB/s)",
    "tpu-v5p-page": "Google Cloud, TPU v5p (2026-08-26)",
    "tpu-v6e-page": "Google Cloud, TPU v6e (2026-08-26)",
    "tpu7x-page": "Google Cloud, TPU7x (2026-08-26): figures of a chip, which frameworks see as two devices",
    "trainium-page": "AWS Neuron documentation, Trainium Architecture (820 GB/s in 2.9.1, 820 GiB/s later)",
    "trainium2-page": "AWS Neuron documentation 2.29, Trainium2 Architecture",
    "metal-benchmarks": "philipturner/metal-benchmarks README.md (cores and clocks of Apple's GPUs)",
    "apple-m2-ultra": "Apple, newsroom 2023-06-05: Apple introduces M2 Ultra",
    "akunu": "akunu.prabod.rathnayaka.me, part 1, chapter 5 (bandwidths of the M1 family)",
    "nvidia-page": "NVIDIA RTX PRO 6000 Blackwell Server Edition page (BF16 1 PFLOP, rounded)",
}


Cell = float | Figure  # a bare number is a dense figure as the vendor prints it


def _figure(cell: Cell) -> Figure:
    return cell if isinstance(cell, Figure) else Figure(cell)


def _row(
    label: str,
    names: tuple[str, ...],
    arch: str,
    die: str,
    units: int | None,
    clocks_mhz: tuple[float | None, float | None],
    peaks: dict[str, Cell],
    bandwidth: Cell | None,
    memory: str | None,
    unit: str,
    sources: str,
    source_class: str,
    clock_is_inferred: bool = False,
    planning_only: bool = False,
) -> Accelerator:
    """A row; a key of `peaks` may name several formats that share a figure."""
    figures = {dtype: _figure(cell) for dtypes, cell in peaks.items() for dtype in dtypes.split()}
    return Accelerator(
        label, names, arch, die, units, clocks_mhz, figures, None if bandwidth is None else _figure(bandwidth),
        memory, unit, tuple(sources.split()), source_class, clock_is_inferred, planning_only,
    )  # fmt: skip


def _geforce(
    label: str, name: str, arch: str, die: str, units: int, clock_mhz: int, bandwidth: int, memory: str
) -> Accelerator:
    """A GeForce card between those whose figures were read: its units and clock at the rates of its architecture."""
    cells: dict[str, Cell] = {
        column: derived(round(units * rate * clock_mhz / 1e6, 1)) for column, rate in FLOP_PER_CLOCK[die].items()
    }
    peaks = {"fp16 bf16" if column == "bf16" else column: cell for column, cell in cells.items()}
    return _row(
        label, (f"NVIDIA GeForce {name}",), arch, die, units, (clock_mhz, clock_mhz), peaks, secondary(bandwidth),
        memory, "card", "gpumap", "S",
    )  # fmt: skip


def _apple(chip: str, cores: int, clock_mhz: int, bandwidth: int | None) -> Accelerator:
    """The GPU of an Apple chip, of which Apple prints neither peak nor clock. torch runs there, and names no device."""
    peaks: dict[str, Cell] = {"fp32": derived(round(cores * FLOP_PER_CLOCK["Apple GPU"]["fp32"] * clock_mhz / 1e6, 1))}
    return _row(
        f"Apple {chip}", (), f"Apple {chip.split(maxsplit=1)[0]}", "Apple GPU", cores, (clock_mhz, None), peaks,
        None if bandwidth is None else secondary(bandwidth), None, "chip", "metal-benchmarks akunu apple-m2-ultra", "S",
    )  # fmt: skip


_A100: dict[str, Cell] = {
    "fp64": 9.7, "fp64_tensor fp32": 19.5, "tf32": 156, "fp16 fp16_acc16 bf16": both(312, 624), "int8": 624,
}  # fmt: skip
_MI300X: dict[str, Cell] = {
    "fp64": 81.7, "fp64_tensor fp32 fp32_tensor": 163.4, "tf32": 653.7, "fp16 bf16": both(1307.4, 2614.9),
    "fp8_fnuz int8": 2614.9,
}  # fmt: skip
_HOPPER_NVL: dict[str, Cell] = {
    "fp64": 30, "fp64_tensor fp32": 60, "tf32": sparse(835), "fp16 fp16_acc16 bf16": sparse(1671),
    "fp8 int8": sparse(3341),
}  # fmt: skip
_GH200: dict[str, Cell] = {
    "tf32": both(494, 989), "fp16 fp16_acc16 bf16": both(990, 1979), "fp8": both(1979, 3958),
}  # fmt: skip
_H20: dict[str, Cell] = {"fp16 bf16": 148, "fp8 int8": 296}

_NVIDIA = (
    _row("V100 SXM2", ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), "7.0", "GV100", 80, (1530, 1530),
         {"fp64": 7.8, "fp32": 15.7, "fp16 fp16_acc16": 125, "int8": secondary(62)},
         900, "16 / 32 GB HBM2", "module", "ampere-in-depth llm-viewer", "P1"),
    _row("V100 PCIe", ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), "7.0", "GV100", 80, (1380, 1380),
         {"fp64": 7, "fp32": 14, "fp16 fp16_acc16": 112},
         secondary(900), "16 / 32 GB HBM2", "card", "lightning", "S"),
    _row("V100S PCIe", (), "7.0", "GV100", 80, (1597, 1597),
         {"fp64": 8.2, "fp32": 16.4, "fp16 fp16_acc16": 130},
         None, "32 GB HBM2", "card", "lightning", "S"),
    _row("T4", ("Tesla T4",), "7.5", "TU104", 40, (1590, 1590),
         {"fp32": 8.1, "fp16 fp16_acc16": 65, "int8": 130},
         320, "16 GB GDDR6", "card", "a100-datasheet-r4 lightning", "P2"),
    _row("A100 SXM4 40GB", ("NVIDIA A100-SXM4-40GB",), "8.0", "GA100", 108, (1410, 1410),
         _A100, 1555, "40 GB HBM2", "module", "ampere-in-depth", "P1"),
    _row("A100 SXM4 80GB", ("NVIDIA A100-SXM4-80GB",), "8.0", "GA100", 108, (1410, 1410),
         _A100, 2039, "80 GB HBM2e", "module", "a100-datasheet ampere-in-depth", "P2"),
    _row("A100 PCIe 40GB", ("NVIDIA A100-PCIE-40GB",), "8.0", "GA100", 108, (1410, 1410),
         _A100, 1555, "40 GB HBM2", "card", "a100-datasheet-r4 lightning", "P2"),
    _row("A100 PCIe 80GB", ("NVIDIA A100 80GB PCIe",), "8.0", "GA100", 108, (1410, 1410),
         _A100, 1935, "80 GB HBM2e", "card", "a100-datasheet", "P2"),
    _row("A800 SXM4 80GB", ("NVIDIA A800-SXM4-80GB",), "8.0", "GA100", None, (None, None),
         {"fp16 bf16": 312, "int8": 624},
         secondary(2039), "80 GB HBM2e", "module", "llm-prof", "S"),
    _row("A10", ("NVIDIA A10",), "8.6", "GA102", 72, (1695, 1695),
         {"fp32": secondary(31.2), "tf32": secondary(62.5), "fp16 bf16": both(125, 250), "int8": 250},
         600, "24 GB GDDR6", "card", "a10-datasheet gpu-specs", "P2"),
    # fp32 is left out: 31.5 is in circulation, the card's own 80 SMs and clock give 35.0.
    _row("A10G", ("NVIDIA A10G",), "8.6", "GA102 GeForce", 80, (1710, 1710),
         {"fp16 bf16": both(70, 140)},
         600, "24 GB GDDR6", "card", "a10g-datasheet", "P2", True),
    _row("A40", ("NVIDIA A40",), "8.6", "GA102", 84, (1740, 1740),
         {"fp32": 37.4, "tf32": 74.8, "fp16 bf16": both(149.7, 299.4), "int8": 299.4},
         696, "48 GB GDDR6", "card", "a40-datasheet", "S", True),
    _row("RTX A6000", ("NVIDIA RTX A6000",), "8.6", "GA102", 84, (1800, 1800),
         {"fp32": 38.7, "tf32": 77.4, "fp16 fp16_acc16 bf16": both(154.8, 309.6), "int8": 309.7},
         768, "48 GB GDDR6", "card", "rtx-pro-blackwell-whitepaper ga102-whitepaper", "P1"),
    _row("RTX 3090", ("NVIDIA GeForce RTX 3090",), "8.6", "GA102 GeForce", 82, (1695, 1695),
         {"fp32": 35.6, "tf32": derived(35.6), "fp16 bf16": both(71.2, 142.4), "fp16_acc16": 142, "int8": 284},
         936, "24 GB GDDR6X", "card", "ga102-whitepaper rtx-blackwell-whitepaper", "P2"),
    _geforce("RTX 3070", "RTX 3070", "8.6", "GA102 GeForce", 46, 1725, 448, "8 GB GDDR6"),
    # A later card of the same name has 12 GB, 70 SMs and 912 GB/s: its units, which the driver reports, tell it apart.
    _geforce("RTX 3080 10GB", "RTX 3080", "8.6", "GA102 GeForce", 68, 1710, 760, "10 GB GDDR6X"),
    _geforce("RTX 3090 Ti", "RTX 3090 Ti", "8.6", "GA102 GeForce", 84, 1860, 1008, "24 GB GDDR6X"),
    _geforce("RTX 4070 Ti", "RTX 4070 Ti", "8.9", "AD102 GeForce", 60, 2610, 504, "12 GB GDDR6X"),
    _geforce("RTX 4080", "RTX 4080", "8.9", "AD102 GeForce", 76, 2505, 717, "16 GB GDDR6X"),
    _row("RTX 4090", ("NVIDIA GeForce RTX 4090",), "8.9", "AD102 GeForce", 128, (2520, 2520),
         {"fp32": 82.6, "tf32": derived(82.6), "fp16 bf16": both(165.2, 330.4), "fp16_acc16": 330.3,
          "fp8": both(330.3, 660.6), "fp8_acc16 int8": 660.6},
         1008, "24 GB GDDR6X", "card", "ada-whitepaper rtx-blackwell-whitepaper", "P2"),
    _row("RTX 6000 Ada", ("NVIDIA RTX 6000 Ada Generation",), "8.9", "AD102", 142, (2505, 2505),
         {"fp32": 91.1, "tf32": 182.1, "fp16 fp16_acc16 bf16": both(364, 728), "fp8 fp8_acc16": both(728.5, 1457),
          "int8": 728.5},
         960, "48 GB GDDR6", "card", "rtx-pro-blackwell-whitepaper", "P1"),
    _row("L4", ("NVIDIA L4",), "8.9", "AD102", 58, (2040, 2040),
         {"fp64": secondary(0.49), "fp32": 30.3, "tf32": 60, "fp16 bf16": sparse(242), "fp8 int8": sparse(485)},
         300, "24 GB GDDR6", "low-profile card", "l4-page gpu-specs", "P2", True),
    _row("L40", ("NVIDIA L40",), "8.9", "AD102 GeForce", 142, (2490, 2490),
         {"fp16 bf16": both(181.05, 362.1)},
         None, "48 GB GDDR6", "card", "l40-datasheet", "P2"),
    _row("L40S", ("NVIDIA L40S",), "8.9", "AD102", 142, (2520, 2490),
         {"fp64": secondary(1.4), "fp32": 91.6, "tf32": 183, "fp16 bf16": both(362.05, 733), "fp8 int8": 733},
         864, "48 GB GDDR6", "card", "l40s-page", "P2"),
    _row("H100 SXM5 80GB", ("NVIDIA H100 80GB HBM3",), "9.0", "GH100", 132, (1980, 1830),
         {"fp64": 33.5, "fp64_tensor fp32": 66.9, "tf32": 494.7, "fp16 fp16_acc16 bf16": both(989.4, 1978.9),
          "fp8 int8": 1978.9},
         3350, "80 GB HBM3", "module", "h100-whitepaper h100-page", "P2"),
    _row("H100 PCIe 80GB", ("NVIDIA H100 PCIe",), "9.0", "GH100", 114, (1755, 1620),
         {"fp64": 25.6, "fp64_tensor fp32": 51.2, "tf32": 378, "fp16 fp16_acc16 bf16": both(756, 1513),
          "fp8 int8": both(1513, 3026)},
         2000, "80 GB HBM2e", "card", "h100-whitepaper h100-pcie-brief", "P2"),
    _row("H100 NVL 94GB", ("NVIDIA H100 NVL",), "9.0", "GH100", 132, (1785, 1545),
         _HOPPER_NVL, 3900, "94 GB HBM3", "card (sold in pairs)", "h100-page", "P2", True),
    _row("H200 SXM 141GB", ("NVIDIA H200",), "9.0", "GH100", 132, (None, 1830),
         {"fp64": 34, "fp64_tensor fp32": 67, "tf32": sparse(989), "fp16 fp16_acc16 bf16": sparse(1979),
          "fp8 int8": sparse(3958)},
         4800, "141 GB HBM3e", "module", "h200-datasheet", "P2", True),
    _row("H200 NVL 141GB", ("NVIDIA H200 NVL",), "9.0", "GH100", 132, (1785, 1545),
         _HOPPER_NVL, 4800, "141 GB HBM3e", "card", "h200-datasheet", "P2", True),
    _row("GH200 96GB", ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"), "9.0", "GH100", 132, (1980, None),  # host sizes
         {"fp32": derived(66.9), **_GH200},
         secondary(4000), "96 GB HBM3", "Hopper half of the superchip", "gh200-datasheet", "P2", True),
    _row("GH200 144GB", ("NVIDIA GH200 144G HBM3e",), "9.0", "GH100", 132, (None, 1830),
         _GH200, secondary(4800), "144 GB HBM3e", "Hopper half of the superchip", "gh200-datasheet", "P2", True),
    _row("H800 SXM", ("NVIDIA H800",), "9.0", "GH100", None, (None, None),
         {"fp16 bf16": sparse(1979), "fp8 int8": 1979},
         secondary(3350), "80 GB HBM3", "module", "llm-prof a40-datasheet", "S"),
    # 148 is 78 SMs times no plausible clock at 4096 FLOP: the unit is cut, and the figure cannot be re-derived.
    _row("H20", ("NVIDIA H20",), "9.0", "GH100", None, (None, None),
         _H20, secondary(4022), "96 GB HBM3", "module", "llm-prof ml-engineering", "S"),
    _row("H20-3e", ("NVIDIA H20-3e",), "9.0", "GH100", None, (None, None),
         _H20, secondary(4800), "141 GB HBM3e", "module", "llm-prof ml-engineering", "S"),
    # 2.2 PF of sparse TF32 is rounded: half of it is 2.3 % below half of bf16.
    _row("B200", ("NVIDIA B200",), "10.0", "GB100", 148, (1965, 1856),
         {"fp64 fp64_tensor": 37, "fp32": 75, "tf32": sparse(2200), "fp16 bf16": sparse(4500), "fp8 int8": sparse(9000),
          "fp4": sparse(18000)},
         7700, "180 GB HBM3e", "two dies, one device", "blackwell-datasheet blackwell-brief", "P2", True),
    _row("GB200", ("NVIDIA GB200",), "10.0", "GB100", None, (None, None),
         {"fp64 fp64_tensor": 40, "fp32": 80, "tf32": sparse(2500), "fp16 bf16": sparse(5000),
          "fp8 int8": sparse(10000), "fp4": sparse(20000)},
         8000, "186 GB HBM3e", "one GPU of the superchip", "blackwell-datasheet", "P2"),
    # fp4 is not half of the sparse figure, and the integer units are cut (0.150 to 0.1535 POPS).
    _row("B300 SXM6", ("NVIDIA B300 SXM6 AC",), "10.3", "GB110", 148, (None, 1856),
         {"fp64 fp64_tensor": 1.2, "fp32": 75, "tf32": sparse(2200), "fp16 bf16": sparse(4500), "fp8": sparse(9000),
          "int8": 150, "fp4": both(14000, 18000)},
         7700, "270 / 288 GB HBM3e", "two dies, one device", "blackwell-brief blackwell-ultra", "P2", True),
    _row("GB300", ("NVIDIA GB300",), "10.3", "GB110", None, (None, None),
         {"fp16 bf16": secondary(2500), "fp4": both(15000, 20000)},
         8000, "279 GB HBM3e", "one GPU of the superchip", "blackwell-ultra ml-engineering", "P2"),
    _row("RTX 5090", ("NVIDIA GeForce RTX 5090",), "12.0", "GB202 GeForce", 170, (2407, 2407),
         {"fp32 tf32": derived(104.8), "fp16 bf16": both(209.5, 419), "fp16_acc16": 419, "fp8": both(419, 838),
          "fp8_acc16": 838, "int8": derived(838), "fp4": both(1676, 3352)},
         1792, "32 GB GDDR7", "card", "rtx-blackwell-whitepaper", "P2"),
    _geforce("RTX 5070", "RTX 5070", "12.0", "GB202 GeForce", 48, 2512, 672, "12 GB GDDR7"),
    _geforce("RTX 5070 Ti", "RTX 5070 Ti", "12.0", "GB202 GeForce", 70, 2452, 896, "16 GB GDDR7"),
    _geforce("RTX 5080", "RTX 5080", "12.0", "GB202 GeForce", 84, 2617, 960, "16 GB GDDR7"),
    _row("RTX PRO 6000 Blackwell Workstation", ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
         "12.0", "GB202", 188, (2617, 2617),
         {"fp32": 126.0, "tf32": 251.9, "fp16 fp16_acc16 bf16": both(503.8, 1007.6), "fp8 fp8_acc16 int8": 1007.6,
          "fp4": both(2015.2, 4030.4)},
         1792, "96 GB GDDR7", "card", "rtx-pro-blackwell-whitepaper", "P1"),
    _row("RTX PRO 6000 Blackwell Max-Q", ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
         "12.0", "GB202", 188, (2280, 2280),
         {"fp32": 109.7, "tf32": 219.5, "fp16 fp16_acc16 bf16": both(438.9, 877.9), "fp8 fp8_acc16 int8": 877.9,
          "fp4": 1755.7},
         1792, "96 GB GDDR7", "card", "rtx-pro-blackwell-whitepaper", "P1"),
    _row("RTX PRO 6000 Blackwell Server", ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
         "12.0", "GB202", None, (None, None),
         {"fp16 bf16": sparse(1000)},  # printed as "1 PFLOP"
         secondary(1597), "96 GB GDDR7", "card", "nvidia-page", "S"),
)  # fmt: skip

_AMD = (
    # One string for two cards: the number of CUs decides. Figures are of the card, which holds two devices.
    _row("MI250X", ("AMD Instinct MI250X/MI250", "AMD Instinct MI250X / MI250", "AMD Instinct MI250X"),
         "gfx90a", "CDNA2", 110, (1700, 1700),
         {"fp64 fp32": card(47.9), "fp64_tensor fp32_tensor": card(95.7), "fp16 bf16 int8": card(383.0)},
         card(3277), "64 GB HBM2e per device", "die (half of a card)", "cdna3-whitepaper rocm-docs", "P1"),
    _row("MI250", ("AMD Instinct MI250X/MI250", "AMD Instinct MI250X / MI250"), "gfx90a", "CDNA2", 104, (1700, 1700),
         {"fp64 fp32": card(45.3), "fp64_tensor fp32_tensor": card(90.5), "fp16 bf16 int8": card(362.1)},
         card(3200), "64 GB HBM2e per device", "die (half of a card)", "rocm-docs", "P1"),
    _row("MI210", ("AMD Instinct MI210",), "gfx90a", "CDNA2", 104, (1700, 1700),
         {"fp64 fp32": derived(22.6), "fp64_tensor fp32_tensor": 45.3, "fp16 bf16 int8": 181.0},
         1600, "64 GB HBM2e", "card", "inductor", "S"),
    _row("MI300A", ("AMD Instinct MI300A",), "gfx942", "CDNA3", 228, (2100, 2100),
         {"fp64": 61.3, "fp64_tensor fp32 fp32_tensor": 122.6, "tf32": 490.3, "fp16 bf16": both(980.6, 1961.2),
          "fp8_fnuz int8": 1961.2},
         5300, "128 GB HBM3", "APU", "cdna3-whitepaper", "P1"),
    _row("MI300X", ("AMD Instinct MI300X", "AMD Instinct MI300X VF"), "gfx942", "CDNA3", 304, (2100, 2100),
         _MI300X, 5300, "192 GB HBM3", "OAM module", "cdna3-whitepaper rocm-docs", "P1"),
    _row("MI325X", ("AMD Instinct MI325X", "AMD Instinct MI325X VF", "AMD Instinct Mi325X VF"),
         "gfx942", "CDNA3", 304, (2100, 2100),
         _MI300X, 6000, "256 GB HBM3E", "OAM module", "cdna3-whitepaper mi325x-datasheet", "P1"),
    _row("MI350X", ("AMD Instinct MI350X", "AMD Instinct MI350X VF"), "gfx950", "CDNA4", 256, (2200, 2200),
         {"fp64 fp64_tensor": 72.1, "fp32 fp32_tensor": 144.2, "fp16 bf16": both(2300, 4600), "fp8 int8": 4614,
          "fp4": 9227.5},
         8000, "288 GB HBM3E", "OAM module", "cdna4-whitepaper mi350x-brochure", "P1"),
    _row("MI355X", ("AMD Instinct MI355X", "AMD Instinct MI355X VF"), "gfx950", "CDNA4", 256, (2400, 2400),
         {"fp64 fp64_tensor": 78.6, "fp32 fp32_tensor": 157.3, "fp16 bf16": both(2516.6, 5033.2), "fp8 int8": 5033.2,
          "fp4": 10066.3},
         8000, "288 GB HBM3E", "OAM module", "cdna4-whitepaper mi355x-datasheet", "P1"),
)  # fmt: skip

_INTEL = (
    _row("Gaudi 2", ("GAUDI2",), "Gaudi 2", "Gaudi 2", 2, (1650, 1650),
         {"bf16": 432, "fp8": 865},
         2460, "96 GB HBM2E", "module", "gaudi3-paper", "P1"),
    # 1835 of the 2024 white paper needs 1750 MHz, the secondary figures too; the paper of 2025 prints 1678.
    _row("Gaudi 3", ("GAUDI3",), "Gaudi 3", "Gaudi 3", 8, (1600, 1600),
         {"fp32": secondary(229), "tf32 fp16": secondary(459), "bf16 fp8": 1678},
         3700, "128 GB HBM2E", "module", "gaudi3-paper ml-engineering", "P1"),
    _row("Max 1550 (448 EU)", ("Intel(R) Data Center GPU Max 1550",), "Xe-HPC", "Xe-HPC", 448, (1300, 1300),
         {"fp16 bf16": 298.2},
         None, None, "tile", "torchtitan", "S"),
    _row("Max 1550 (512 EU)", ("Intel(R) Data Center GPU Max 1550",), "Xe-HPC", "Xe-HPC", 512, (1300, 1300),
         {"fp16 bf16": 340.8},
         None, None, "tile", "torchtitan", "S"),
)  # fmt: skip

_PLANNING = (
    _row("TPU v4", (), "TPU v4", "TPU v4", None, (None, None), {"bf16 int8": 275}, 1200, "32 GB HBM", "chip",
         "tpu-v4-page", "P1", planning_only=True),
    _row("TPU v5e", (), "TPU v5e", "TPU v5e", None, (None, None), {"bf16": 197, "int8": 393}, 819, "16 GB HBM", "chip",
         "tpu-v5e-page", "P1", planning_only=True),
    _row("TPU v5p", (), "TPU v5p", "TPU v5p", None, (None, None), {"bf16 fp8": 459}, 2765, "95 GB HBM", "chip",
         "tpu-v5p-page", "P1", planning_only=True),
    _row("TPU v6e", (), "TPU v6e", "TPU v6e", None, (None, None), {"bf16 fp8": 918, "int8": 1836}, 1638, "32 GB HBM",
         "chip", "tpu-v6e-page tpu7x-page", "P1", planning_only=True),
    _row("TPU7x", (), "TPU7x", "TPU7x", None, (None, None), {"bf16": card(2307), "fp8": card(4614)}, card(7380),
         "96 GB HBM per device", "chiplet (half of a chip)", "tpu7x-page", "P1", planning_only=True),
    _row("Trainium", (), "Trainium", "NeuronCore-v2", None, (None, None),
         {"fp32_tensor": 47.5, "tf32 fp16 bf16": 190, "int8": 380}, 820, "32 GB HBM", "chip", "trainium-page", "P1",
         planning_only=True),
    _row("Trainium2", (), "Trainium2", "NeuronCore-v3", 8, (None, 2544),
         {"fp32_tensor": 181, "tf32 fp16 bf16": 667, "fp8": 1299}, 2900, "96 GB HBM", "chip", "trainium2-page", "P1",
         True, planning_only=True),
    # Their peak in half precision is the same, in bf16 and of matrix products not settled; of later chips none is.
    _apple("M1", 8, 1278, 68),
    _apple("M1 Pro", 16, 1296, 200),
    _apple("M1 Max", 32, 1296, 400),
    _apple("M1 Ultra", 64, 1296, 800),
    _apple("M2", 10, 1398, None),
    _apple("M2 Pro", 19, 1398, None),
    _apple("M2 Max", 38, 1398, 400),
    _apple("M2 Ultra", 76, 1398, 800),
)  # fmt: skip

ROWS: tuple[Accelerator, ...] = (*_NVIDIA, *_AMD, *_INTEL, *_PLANNING)


class CpuPath(NamedTuple):
    """FLOPs per cycle of one core (or of one unit that a cluster of cores shares) on one kind of instruction."""

    label: str
    requires: tuple[
        str, ...
    ]  # features as `torch.cpu.get_capabilities()` names them; empty: no feature tells this core
    fma_units_512: int | None  # the number of 512-bit units that the figures are for; None: they do not depend on it
    flops_per_cycle: dict[str, int | None]  # None: the path exists, its rate is not settled
    evidence: str
    kind: str  # vendor | measured | derived
    per: str = "core"


CPU_PATHS: tuple[CpuPath, ...] = (
    CpuPath("AVX2 + FMA", ("avx2", "fma3"), None, {"fp32": 32, "fp64": 16},
            "2 x 256 bit; cpufp: Zen 4 163.57 GF at 5.11 GHz, Zen 5 177.1 at 5.54 GHz", "measured"),
    CpuPath("AVX-VNNI", ("avx2", "avx_vnni"), None, {"int8": 128}, "2 x 256 bit; cpufp", "measured"),
    CpuPath("AVX-512, two units", ("avx512_f",), 2, {"fp32": 64, "fp64": 32},
            "Intel authors, DeepSpeed blog on 4th-generation Xeon: 64 operations per cycle", "vendor"),
    CpuPath("AVX-512 VNNI, two units", ("avx512_vnni",), 2, {"int8": 256},
            "Intel authors, DeepSpeed blog on 4th-generation Xeon", "vendor"),
    CpuPath("AVX-512, one unit or double-pumped", ("avx512_f",), 1, {"fp32": 32, "fp64": 16},
            "cpufp: Zen 4 163.58 GF, the same as with AVX2", "measured"),
    CpuPath("AVX-512 VNNI, one unit", ("avx512_vnni",), 1, {"int8": 128}, "half of two units", "derived"),
    CpuPath("AVX512_BF16, two units", ("avx512_bf16",), 2, {"bf16": 128},
            "cpufp: Zen 5 708.2 GF at 5.53 GHz; Sapphire Rapids reaches only 32", "measured"),
    CpuPath("AVX512_BF16, one unit", ("avx512_bf16",), 1, {"bf16": 64},
            "cpufp: Zen 4 324.9 GF at 5.08 GHz", "measured"),
    CpuPath("AVX512_FP16", ("avx512_fp16",), 2, {"fp16": 128},
            "fp16 accumulate; cpufp: Xeon W9-3495X 355.8 GF at 2.78 GHz", "measured"),
    CpuPath("AMX-BF16", ("amx_bf16",), None, {"bf16": 1024},
            "Intel authors, DeepSpeed blog; cpufp: 2.845 TF at 2.78 GHz", "vendor"),
    CpuPath("AMX-INT8", ("amx_int8",), None, {"int8": 2048},
            "Intel authors, DeepSpeed blog; cpufp: 5.69 TOPS at 2.78 GHz", "vendor"),
    CpuPath("AMX-FP16", ("amx_fp16",), None, {"fp16": None}, "no source for its throughput", "derived"),
    CpuPath("Neoverse N1, N2", (), None, {"fp32": 16, "fp64": 8, "fp16": 32}, "2 x 128 bit NEON", "derived"),
    # Measured with NEON at about 2.6 GHz: fp32 16, not the 32 of its SVE width: not settled.
    CpuPath("Neoverse V1", (), None, {"fp32": None, "fp64": None, "bf16": 64, "fp16": 32, "int8": 128},
            "cpufp: Graviton 3E with bfmmla, NEON and smmla", "measured"),
    CpuPath("Neoverse V2", (), None, {"fp32": 32, "fp64": 16, "fp16": 64}, "4 x 128 bit SVE2", "derived"),
    CpuPath("Apple M4 performance core", (), None, {"fp32": 32, "fp64": 16, "fp16": 64}, "4 x 128 bit NEON", "derived"),
    CpuPath("Apple M4 SME", (), None, {"fp32": 512, "fp64": 128},
            "reverse-engineered: 2009 GF fp32, 503 GF fp64 in the performance cluster", "measured", "cluster"),
)  # fmt: skip
