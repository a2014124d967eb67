"""Each figure of the peak table follows from units, rate and clock, and has a titled source."""

from accounting.devices import FLOP_PER_CLOCK, ROWS, nominal_clock_mhz
from accounting.devices.peaks import SOURCES
from meta_tests.conftest import recorded

# Figures that units · FLOP per clock · clock misses by more than the rounding of what is printed,
# and by which share.
RE_DERIVATION_EXCEPTIONS = {
    name: float(text.split()[0]) for name, text in recorded("re_derivation.txt").items()
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


def test_figures_follow_from_units_flop_per_clock_and_clock():
    wrong = []
    for row in ROWS:
        for column, figure in row.peaks.items():
            expected = re_derived(row, column)
            if expected is None:
                continue
            share = RE_DERIVATION_EXCEPTIONS.get(f"{row.label} {column}", 0.005)
            if abs(figure.value - expected) > max(share * figure.value, rounding(figure)):
                wrong.append(f"{row.label} {column}: {figure.value:g}, not {expected:.5g}")
    assert not wrong, "\n".join(wrong)


def test_every_device_names_a_die_whose_rates_are_known():
    unknown = {row.label: row.die for row in ROWS if row.die not in FLOP_PER_CLOCK}
    assert not unknown, (
        f"these name a die that flop_per_clock in accounting/devices/peaks.json lacks: {unknown}"
    )


def test_each_source_of_a_row_has_its_title():
    untitled = [source for row in ROWS for source in row.sources if not SOURCES.get(source)]
    assert not untitled, f"peaks.json has no title for {untitled}"
