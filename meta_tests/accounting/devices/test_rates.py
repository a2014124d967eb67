"""A device gives the dense peak of a format, its bandwidth and its memory, or None."""

import pytest

from accounting import devices
from accounting.devices import (
    ACCELERATORS,
    CPU_PATHS,
    ROWS,
    device_named,
    flop_per_s,
    has_dtype,
    nominal_clock_mhz,
    peak_flop_per_s,
    rates,
)
from accounting.formats import FORMATS
from meta_tests.accounting.refusals import refuses


def test_memory_is_the_bytes_that_the_label_says_where_it_says_one_size():
    assert devices.memory_bytes("H100 PCIe") == 80 * 2**30
    assert devices.memory_bytes("TPU7x") == 96 * 2**30
    assert devices.memory_bytes("V100 SXM2") is devices.memory_bytes("NVIDIA B300 SXM6 AC") is None  # two sizes
    assert devices.memory_bytes(None) is devices.memory_bytes("Apple M1") is devices.memory_bytes("no such") is None
    stated = {row.label for row in ROWS if devices.memory_bytes(row)}
    assert len(stated) > 50, f"only {len(stated)} rows have a size"


@pytest.mark.parametrize(
    ("name", "dtype", "options", "tflop_per_s"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp64", {}, 19.5),
        ("NVIDIA A100-SXM4-80GB", "fp64", {"path": "vector"}, 9.7),
        ("NVIDIA A100-SXM4-80GB", "fp8_e4m3", {}, None),  # GA100 has no fp8
        ("NVIDIA A10G", "bf16", {}, 70),  # not the A10's 125
        ("NVIDIA A10G", "fp32", {}, None),
        ("NVIDIA GeForce RTX 3090", "bf16", {}, 71.2),  # not 142
        ("NVIDIA GeForce RTX 5090", "fp8_e4m3", {}, 419),  # not 838
        ("NVIDIA GeForce RTX 5090", "fp8_e5m2", {"accumulate": "fp16"}, 838),
        ("NVIDIA L40S", "bf16", {}, 362.05),
        ("NVIDIA H100 80GB HBM3", "tf32", {}, 494.7),  # 989 is the sparse figure
        ("NVIDIA H100 NVL", "bf16", {}, 835.5),
        ("NVIDIA B300 SXM6 AC", "fp4_e2m1", {}, 14000),  # not half of 18000
        ("NVIDIA A100-SXM4-80GB", "fp32", {"path": "vector"}, 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", {"path": "vector"}, None),
        ("NVIDIA H100 80GB HBM3", "int4", {}, None),
        ("Tesla T4", "bf16", {}, None),
        ("AMD Instinct MI300X", "fp8_e4m3fnuz", {}, 2614.9),
        ("AMD Instinct MI300X", "fp8_e4m3", {}, None),  # CDNA 3 has the other encoding
        ("AMD Instinct MI355X", "fp8_e4m3", {}, 5033.2),
        ("AMD Instinct MI300X", "fp32", {}, 163.4),
        ("GAUDI3", "bf16", {}, 1678),  # not 1835
    ],
)
def test_a_peak_is_the_dense_one_of_that_device_and_format(name, dtype, options, tflop_per_s):
    peak = peak_flop_per_s(name, dtype, **options)
    assert peak == (None if tflop_per_s is None else tflop_per_s * 1e12), f"{peak=} [{name=}, {dtype=}, {options=}]"


def test_a_device_is_half_of_a_card_of_two():
    assert peak_flop_per_s(ACCELERATORS["MI250X"], "bf16") == 191.5e12
    assert devices.bandwidth_bytes_per_s(ACCELERATORS["MI250X"]) == 1638.5e9


def test_a_peak_scaled_to_its_nominal_clock_is_the_peak():
    for row in ROWS:
        for column, figure in row.peaks.items():
            clock_mhz = nominal_clock_mhz(row, column)
            if column in {"bf16", "tf32", "fp32"} and clock_mhz is not None and "fp32_tensor" not in row.peaks:
                scaled = devices.clock_scaled_peak_flop_per_s(row, column, clock_mhz * 1e6)
                assert scaled == pytest.approx(flop_per_s(figure), rel=1e-12), f"{row.label} {column}"


def test_units_of_32_and_64_bits_run_at_the_vector_clock_and_the_others_at_that_of_the_matrices():
    row = device_named("NVIDIA H100 80GB HBM3")
    columns = ("fp64", "fp64_tensor", "fp32", "tf32", "bf16")
    assert [nominal_clock_mhz(row, column) for column in columns] == [1980] * 3 + [1830] * 2
    assert devices.clock_scaled_peak_flop_per_s("Tesla T4", "bf16", 1e9) is None


def test_the_h100_may_pass_its_nominal_peak_at_the_clock_it_boosts_to():
    scaled = devices.clock_scaled_peak_flop_per_s("NVIDIA H100 80GB HBM3", "bf16", 1980e6)
    assert scaled == pytest.approx(1070.5e12, rel=1e-4)
    assert devices.clock_scaled_peak_flop_per_s("NVIDIA H100 80GB HBM3", "fp32", 1980e6) == 66.9e12


def test_rates_in_flop_per_s_are_whole_numbers_of_flops():
    for row in ROWS:
        for column, figure in row.peaks.items():
            assert flop_per_s(figure).is_integer(), f"{row.label} {column}: {flop_per_s(figure)!r}"


test_a_wrong_argument_is_named_in_the_error = refuses(
    (lambda: peak_flop_per_s("NVIDIA H100 PCIe", "flaot16"), ValueError, "flaot16"),
    (lambda: peak_flop_per_s("no such device", "bf61"), ValueError, "bf61"),
    (lambda: peak_flop_per_s("NVIDIA H100 PCIe", "bf16", path="tensor"), ValueError, "path must be one of"),
    (lambda: peak_flop_per_s("NVIDIA H100 PCIe", "fp16", accumulate="bf16"), ValueError, "accumulate must be one of"),
    (lambda: devices.clock_scaled_peak_flop_per_s("NVIDIA H100 PCIe", "bf16", 0), ValueError, "clock_hz"),
    (lambda: device_named(b"NVIDIA H100 PCIe"), TypeError, "name must be"),
    (lambda: devices.cpu_flops_per_cycle(["avx512_f"], fma_units_512=3), ValueError, "fma_units_512"),
    (lambda: devices.cpu_flops_per_cycle("avx512_f"), TypeError, "features"),
    (lambda: devices.cpu_peak_flop_per_s(["avx2"], 0, 1e9, "fp32"), ValueError, "cores"),
    (lambda: devices.cpu_peak_flop_per_s(["avx2"], 1, -1e9, "fp32"), ValueError, "clock_hz"),
    (lambda: devices.cpu_peak_flop_per_s(["avx2"], 1, 1e9, "single"), ValueError, "single"),
)


# CPUs


@pytest.mark.parametrize(
    ("features", "units", "expected"),
    [
        ([], 2, {}),
        (["sse4_2", "avx"], 2, {}),
        (["avx2"], 2, {}),  # without FMA
        (["avx2", "fma3", "avx512_f"], 2, {"fp32": 64, "fp64": 32}),
        (["avx2", "fma3", "avx512_f"], 1, {"fp32": 32, "fp64": 16}),
        (["avx512_f", "avx512_bf16", "amx_bf16"], 2, {"fp32": 64, "fp64": 32, "bf16": 1024}),
        (["avx512_fp16", "amx_fp16"], 2, {}),  # AMX-FP16 is faster by an unknown factor
        (["neon", "sve", "sve2"], 2, {}),  # does not tell the core
    ],
)
def test_features_of_a_cpu_give_the_fastest_settled_rate(features, units, expected):
    assert devices.cpu_flops_per_cycle(features, units) == expected
    absent = {feature: False for path in CPU_PATHS for feature in path.requires}
    as_torch_says_it = absent | dict.fromkeys(features, True) | {"l1d_cache_size": 49152}
    assert devices.cpu_flops_per_cycle(as_torch_says_it, units) == expected


def test_the_fastest_path_wins_wherever_it_stands_in_the_table(monkeypatch):
    features = [feature for path in CPU_PATHS for feature in path.requires]
    before = devices.cpu_flops_per_cycle(features)
    monkeypatch.setattr(rates, "CPU_PATHS", CPU_PATHS[::-1])
    assert devices.cpu_flops_per_cycle(features) == before == {"fp32": 64, "fp64": 32, "bf16": 1024, "int8": 2048}


def test_a_cpu_peak_is_cores_times_clock_times_flops_per_cycle():
    all_cores_amx = devices.cpu_peak_flop_per_s(["amx_bf16", "amx_int8"], 56, 2.46e9, "bf16")
    assert all_cores_amx == pytest.approx(141.1e12, rel=1e-3)  # what a Xeon W9-3495X was measured to do
    assert devices.cpu_peak_flop_per_s(["amx_bf16"], 56, 2.46e9, "fp8_e4m3") is None


def test_a_device_has_the_dtypes_that_torch_has_there() -> None:
    lacking = {name for name in FORMATS if not has_dtype("mps", name)}
    fp8 = {"fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz"}
    assert lacking == {"fp64", *fp8, "fp4_e2m1", "e8m0"}, f"mps lacks {sorted(lacking)}"
    assert all(has_dtype(kind, name) for kind in ("cpu", "cuda", "xpu") for name in FORMATS)
    with pytest.raises(ValueError, match="dtype must be one of"):
        has_dtype("mps", "fp65")
