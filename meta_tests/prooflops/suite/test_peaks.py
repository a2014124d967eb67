"""Whose a peak is: the vendor's goes before the user's, and a CPU's derived bound is shown as such."""

import pytest
import torch

from prooflops.machine import device as machine
from prooflops.suite.peaks import Peaks, share_of_peak, stated_peaks

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of which bf16 is on record, and nothing else."""
    monkeypatch.setattr(machine, "peak_flop_per_s", lambda device, dtype: 989.4e12 if dtype == "bf16" else None)


def test_a_peak_on_record_goes_before_the_users(on_record: None) -> None:
    peaks = Peaks(GPU, stated_peaks(["bf16=500e12", "fp16=400e12"]))
    assert [peaks.flop_per_s(dtype) for dtype in ("bf16", "fp16", "fp32")] == [989.4e12, 400e12, None]
    assert peaks.as_dict() == {"by --peak": {"fp16": 400e12}, "derived": {}}
    assert peaks.headline() == [
        "peak as the user states it (--peak): fp16 400 TFLOP/s",
        "--peak not used, as the vendor's is on record: bf16 500 TFLOP/s",
    ]


def test_the_bound_of_a_cpu_is_derived_where_its_highest_clock_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {"avx512_f": True, "num_physical_cores": 8}
    monkeypatch.setattr(machine, "cpu_capabilities", lambda: capabilities)
    monkeypatch.setattr(machine, "highest_clock_hz", lambda device: 4e9)
    assert Peaks(CPU).derived == {"fp64": 8 * 32 * 4e9, "fp32": 8 * 64 * 4e9}
    (line,) = Peaks(CPU).headline()
    assert line.endswith("highest clock: fp64 1.02 TFLOP/s, fp32 2.05 TFLOP/s")
    monkeypatch.setattr(machine, "highest_clock_hz", lambda device: None)
    assert Peaks(CPU).derived == {}, "the highest clock of any CPU is no clock of this one"
    assert Peaks(CPU).headline() == []


@pytest.mark.parametrize(
    ("extra", "cell"),
    [
        ({"mfu": 0.4, "peak_flop_per_s": 989.4e12}, "40.0%"),
        ({"mfu": 0.4, "peak_flop_per_s": 500e12}, "40.0% of --peak"),
        ({"mfu": None, "dtype": "fp32", "flop_per_s": 1e12}, "50.0% of derived bound"),
        ({"mfu": None, "dtype": "int8", "flop_per_s": 1e12}, "no peak on record"),
        ({"mbu": 0.7}, "70.0%"),
        ({}, "-"),
    ],
)
def test_a_share_says_of_whose_peak_it_is(extra: dict[str, object], cell: str) -> None:
    assert share_of_peak(extra, {"by --peak": {"bf16": 500e12}, "derived": {"fp32": 2e12}}) == cell
