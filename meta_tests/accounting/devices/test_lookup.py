"""A device is found by its exact name and nothing else, or by words of a person that fit it alone."""

import pytest

from accounting import devices
from accounting.devices import ROWS, Accelerator, device_named, peak_flop_per_s


def test_a_name_stands_for_one_device_unless_the_units_decide():
    holders: dict[str, list[Accelerator]] = {}
    for row in ROWS:
        for name in row.names:
            holders.setdefault(name, []).append(row)
    shared = {name: rows for name, rows in holders.items() if len(rows) > 1}
    two_mi250 = {"AMD Instinct MI250X/MI250", "AMD Instinct MI250X / MI250"}
    assert set(shared) == {*two_mi250, "Intel(R) Data Center GPU Max 1550"}
    for name, rows in shared.items():
        assert device_named(name) is None, f"{name} alone is ambiguous, but device_named gives a row"
        for row in rows:
            assert device_named(name, units=row.units) is row, f"{name} with {row.units} units is not {row.label}"


def test_every_name_finds_its_own_row_and_no_part_of_a_name_finds_any():
    names = {name for row in ROWS for name in row.names}
    wrong = []
    for row in ROWS:
        for name in row.names:
            if device_named(name, units=row.units) is not row:
                wrong.append(f"{name!r} with its units does not find {row.label}")
            shorter = {name[:end] for end in range(len(name))} | {name[start:] for start in range(1, len(name))}
            wrong += [f"{part!r}, a part of {name!r}, finds a row" for part in shorter - names if device_named(part)]
            wrong += [
                f"{name + more!r} finds a row"
                for more in (" ", " MIG 1g.5gb", "S", " D")
                if device_named(name + more) and name + more not in names
            ]
            wrong += [f"{other!r} finds a row" for other in {name.lower(), name.upper()} - names if device_named(other)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("NVIDIA H200", "NVIDIA GH200 144G HBM3e"),
        ("NVIDIA H200", "NVIDIA H200 NVL"),
        ("NVIDIA B200", "NVIDIA GB200"),
        ("NVIDIA L4", "NVIDIA L40"),
        ("NVIDIA L40", "NVIDIA L40S"),
        ("NVIDIA A10", "NVIDIA A10G"),
        ("NVIDIA A10", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_name_within_another_is_another_device(inside, outside):
    assert device_named(inside) is not device_named(outside)
    assert peak_flop_per_s(inside, "bf16") != peak_flop_per_s(outside, "bf16")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H800 PCIe",
        "AMD Radeon Graphics",
        "AMD Instinct MI300X HF",
        "Quadro RTX 6000",
        "NVIDIA A10-24Q",
        "cpu",
        "",
    ],
)
def test_a_device_that_is_not_on_record_has_no_peak(name):
    assert device_named(name) is None
    assert peak_flop_per_s(name, "bf16") is None
    assert devices.clock_scaled_peak_flop_per_s(name, "bf16", 1e9) is None
    assert devices.bandwidth_bytes_per_s(name) is None


@pytest.mark.parametrize(
    ("name", "arch", "units", "memory_gib", "label"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", 132, 79.19, "H100 SXM5 80GB"),
        ("NVIDIA H100 80GB HBM3", "8.0", 132, 79.19, None),  # not the device its name says
        ("NVIDIA A100-SXM4-40GB", "8.0", 14, 4.75, None),  # a slice under its card's name
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 191.98, "MI300X"),
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 38, 24.0, None),  # partitioned
        ("AMD Radeon Graphics", "gfx942", 304, 191.98, "MI300X"),
        ("AMD Radeon Graphics", "gfx942", 304, 255.98, "MI325X"),
        ("AMD Radeon Graphics", "gfx942", 304, 178.0, None),  # 7 % less than an MI300X
        ("AMD Radeon Graphics", "gfx942", 304, None, None),
        ("AMD Radeon Graphics", "gfx942", 228, None, "MI300A"),
        ("AMD Radeon Graphics", "gfx950", 256, 288.0, None),  # MI350X or MI355X
        ("AMD Instinct MI355X", "gfx950", 256, 288.0, "MI355X"),
        ("AMD Instinct MI250X/MI250", "gfx90a", 110, 64.0, "MI250X"),
        ("AMD Instinct MI250X/MI250", "gfx90a", 104, 64.0, "MI250"),
        ("AMD Instinct MI250X/MI250", "gfx90a", None, 64.0, None),
    ],
)
def test_architecture_units_and_memory_confirm_or_refuse_a_name(name, arch, units, memory_gib, label):
    row = device_named(name, arch, units, None if memory_gib is None else int(memory_gib * 2**30))
    assert (row.label if row else None) == label


def test_what_torch_does_not_run_on_has_no_name_of_torch():
    named = [row.label for row in ROWS if row.planning_only and row.names]
    assert not named
    assert [row.label for row in ROWS if row.planning_only][:2] == ["TPU v4", "TPU v5e"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        *((row.label, row.label) for row in ROWS),
        *((row.label.lower().replace(" ", "-"), row.label) for row in ROWS),
        ("A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("H100 SXM", "H100 SXM5 80GB"),
        ("nvidia h100 pcie", "H100 PCIe 80GB"),
        ("H200", "H200 SXM 141GB"),
        ("H200 NVL", "H200 NVL 141GB"),
        ("V100-SXM2", "V100 SXM2"),
        ("4090", "RTX 4090"),
        ("GeForce RTX 3080 12GB", None),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI250X / MI250", ["MI250X", "MI250"]),
        ("gfx942:sramecc+:xnack-", ["MI300A", "MI300X", "MI325X"]),
        ("Gaudi 3", "Gaudi 3"),
        ("Trainium 2", "Trainium2"),
        ("Google TPU v5e", "TPU v5e"),
        ("M1 Max", "Apple M1 Max"),
        ("H100", ["H100 SXM5 80GB", "H100 PCIe 80GB", "H100 NVL 94GB"]),
        ("NVIDIA H100", ["H100 SXM5 80GB", "H100 PCIe 80GB", "H100 NVL 94GB"]),
        ("A100 80GB", ["A100 SXM4 80GB", "A100 PCIe 80GB"]),
        ("RTX 6000", ["RTX 6000 Ada", "RTX PRO 6000 Blackwell Workstation"]),
        ("H1000", None),
        ("GB", None),  # too short to stand for GB200
        ("", None),
    ],
)
def test_a_person_gets_the_row_that_alone_has_all_words_or_the_names_to_choose_from(name, label):
    if isinstance(label, str):
        assert devices.device_called(name).label == label
        return
    with pytest.raises(ValueError, match="device must be") as raised:
        devices.device_called(name)
    missing = [each for each in [*(label or ()), repr(name)] if each not in str(raised.value)]
    assert not missing, f"the error is {str(raised.value)!r}, without {missing}"
    if label:
        assert device_named(name) is None
        with pytest.raises(ValueError, match="device must be one of"):
            peak_flop_per_s(name, "bf16")
    else:
        assert peak_flop_per_s(name, "bf16") is None
