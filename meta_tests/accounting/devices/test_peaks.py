"""The peak table is right.

Each figure follows from units, rate and clock, and is half the sparse one.
"""

import pytest

from accounting.devices import FLOP_PER_CLOCK, ROWS, nominal_clock_mhz
from accounting.devices.peaks import SOURCES
from meta_tests.conftest import recorded

# Figures that units · FLOP per clock · clock misses by more than the rounding of what is printed,
# and by which share.
RE_DERIVATION_EXCEPTIONS = {
    name: float(text.split()[0]) for name, text in recorded("re_derivation.txt").items()
}
# Where the sparse figure is not twice the dense one, or what is printed is rounded to hundreds.
SPARSE_PER_DENSE = {
    ("MI350X", "fp16"): (2, "2.3 and 4.6 PF are printed"),
    ("MI350X", "bf16"): (2, "as fp16"),
    ("L40S", "fp16"): (733 / 362.05, "the sparse figure is at 2520 MHz, the dense one at 2490"),
    ("L40S", "bf16"): (733 / 362.05, "as fp16"),
    ("B300 SXM6", "fp4"): (18 / 14, "both printed, in PF"),
    ("GB300", "fp4"): (20 / 15, "both printed, in PF"),
}


def rounding(figure):
    """Half a unit in the last printed digit."""
    decimals = (
        len(str(figure.printed).partition(".")[2]) if isinstance(figure.printed, float) else 0
    )
    return 0.5 / 10**decimals / figure.divisor


def flop_per_clock(row, column):
    """What one unit of the row's die does per clock.

    The 16-bit formats share a rate unless the die says otherwise.
    """
    rates = FLOP_PER_CLOCK.get(row.die, {})
    for name in (
        column,
        column.removesuffix("_acc16"),
        "bf16" if column.startswith("fp16") else column,
    ):
        if name in rates:
            return rates[name]
    return None


def re_derived(row, column):
    """TFLOP/s from units · FLOP per clock · clock, or None where one of them is not known."""
    clock_mhz, rate = nominal_clock_mhz(row, column), flop_per_clock(row, column)
    if row.units is None or clock_mhz is None or rate is None:
        return None
    return row.units * rate * clock_mhz / 1e6


def re_derivation_violations(row):
    """Figures that units · FLOP per clock · clock does not give."""
    found = []
    for column, figure in row.peaks.items():
        expected = re_derived(row, column)
        if expected is None:
            continue
        share = RE_DERIVATION_EXCEPTIONS.get(f"{row.label} {column}", 0.005)
        if abs(figure.value - expected) > max(share * figure.value, rounding(figure)):
            found.append(f"{row.label} {column} is {figure.value:g}, but should be {expected:.5g}")
    return found


def sparsity_violations(row):
    """Dense figures that are not half of the sparse one printed beside them."""
    found = []
    for column, figure in row.peaks.items():
        factor = SPARSE_PER_DENSE.get((row.label, column), (2, ""))[0]
        expected = None if (row.label, column) in SPARSE_PER_DENSE else re_derived(row, column)
        if figure.sparse is None:
            continue
        if expected is None:
            expected, allowed = figure.value, max(0.005 * figure.value, rounding(figure))
        else:
            own = figure._replace(printed=figure.sparse, divisor=2)
            allowed = max(3e-4 * figure.sparse, rounding(own))
        if abs(figure.sparse / factor - expected) > allowed:
            found.append(
                f"{row.label} {column}: {figure.sparse:g} is not {factor:g} x {figure.value:g}"
            )
    return found


@pytest.mark.parametrize("check", [re_derivation_violations, sparsity_violations])
def test_no_row_of_the_table_violates(check):
    violations = [violation for row in ROWS for violation in check(row)]
    assert not violations, "\n".join(violations)


def test_every_device_names_a_die_whose_rates_are_known():
    unknown = {row.label: row.die for row in ROWS if row.die not in FLOP_PER_CLOCK}
    assert not unknown, (
        f"these name a die that flop_per_clock in accounting/devices/peaks.json lacks: {unknown}"
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_each_source_of_a_row_has_its_title(row):
    untitled = [source for source in row.sources if not SOURCES.get(source)]
    assert not untitled, f"{row.label}: `sources` of peaks.json has no title for {untitled}"
