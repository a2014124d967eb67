"""`import prooflops`: what it offers, and which copies of its packages it refuses."""

import subprocess
import sys

import pytest
import torch

import prooflops
from meta_tests.conftest import ROOT, child_environment


def test_the_face_counts_measures_and_predicts_the_same_product():
    a = torch.randn(8, 16)
    b = torch.randn(16, 4)
    with prooflops.count() as counted:
        a @ b
    with prooflops.measure() as measured:
        held = a @ b
    with prooflops.predict() as predicted:
        guessed = torch.empty(8, 16) @ torch.empty(16, 4)
    assert isinstance(counted, prooflops.CountedWork)
    assert isinstance(measured, prooflops.MeasuredMemory)
    assert isinstance(predicted, prooflops.PredictedMemory)
    assert counted.total == 2 * 8 * 16 * 4
    assert measured.live_bytes == held.nbytes == guessed.nbytes


def test_each_name_of_the_face_is_there_and_another_is_refused():
    assert all(hasattr(prooflops, name) for name in prooflops.__all__)
    with pytest.raises(AttributeError, match="no attribute 'counts'"):
        prooflops.counts  # noqa: B018


@pytest.mark.parametrize(
    ("beside", "advice"),
    [
        ("theirs", "this Python takes accounting from {0}/accounting: rename"),
        ("prooflops", "another copy, {0}/accounting: start python -m pytest"),
    ],
)
def test_an_accounting_from_elsewhere_is_refused_by_name(tmp_path, beside, advice):
    (tmp_path / beside).mkdir()
    (tmp_path / "accounting").mkdir()
    (tmp_path / "accounting" / "__init__.py").write_text("BALANCE = 0\n")
    done = subprocess.run(
        [sys.executable, "-c", "import prooflops; prooflops.count"],
        cwd=tmp_path,
        env=child_environment(f"{tmp_path}:{ROOT}"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert advice.format(tmp_path) in done.stderr, done.stderr


@pytest.mark.parametrize("package", ["accounting", "prooflops_gate"])
def test_a_clone_with_a_package_of_another_copy_is_refused(house, package):
    (house.root / package).rename(house.root / f"{package}_away")
    run = house.run("--device=cpu", path=ROOT)
    assert run.code == 4
    assert str(ROOT / package) in run.output
