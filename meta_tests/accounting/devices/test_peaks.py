"""The peak table is right: each figure follows from units, rate and clock, and is half the sparse one."""

import pytest

from accounting.devices import FLOP_PER_CLOCK, ROWS, Accelerator, Figure, nominal_clock_mhz

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


@pytest.mark.parametrize("check", [re_derivation_violations, sparsity_violations])
def test_no_row_of_the_table_violates(check):
    violations = [violation for row in ROWS for violation in check(row)]
    assert not violations, "\n".join(violations)


def test_every_device_names_a_die_whose_rates_are_known():
    unknown = {row.label: row.die for row in ROWS if row.die not in FLOP_PER_CLOCK}
    assert not unknown, f"these name a die that flop_per_clock in accounting/devices/peaks.json lacks: {unknown}"
