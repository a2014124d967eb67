"""The microarchitecture of a CPU, by the numbers that its cores state.

A virtual machine often names its CPU "Intel(R) Xeon(R) Processor" or "AMD EPYC". From this name
neither the rates of its units nor the comparable machines are known.
"""

import json
from pathlib import Path
from typing import Any

TABLE = json.loads(Path(__file__).with_name("cpus.json").read_text(encoding="utf-8"))


def microarchitecture(
    vendor: str, family: int, model: int, stepping: int | None = None
) -> str | None:
    """The microarchitecture, for AMD with the product's code name; None if not on record.

    For Arm cores `vendor` is the implementer, `family` the architecture, and `model` the part.

    >>> microarchitecture("GenuineIntel", 6, 143), microarchitecture("AuthenticAMD", 25, 1)
    ('Sapphire Rapids', 'Zen 3 (Milan)')
    >>> microarchitecture("GenuineIntel", 6, 85, 7), microarchitecture("GenuineIntel", 6, 85)
    ('Cascade Lake', None)
    """
    for row in TABLE["cpus"]:
        is_of_family = (row["vendor"], row["family"]) == (vendor, family)
        if is_of_family and model in row["models"] and _has_stepping(row, stepping):
            return str(row["name"])
    return None


def _has_stepping(row: dict[str, Any], stepping: int | None) -> bool:
    if "steppings" not in row:
        return True
    first, last = row["steppings"]
    return stepping is not None and first <= stepping <= last
