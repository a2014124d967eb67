"""Options with impossible values are refused, saying which are possible."""

import re

import pytest
import torch

from meta_tests.conftest import ROOT, run_pytest_for_each
from prooflops.suite.floors import Floors, stated_floors
from prooflops.suite.peaks import Peaks, stated_peaks

H200 = next((ROOT / "results").glob("NVIDIA-H200-*.jsonl"))
IMPOSSIBLE = {
    "--floor=bf17=0.7": "the figure must be one of bf16, fp16",
    "--quick --thorough": "--quick and --thorough exclude each other",
    "--known-failures=missing.txt": "--known-failures missing.txt: No such file",
    "--known-failures=pytest.ini": "--known-failures pytest.ini: no claim is named [pytest], ",
    "-o floor_undecided=maybe": "floor_undecided must be one of pass, fail, got 'maybe'",
    "--reference=": "--reference= is empty: name one, or drop it",
    "--report=": "--report= is empty",
    "--reference=missing.json": "must be a run record or a file of make evidence: No such file",
    "--reference=pyproject.toml": "--reference pyproject.toml must be a run record",
    f"--reference={H200} --device=cpu": (
        "is the record of a NVIDIA H200 (cuda), and this device is a "
    ),
}


def test_impossible_floors_are_refused_before_anything_runs():
    lines = [f"-p no:cacheprovider bench/test_launch.py {options}" for options in IMPOSSIBLE]
    runs = run_pytest_for_each(ROOT, lines).values()
    for run, saying in zip(runs, IMPOSSIBLE.values(), strict=True):
        assert run.code == 4
        assert saying in run.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory=", "the number is missing, as in memory="),
        ("memory=nan", "must be a finite number above 0, got 'nan'"),
        ("link=52", "52.0 B/s is impossible; in bytes per second, 52 GB/s is link=52e9"),
        ("launch=8e-9", "8 ns is impossible; in seconds"),
    ],
)
def test_a_floor_that_nothing_can_miss_or_meet_is_refused_with_its_unit(text, message):
    with pytest.raises(ValueError, match=f"^--floor {text}: .*{re.escape(message)}"):
        stated_floors([text])


@pytest.mark.parametrize("text", ["bf16", "=989e12", "bf16=989", "bf16=989e15", "bf16=inf"])
def test_a_peak_that_no_device_has_is_refused(text):
    with pytest.raises(ValueError, match=f"^--peak {text}: "):
        stated_peaks([text])


def test_a_stated_peak_of_a_cpu_counts_before_its_own():
    cpu = torch.device("cpu")
    assert Floors(cpu, Peaks(cpu, {"fp32": 1e12})).nominal("peak", "fp32", 2e12) == 1e12
