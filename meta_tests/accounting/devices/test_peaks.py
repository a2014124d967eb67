"""The peak table is right: physics, the vendors' own ratios and a second transcription, each able to fail.

Each check is a function from a row to its violations, so that it can also be run over a table with one cell perturbed.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from accounting.devices import ACCELERATORS, device_named, nominal_clock_mhz, peaks
from accounting.devices.peaks import CPU_PATHS, FLOP_PER_CLOCK, ROWS, SOURCES, Accelerator, Figure
from accounting.devices.rates import _FP16_ACCUMULATE_COLUMNS, _MATRIX_COLUMNS, _VECTOR_COLUMNS, AT_VECTOR_CLOCK
from meta_tests.conftest import recorded

# Figures that units · FLOP per clock · clock misses by more than the rounding of what is printed, and by how much.
RE_DERIVATION_EXCEPTIONS = {
    ("V100 PCIe", "fp16"): (0.010, "the clock is secondary"),
    ("V100 PCIe", "fp16_acc16"): (0.010, "the clock is secondary"),
    ("V100S PCIe", "fp16"): (0.007, "the clock is secondary"),
    ("V100S PCIe", "fp16_acc16"): (0.007, "the clock is secondary"),
    ("V100 SXM2", "int8"): (0.011, "secondary, rounded down"),
    ("L4", "fp64"): (0.036, "secondary"),
    ("L4", "tf32"): (0.010, "half of a rounded 120"),
    ("L40S", "tf32"): (0.012, "at 2520 MHz, as its fp8; the 16-bit formats are at 2490"),
    ("L40S", "fp8"): (0.013, "at 2520 MHz"),
    ("L40S", "int8"): (0.013, "at 2520 MHz"),
    ("B200", "fp32"): (0.008, "rounded up to 75"),
    ("B200", "tf32"): (0.023, "2.2 PF sparse is rounded: 1.1, where half of bf16 is 1.125"),
    ("B300 SXM6", "tf32"): (0.023, "2.2 PF sparse is rounded"),
    ("B300 SXM6", "fp4"): (0.037, "14 PF printed, 108 PF for eight"),
    ("Trainium2", "fp8"): (0.027, "printed, a little below twice its bf16"),
    ("Gaudi 3", "fp32"): (0.094, "secondary, at the 1750 MHz of an earlier paper"),
    ("Gaudi 3", "tf32"): (0.095, "secondary, at 1750 MHz"),
    ("Gaudi 3", "fp16"): (0.095, "secondary, at 1750 MHz"),
}
SPARSE_PER_DENSE = {  # where it is not 2, or what is printed is rounded to hundreds
    ("MI350X", "fp16"): (2, "2.3 and 4.6 PF are printed"),
    ("MI350X", "bf16"): (2, "as fp16"),
    ("L40S", "fp16"): (733 / 362.05, "the sparse figure is at 2520 MHz, the dense one at 2490"),
    ("L40S", "bf16"): (733 / 362.05, "as fp16"),
    ("B300 SXM6", "fp4"): (18 / 14, "both printed, in PF"),
    ("GB300", "fp4"): (20 / 15, "both printed, in PF"),
}
BANDWIDTH_RANGE = {  # GB/s that boards with this memory have had
    "HBM": (800, 8100),  # whose kind is not stated
    "GDDR6": (250, 1000),
    "GDDR6X": (500, 1100),
    "GDDR7": (650, 1800),
    "HBM2": (850, 1600),
    "HBM2e": (1600, 3800),
    "HBM3": (3000, 5400),
    "HBM3e": (4700, 8100),
}


def slowest_to_fastest(figures: dict[str, Figure]) -> Iterator[tuple[str, str]]:
    """Pairs of columns of which the first is never above the second."""
    ladder = ["fp64", "fp32", "tf32", "bf16", "fp8", "fp4"]
    present = [column for column in ladder if column in figures]
    yield from pairwise(present)
    for narrow, wide in [
        ("fp64", "fp64_tensor"),
        ("fp64_tensor", "fp32_tensor" if "fp32_tensor" in figures else "fp32"),
        ("fp32", "fp32_tensor"),
        ("fp32_tensor", "tf32"),
        ("fp16", "fp16_acc16"),
        ("fp8", "fp8_acc16"),
        ("bf16", "fp8_fnuz"),
    ]:
        if narrow in figures and wide in figures:
            yield narrow, wide


def rounding(figure: Figure) -> float:
    """Half a unit in the last printed digit."""
    decimals = len(str(figure.printed).partition(".")[2]) if isinstance(figure.printed, float) else 0
    return 0.5 / 10**decimals / figure.divisor


def flop_per_clock(row: Accelerator, column: str) -> int | None:
    """What one unit of the row's die does per clock; the 16-bit formats share a rate unless the die says otherwise."""
    rates = FLOP_PER_CLOCK.get(row.die, {})
    for name in (column, column.removesuffix("_acc16"), "bf16" if column.startswith("fp16") else column):
        if name in rates:
            return rates[name]
    return None


def re_derived(row: Accelerator, column: str) -> float | None:
    """TFLOP/s from units · FLOP per clock · clock, or None where one of them is not known."""
    clock_mhz, rate = nominal_clock_mhz(row, column), flop_per_clock(row, column)
    if row.units is None or clock_mhz is None or rate is None:
        return None
    return row.units * rate * clock_mhz / 1e6


def re_derivation_violations(row: Accelerator) -> list[str]:
    """Figures that units · FLOP per clock · clock does not give."""
    found = []
    for column, figure in row.peaks.items():
        expected = re_derived(row, column)
        if expected is None:
            continue
        share = RE_DERIVATION_EXCEPTIONS.get((row.label, column), (0.005, ""))[0]
        if abs(figure.value - expected) > max(share * figure.value, rounding(figure)):
            found.append(f"{row.label} {column} is {figure.value:g}, but units x rate x clock gives {expected:.5g}")
    return found


def ratio_violations(row: Accelerator) -> list[str]:
    """Formats whose ratio to the 16-bit one is not that of the die; holds without knowing units or clock."""
    base, base_rate = row.peaks.get("bf16", row.peaks.get("fp16")), flop_per_clock(row, "bf16")
    found = []
    for column, figure in row.peaks.items():
        rate = flop_per_clock(row, column)
        vector = AT_VECTOR_CLOCK.intersection({column})
        if base is None or base_rate is None or rate is None or vector:
            continue
        share = 0.005 + RE_DERIVATION_EXCEPTIONS.get((row.label, column), (0.0, ""))[0]
        expected = base.value * rate / base_rate
        if abs(figure.value - expected) > max(share * expected, 2 * rounding(figure)):
            found.append(f"{row.label} {column} is {figure.value:g}, but {rate / base_rate:g} x 16-bit is {expected:g}")
    return found


def sparsity_violations(row: Accelerator, exceptions=SPARSE_PER_DENSE) -> list[str]:
    """Dense figures that are not half of the sparse one printed beside them."""
    found = []
    for column, figure in row.peaks.items():
        factor = exceptions.get((row.label, column), (2, ""))[0]
        expected = None if (row.label, column) in exceptions else re_derived(row, column)
        if figure.sparse is None:
            continue
        if expected is None:
            expected, allowed = figure.value, max(0.005 * figure.value, rounding(figure))
        else:
            own = figure._replace(printed=figure.sparse, divisor=2)
            allowed = max(3e-4 * figure.sparse, rounding(own))
        if abs(figure.sparse / factor - expected) > allowed:
            found.append(f"{row.label} {column}: {figure.sparse:g} sparse is not {factor:g} x {figure.value:g} dense")
    return found


def order_violations(row: Accelerator) -> list[str]:
    """Narrower formats that are slower than wider ones, and integers far faster than the 16-bit floats."""
    found = [
        f"{row.label}: {slower} {row.peaks[slower].value:g} is above {faster} {row.peaks[faster].value:g}"
        for slower, faster in slowest_to_fastest(row.peaks)
        if row.peaks[slower].value > row.peaks[faster].value
    ]
    if {"int8", "bf16"} <= set(row.peaks) and row.peaks["int8"].value > 4.01 * row.peaks["bf16"].value:
        found.append(f"{row.label}: int8 {row.peaks['int8'].value:g} is above 4 x bf16 {row.peaks['bf16'].value:g}")
    return found


def range_violations(row: Accelerator) -> list[str]:
    """Figures that no such board has: bandwidth, clock, FLOPs per byte of bandwidth."""
    found = []
    if row.bandwidth is not None and row.memory is not None:
        kind = row.memory.replace("HBM2E", "HBM2e").replace("HBM3E", "HBM3e").split(" GB ")[1].split()[0]
        low, high = BANDWIDTH_RANGE[kind]
        if not low <= row.bandwidth.printed <= high:
            found.append(f"{row.label}: {row.bandwidth.printed:g} GB/s is no bandwidth of {kind} ({low} to {high})")
    fastest = row.peaks.get("bf16") or row.peaks.get("fp16") or row.peaks.get("fp32")
    if row.bandwidth is not None and fastest is not None:
        ridge = fastest.value * 1e3 / row.bandwidth.value
        least = 15 if row.die == "Apple GPU" else 30  # its peak is that of fp32 alone
        if not least <= ridge <= 700:
            found.append(f"{row.label}: a ridge point of {ridge:.0f} FLOP per byte")
    found += [f"{row.label}: a clock of {c} MHz" for c in row.clocks_mhz if c is not None and not 1200 <= c <= 2800]
    return found


def printed_figures(row: Accelerator) -> dict[str, tuple[float, str]]:
    """The row as the second transcription has it: what is printed, and as what."""
    figures = {column: (figure.printed, figure.kind) for column, figure in row.peaks.items()}
    if row.bandwidth is not None:
        figures["bandwidth"] = (row.bandwidth.printed, row.bandwidth.kind)
    numbers = {"units": row.units, "vector_clock_mhz": row.clocks_mhz[0], "matrix_clock_mhz": row.clocks_mhz[1]}
    return figures | {name: (number, "") for name, number in numbers.items() if number is not None}


def transcribed(entry: str) -> Iterator[tuple[str, tuple[float, str]]]:
    """The figures of one device, each with its kind."""
    for cell in entry.split(", "):
        quantity, printed, *kind = cell.split(" ")
        is_rate = quantity not in ("units", "vector_clock_mhz", "matrix_clock_mhz")
        yield quantity, (float(printed), *(kind or ["dense" if is_rate else ""]))


# The vendors' figures written down a second time, apart from the table.
TRANSCRIPTION = {device: dict(transcribed(entry)) for device, entry in recorded("peaks.txt").items()}


def transcription_violations(row: Accelerator) -> list[str]:
    """Cells that differ from the second transcription; a device that is in it has all its figures in both."""
    if row.label not in TRANSCRIPTION:
        return []  # added since: its figures follow from units, clock and the rate of its die
    table, second = printed_figures(row), dict(TRANSCRIPTION[row.label])
    if "vector_clock_mhz" not in second and row.clocks_mhz[0] is not None:
        second["vector_clock_mhz"] = second["matrix_clock_mhz"]  # written down twice only where there are two
    found = [
        f"{row.label} {quantity} is {table.get(quantity)}, but the second transcription has {cell}"
        for quantity, cell in second.items()
        if table.get(quantity) != cell
    ]
    unprotected = set(table) - set(second)
    return found + [f"{row.label} {quantity} is missing from the second transcription" for quantity in unprotected]


BUS = {  # of boards with GDDR: bits, Gbit/s of a pin
    "T4": (256, 10), "A10": (384, 12.5), "A10G": (384, 12.5), "A40": (384, 14.5), "RTX A6000": (384, 16),
    "RTX 3070": (256, 14), "RTX 3080 10GB": (320, 19), "RTX 3090": (384, 19.5), "RTX 3090 Ti": (384, 21),
    "RTX 4070 Ti": (192, 21), "RTX 4080": (256, 22.4), "RTX 4090": (384, 21), "RTX 6000 Ada": (384, 20),
    "L4": (192, 12.5), "L40S": (384, 18), "RTX 5070": (192, 28), "RTX 5070 Ti": (256, 28), "RTX 5080": (256, 30),
    "RTX 5090": (512, 28), "RTX PRO 6000 Blackwell Workstation": (512, 28), "RTX PRO 6000 Blackwell Max-Q": (512, 28),
}  # fmt: skip
CORES = {  # of GeForce cards whose other figures are derived: cores, of which a unit has 128, and TFLOP/s in fp32
    "RTX 3070": (5888, 20.3), "RTX 3080 10GB": (8704, 29.8), "RTX 3090 Ti": (10752, 40.0), "RTX 4070 Ti": (7680, 40.1),
    "RTX 4080": (9728, 48.7), "RTX 5070": (6144, 30.9), "RTX 5070 Ti": (8960, 43.9), "RTX 5080": (10752, 56.3),
}  # fmt: skip


def board_violations(row: Accelerator) -> list[str]:
    """Boards whose memory is not what its bus of 32 bits a chip gives, or whose units are not the printed cores."""
    found = []
    if row.label in BUS:
        bits, rate = BUS[row.label]
        if abs(row.bandwidth.printed - bits * rate / 8) > 0.5:
            found.append(f"{row.label}: {bits} bits at {rate} Gbit/s are not {row.bandwidth.printed:g} GB/s")
        if float(row.memory.split()[0]) / (bits // 32) not in (1, 2, 4, 6):
            found.append(f"{row.label}: {bits // 32} chips have no {row.memory}")
    if row.label in CORES:
        cores, printed = CORES[row.label]
        if row.units * 128 != cores or any(abs(2 * cores * c / 1e6 - printed) > 0.05 for c in row.clocks_mhz):
            found.append(f"{row.label}: {row.units} units at {row.clocks_mhz} MHz are not {cores} cores, {printed} TF")
    return found


NAMES = {label: tuple(names.split(" | ")) for label, names in recorded("device_names.txt").items()}


def name_violations(row: Accelerator) -> list[str]:
    """Names that torch does not give the device, and an architecture that is not what it is called."""
    names = NAMES.get(row.label, row.names)  # of a row that is new
    found = [] if row.names == names else [f"{row.label} is called {names} by torch"]
    if (row.planning_only or row.die == "Apple GPU") and not row.label.startswith(row.arch):
        found.append(f"{row.label} has the architecture {row.arch}")
    return found


PHYSICAL = (re_derivation_violations, ratio_violations, sparsity_violations, order_violations, range_violations)
CHECKS = (*PHYSICAL, board_violations, name_violations, transcription_violations)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removesuffix("_violations"))
def test_no_row_of_the_table_violates(check):
    violations = [violation for row in ROWS for violation in check(row)]
    assert not violations, "\n".join(violations)


def test_every_device_names_a_die_whose_rates_are_known():
    unknown = {row.label: row.die for row in ROWS if row.die not in FLOP_PER_CLOCK}
    assert not unknown, f"these name a die that flop_per_clock in accounting/devices/peaks.json lacks: {unknown}"


def test_a_row_has_the_sizes_of_memory_that_its_label_names_and_a_figure_is_dense_unless_it_says():
    sizes = {label: [size / 2**30 for size in ACCELERATORS[label].memory_sizes] for label in ("V100 SXM2", "L4")}
    assert sizes == {"V100 SXM2": [16, 32], "L4": [24]}
    assert ACCELERATORS["L4"]._replace(memory=None).memory_sizes == []
    assert Figure(125) == Figure(125, 1, "dense")


def test_figures_are_of_known_kinds_and_columns():
    kinds = {figure.kind for row in ROWS for figure in row.peaks.values()}
    assert kinds == {"dense", "sparse", "card", "derived", "secondary"}
    units = {row.unit.partition(" (")[0] for row in ROWS}
    boards = {"module", "card", "low-profile card", "OAM module", "APU", "chip", "tile", "die", "chiplet"}
    assert units - boards == {"two dies, one device", "one GPU of the superchip", "Hopper half of the superchip"}
    columns = {column for row in ROWS for column in row.peaks}
    reachable = {
        column
        for table in (_MATRIX_COLUMNS, _FP16_ACCUMULATE_COLUMNS, _VECTOR_COLUMNS)
        for names in table.values()
        for column in names
    }
    assert columns == reachable, f"columns that no dtype reads, or that no row has: {sorted(columns ^ reachable)}"


def test_every_figure_follows_from_units_and_clock_or_is_transcribed():
    unprotected = [
        f"{row.label} {column}"
        for row in ROWS
        if row.label not in TRANSCRIPTION
        for column in row.peaks
        if re_derived(row, column) is None
    ]
    assert not unprotected, (
        f"nothing can tell whether these figures are right: {unprotected}. Give the row its units and clocks_mhz, and "
        "its die a rate in flop_per_clock; or write the row's figures into meta_tests/recorded/peaks.txt too"
    )


def test_each_stated_exception_is_one():
    idle = [
        f"{label} {column} ({reason})"
        for (label, column), (_, reason) in RE_DERIVATION_EXCEPTIONS.items()
        if abs((figure := ACCELERATORS[label].peaks[column]).value - re_derived(ACCELERATORS[label], column))
        <= max(0.005 * figure.value, rounding(figure))
    ]
    idle += [
        f"{label} {column} ({reason})"
        for (label, column), (_, reason) in SPARSE_PER_DENSE.items()
        if not any(column in each for each in sparsity_violations(ACCELERATORS[label], exceptions={}))
    ]
    assert not idle, f"these figures obey the rule and need no exception: {', '.join(idle)}"


def test_the_transcription_names_only_rows_of_the_table():
    strangers = {*TRANSCRIPTION, *NAMES} - {*ACCELERATORS}
    assert not strangers, f"recorded tables have devices that the table lacks: {sorted(strangers)}"


# Can the checks fail?

FACTORS = (1.01, 0.99, 2, 0.5, 1000)


def perturbed_cells(row: Accelerator, factor: float) -> Iterator[tuple[str, Accelerator]]:
    """The row once for each of its numbers, with that number multiplied by `factor`."""
    for column, figure in row.peaks.items():
        for cell in ("printed", "sparse"):
            value = getattr(figure, cell)
            if value is not None:
                changed = {**row.peaks, column: figure._replace(**{cell: value * factor})}
                yield f"{row.label} {column} {cell} x {factor}", row._replace(peaks=changed)
    if row.bandwidth is not None:
        bandwidth = row.bandwidth._replace(printed=row.bandwidth.printed * factor)
        yield f"{row.label} bandwidth x {factor}", row._replace(bandwidth=bandwidth)
    if row.units is not None:
        yield f"{row.label} units x {factor}", row._replace(units=row.units * factor)
    for place, clock in enumerate(row.clocks_mhz):
        if clock is not None:
            clocks = tuple(c if i != place else clock * factor for i, c in enumerate(row.clocks_mhz))
            yield f"{row.label} clocks_mhz[{place}] x {factor}", row._replace(clocks_mhz=clocks)


def with_printed(row: Accelerator, column: str, printed: float) -> Accelerator:
    """The row with another printed figure in one column."""
    return row._replace(peaks={**row.peaks, column: row.peaks[column]._replace(printed=printed)})


def uncaught(factor: float, checks, rows=ROWS) -> list[str]:
    """The perturbed cells that no check notices."""
    return [
        cell
        for row in rows
        for cell, changed in perturbed_cells(row, factor)
        if not any(check(changed) for check in checks)
    ]


@pytest.mark.parametrize("factor", FACTORS)
def test_every_perturbed_cell_of_the_table_is_caught(factor):
    settled = [row for row in ROWS if row.label in {*TRANSCRIPTION, *BUS}]  # a row added since has no second source
    survivors = uncaught(factor, CHECKS, settled)
    assert not survivors, f"{len(survivors)} perturbed cells pass every check: {survivors}"


def test_a_unit_slip_of_1000_is_caught_without_the_transcription():
    survivors = uncaught(1000, PHYSICAL)
    assert not survivors, f"{len(survivors)} cells could be 1000 times too high: {survivors}"


def test_physics_alone_catches_a_doubled_peak_of_every_row_with_units_and_clock():
    survivors = [
        f"{row.label} {column}"
        for row in ROWS
        for column, figure in row.peaks.items()
        if re_derived(row, column) is not None
        and not re_derivation_violations(
            row._replace(peaks={**row.peaks, column: figure._replace(printed=figure.printed * 2)})
        )
    ]
    assert not survivors, f"the re-derivation does not notice these doubled: {survivors}"


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "NVIDIA GeForce RTX 4090"])
def test_a_sparse_figure_in_the_place_of_the_dense_one_is_caught(name):
    row = device_named(name)
    figure = row.peaks["bf16"]
    sparse = Figure(figure.sparse or figure.printed)
    changed = row._replace(peaks={**row.peaks, "bf16": sparse})
    for check in (re_derivation_violations, ratio_violations, transcription_violations):
        assert check(changed), f"{check.__name__} accepts {sparse.value:g} as the dense bf16 peak of {name}"


@pytest.mark.parametrize("factor", [2, 0.5])
def test_every_perturbed_rate_of_a_die_is_caught(factor, monkeypatch):
    survivors = []
    for die, rates in FLOP_PER_CLOCK.items():
        for column, rate in rates.items():
            with monkeypatch.context() as patch:
                patch.setitem(rates, column, rate * factor)
                if not any(re_derivation_violations(row) or ratio_violations(row) for row in ROWS):
                    survivors.append(f"{die} {column}")
    assert not survivors, f"a wrong rate of these dies passes: {survivors}"


# The ladder of the architectures


def test_a_rate_is_a_power_of_two_but_for_the_fp4_of_one_die():
    odd = {f"{die} {column}": rate for die, rates in FLOP_PER_CLOCK.items() for column, rate in rates.items()}
    odd = {name: rate for name, rate in odd.items() if rate.bit_count() != 1}
    assert odd == {"GB110 fp4": 3 * 2**14}, f"units, lanes and depths are powers of two, but these are not: {odd}"


def test_tensor_rates_per_clock_obey_the_ladder_of_the_architectures():
    sixteen_bit = {die: rates.get("bf16", rates.get("fp16")) for die, rates in FLOP_PER_CLOCK.items()}
    ladder = {
        "GV100": 1024, "TU104": 1024, "GA100": 2048, "GH100": 4096, "GB100": 8192, "GB110": 8192,
        "GA102": 1024, "AD102": 1024, "GB202": 1024,
        "GA102 GeForce": 512, "AD102 GeForce": 512, "GB202 GeForce": 512,
        "CDNA2": 1024, "CDNA3": 2048, "CDNA4": 4096, "Gaudi 2": 131072, "Gaudi 3": 131072, "Xe-HPC": 512,
        "TPU v4": 2 * 128**2, "TPU v5e": 2 * 128**2, "TPU v5p": 2 * 128**2, "TPU v6e": 2 * 256**2, "TPU7x": 2 * 256**2,
        "NeuronCore-v2": 2 * 128**2, "NeuronCore-v3": 2 * 128**2,
    }  # fmt: skip
    wrong = {die: rate for die, rate in ladder.items() if sixteen_bit[die] != rate}
    assert not wrong, f"these dies should do so many FLOPs per clock and unit in 16 bits: {wrong}"


def test_every_row_has_the_architecture_of_its_die():
    architectures = {
        "GV100": "7.0", "TU104": "7.5", "GA100": "8.0", "GA102": "8.6", "AD102": "8.9", "GH100": "9.0", "GB100": "10.0",
        "GB110": "10.3", "GB202": "12.0", "CDNA2": "gfx90a", "CDNA3": "gfx942", "CDNA4": "gfx950", "Gaudi 2": "Gaudi 2",
        "Gaudi 3": "Gaudi 3", "Xe-HPC": "Xe-HPC",
    }  # fmt: skip
    wrong = [row.label for row in ROWS if row.arch != architectures.get(row.die.removesuffix(" GeForce"), row.arch)]
    assert not wrong, f"rows whose compute capability is not that of their die: {wrong}"


@pytest.mark.parametrize("die", ["GA102", "AD102", "GB202"])
def test_geforce_halves_only_what_accumulates_in_fp32(die):
    professional, geforce = FLOP_PER_CLOCK[die], FLOP_PER_CLOCK[f"{die} GeForce"]
    halved = {column for column in geforce if column in professional and 2 * geforce[column] == professional[column]}
    equal = {column for column in geforce if geforce[column] == professional.get(column)}
    assert halved == {"tf32", "bf16", "fp8"} & set(geforce), f"halved on GeForce: {sorted(halved)}"
    assert equal == {"fp32", "int8", "fp4"} & set(geforce), f"not halved on GeForce: {sorted(equal)}"


# Labels and sources


def test_a_clock_is_inferred_where_the_vendor_prints_none():
    inferred = {row.label for row in ROWS if row.clock_is_inferred}
    unprinted = {
        "A10G", "A40", "L4", "H100 NVL 94GB", "H200 SXM 141GB", "H200 NVL 141GB", "GH200 96GB", "GH200 144GB", "B200",
        "B300 SXM6", "Trainium2",
    }  # fmt: skip
    assert inferred == unprinted, f"clock_is_inferred is wrong for {sorted(inferred ^ unprinted)}"


def test_labels_are_unique():
    repeated = [label for label, times in Counter(row.label for row in ROWS).items() if times > 1]
    assert not repeated, f"labels that stand on two rows: {repeated}"


def test_every_row_states_sources_that_exist_and_every_source_is_used():
    stated = {key for row in ROWS for key in row.sources}
    assert all(row.sources for row in ROWS)
    assert stated == set(SOURCES), f"unknown {sorted(stated - set(SOURCES))}, unused {sorted(set(SOURCES) - stated)}"
    assert {row.source_class for row in ROWS} == {"P1", "P2", "S"}


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"bandwith": 3350}, r"peaks.json: 'New' has \['bandwith'\], valid are label, names, .* bandwidth"),
        (
            {"bandwidth": {"measured": 3350}},
            "a figure of 'New' must be a number or one of dense, .* got {'measured': 33",
        ),
        ({"peaks": {"bf16": "989"}}, "peaks.json: a figure of 'New' must be a number or one of dense, .* got '989'"),
        ({"peaks": {"bf16": {"card": 2, "sparse": 4}}}, "a figure of 'New' must be a number or one of dense"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named(cells, message):
    row = {"label": "New", "arch": "9.0", "die": "GH100", "unit": "card", "sources": "h100-page", "source_class": "P1"}
    with pytest.raises(ValueError, match=message):
        peaks._accelerator(row | {"peaks": {"bf16": 989}} | cells)


def test_a_chip_of_apples_has_twice_the_units_and_the_bandwidth_of_half_of_it_at_its_clock():
    for small, large in (("M1 Pro", "M1 Max"), ("M1 Max", "M1 Ultra"), ("M2 Pro", "M2 Max"), ("M2 Max", "M2 Ultra")):
        half, whole = ACCELERATORS[f"Apple {small}"], ACCELERATORS[f"Apple {large}"]
        assert (whole.units, whole.clocks_mhz) == (2 * half.units, half.clocks_mhz), f"{small}, {large}"
        assert not half.bandwidth or whole.bandwidth.printed == 2 * half.bandwidth.printed, f"{small}, {large}"


# CPUs

# Units · bits per unit, and the bits of an element: FLOPs per cycle are units · bits / element bits · 2.
SIMD_BITS = {
    "AVX2 + FMA": 2 * 256,
    "AVX-512, two units": 2 * 512,
    "AVX-512, one unit or double-pumped": 512,
    "AVX512_FP16": 2 * 512,
    "Neoverse N1, N2": 2 * 128,
    "Neoverse V2": 4 * 128,
    "Apple M4 performance core": 4 * 128,
}
MATRIX_AND_DOT = {  # what no width of a vector gives: multiply-adds per cycle, times 2
    ("AVX-VNNI", "int8"): 2 * 8 * 4,  # units · 32-bit lanes · products summed in a lane
    ("AVX-512 VNNI, two units", "int8"): 2 * 16 * 4,
    ("AVX-512 VNNI, one unit", "int8"): 16 * 4,
    ("AVX512_BF16, two units", "bf16"): 2 * 16 * 2,
    ("AVX512_BF16, one unit", "bf16"): 16 * 2,
    ("AMX-BF16", "bf16"): 16 * 16 * 32 // 16,  # a tile product of 16 x 32 by 32 x 16 in 16 cycles
    ("AMX-INT8", "int8"): 16 * 16 * 64 // 16,
    ("Neoverse V1", "bf16"): 32,  # measured, as the next
    ("Neoverse V1", "fp16"): 16,
    ("Neoverse V1", "int8"): 64,
    ("Apple M4 SME", "fp32"): 16 * 16,  # an outer product of two 512-bit vectors per cycle
    ("Apple M4 SME", "fp64"): 8 * 8,
}
BITS = {"fp64": 64, "fp32": 32, "fp16": 16}


def cpu_violations(paths) -> list[str]:
    """CPU figures that the width and number of the units do not give."""
    found = []
    for path in paths:
        for dtype, flops in path.flops_per_cycle.items():
            if flops is None:
                continue
            if (path.label, dtype) in MATRIX_AND_DOT:
                expected = 2 * MATRIX_AND_DOT[path.label, dtype]
            else:
                expected = 2 * SIMD_BITS[path.label] // BITS[dtype]
            if flops != expected:
                found.append(f"{path.label} {dtype} is {flops}, but the units give {expected}")
    return found


def test_flops_per_cycle_of_a_core_follow_from_its_units():
    assert not cpu_violations(CPU_PATHS), "\n".join(cpu_violations(CPU_PATHS))


def test_a_path_of_512_bits_says_for_how_many_units_its_figures_are():
    for path in CPU_PATHS:
        bits = SIMD_BITS.get(path.label, 512 * (2 if "two units" in path.label else 1))
        units = bits // 512 if "AVX512" in path.label or "AVX-512" in path.label else None
        assert path.fma_units_512 == units, f"{path.label} has figures for {path.fma_units_512} units, not {units}"


@pytest.mark.skipif(not hasattr(torch.cpu, "get_capabilities"), reason="this torch names no features of a CPU")
def test_a_path_requires_features_as_torch_names_them_and_says_where_its_figures_are_from():
    required = {feature for path in CPU_PATHS for feature in path.requires}
    known = torch.cpu.get_capabilities()
    assert "avx2" not in known or required <= known.keys(), f"torch knows no {sorted(required - known.keys())}"
    assert {path.kind for path in CPU_PATHS} == {"vendor", "measured", "derived"}
    assert {path.label: path.per for path in CPU_PATHS if path.per != "core"} == {"Apple M4 SME": "cluster"}


@pytest.mark.parametrize("factor", FACTORS)
def test_every_perturbed_rate_of_a_cpu_is_caught(factor):
    for path in CPU_PATHS:
        for dtype, flops in path.flops_per_cycle.items():
            if flops is not None:
                changed = path._replace(flops_per_cycle={**path.flops_per_cycle, dtype: flops * factor})
                assert cpu_violations([changed]), f"{path.label} {dtype} x {factor} passes"
