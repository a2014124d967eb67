"""Figures with their units, as people write them: 3.94 PFLOP, 16.2 GiB, 15T tokens."""

from __future__ import annotations

import math
import re

from accounting.checks import validated_int, validated_real

PREFIXES = "kMGTPEZY"
# No run has that many tokens, devices or bytes.
LARGEST_AMOUNT = 1e30


def with_unit(value: float, unit: str) -> str:
    """`value` to three significant digits, with a prefix and its unit.

    Prefixes are powers of 1000; for bytes (unit "B") of 1024. Values below 1 get no prefix.
    Raises ValueError for infinity and NaN, TypeError if `value` is not a number.

    >>> with_unit(3943913849094144, "FLOP"), with_unit(17394617549, "B"), with_unit(3.35e12, "B/s")
    ('3.94 PFLOP', '16.2 GiB', '3.35 TB/s')
    """
    number, base, prefix = validated_real("value", value), 1024 if unit == "B" else 1000, ""
    if not math.isfinite(number):
        raise ValueError(f"value must be finite, got {value!r}")
    for each in PREFIXES:
        if abs(number) < 0.9995 * base:  # 999.7 would round to 1000
            break
        number, prefix = number / base, f"{each}i".capitalize() if base == 1024 else each
    digits = (
        0
        if abs(number) >= 99.95 or (not prefix and number.is_integer())
        else 1
        if abs(number) >= 9.995
        else 2
    )
    return f"{number:.{digits}f} {prefix}{unit}"


def amount(figure: str | float, name: str = "amount") -> int:
    """The whole number that a written figure stands for.

    Valid are 15T tokens, 70B or 70e9 parameters, or 80 GiB. B alone is 10⁹; after a prefix it is a
    byte. `name` is the argument's name in the error message.
    Raises ValueError for another form or more than 1e30, TypeError for a number that is not whole.

    >>> amount("15T"), amount("1.5k"), amount("80 GiB"), amount("70B"), amount(70e9)
    (15000000000000, 1500, 85899345920, 70000000000, 70000000000)
    """
    if not isinstance(figure, str):
        return _plausible(validated_int(name, figure), figure, name)
    plain = figure.replace(",", "").replace("_", "").strip()
    found = re.fullmatch(r"(\d+\.?\d*(?:e\d+)?)\s*(?:([kKMGTPE])(i?)B?|(B))?", plain)
    if not found:
        raise ValueError(
            f"{name} must be a number such as 15T, 70B, 80GiB or 1.5e12, got {figure!r}"
        )
    number, prefix, binary, billions = found.groups()
    power = PREFIXES.index("k" if prefix == "K" else prefix) + 1 if prefix else 3 if billions else 0
    factor: int = (1024 if binary else 1000) ** power
    return _plausible(float(number) * factor, figure, name)


def _plausible(number: float, figure: str | float, name: str) -> int:
    if number > LARGEST_AMOUNT:
        raise ValueError(f"{name} must be at most {LARGEST_AMOUNT:g}, got {figure!r}")
    return round(number)
