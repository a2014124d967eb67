"""A device is found by its exact name, or by words that fit it alone.

It has the dense peak of a format, or None.
"""

import pytest

from accounting.devices import ROWS, device_called, device_named, peak_flop_per_s


def test_every_name_finds_its_own_row_and_no_part_of_a_name_finds_any():
    names = {name for row in ROWS for name in row.names}
    wrong = []
    for row in ROWS:
        for name in row.names:
            if device_named(name, units=row.units) is not row:
                wrong.append(f"{name!r} with its units does not find {row.label}")
            shorter = {name[:end] for end in range(len(name))} | {
                name[start:] for start in range(1, len(name))
            }
            wrong += [
                f"{part!r}, a part of {name!r}, finds a row"
                for part in shorter - names
                if device_named(part)
            ]
            longer = {f"{name}{more}" for more in (" ", " MIG 1g.5gb", "S", " D")} - names
            wrong += [f"{each!r} finds a row" for each in longer if device_named(each)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("word", "options"),
    [("GH", "one of GH200 96GB, GH200 144GB, got"), ("T", "on record, such as")],
)
def test_two_letters_before_a_number_stand_for_it_and_one_does_not(word, options):
    with pytest.raises(ValueError, match=f"^device must be {options}"):
        device_called(word)


@pytest.mark.parametrize(
    ("name", "arch", "units", "memory_gib", "label"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", 132, 79.19, "H100 SXM5 80GB"),
        ("NVIDIA H100 80GB HBM3", "8.0", 132, 79.19, None),  # not the device its name says
        ("NVIDIA A100-SXM4-40GB", "8.0", 14, 4.75, None),  # a slice under its card's name
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 191.98, "MI300X"),
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 38, 24.0, None),  # partitioned
        ("AMD Radeon Graphics", "gfx942", 304, 255.98, "MI325X"),
        ("AMD Radeon Graphics", "gfx950", 256, 288.0, None),  # MI350X or MI355X
        ("AMD Instinct MI250X/MI250", "gfx90a", 110, 64.0, "MI250X"),
    ],
)
def test_architecture_units_and_memory_confirm_or_refuse_a_name(
    name, arch, units, memory_gib, label
):
    row = device_named(name, arch, units, None if memory_gib is None else int(memory_gib * 2**30))
    assert (row.label if row else None) == label


@pytest.mark.parametrize(
    ("name", "dtype", "options", "tflop_per_s"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp64", {"path": "vector"}, 9.7),
        ("NVIDIA A100-SXM4-80GB", "fp8_e4m3", {}, None),  # GA100 has no fp8
        ("NVIDIA GeForce RTX 5090", "fp8_e5m2", {"accumulate": "fp16"}, 838),
        ("NVIDIA H100 80GB HBM3", "bf16", {"path": "vector"}, None),
        ("AMD Instinct MI300X", "fp8_e4m3", {}, None),  # CDNA 3 has the other encoding
    ],
)
def test_a_peak_is_the_dense_one_of_that_device_and_format(name, dtype, options, tflop_per_s):
    peak = peak_flop_per_s(name, dtype, **options)
    assert peak == (None if tflop_per_s is None else tflop_per_s * 1e12)
