"""Settings of fp32 precision, by either API of torch, are said and left as they are."""

import pytest
import torch

import prooflops
from prooflops import precision
from prooflops.machine import device
from prooflops.precision import Float32Products

EVERYTHING = "cuda.matmul:tf32 mkldnn.matmul:tf32 mkldnn.conv:tf32 mkldnn.rnn:tf32"
# What a user sets, and the three flags as they are said.
NEW = {
    "fp32_precision = 'tf32'": ("high", True, EVERYTHING),
    "cuda.matmul.fp32_precision = 'tf32'": ("high", True, "cuda.matmul:tf32"),
    "cuda.matmul.fp32_precision = 'ieee'": ("highest", True, None),
    "cudnn.conv.fp32_precision = 'ieee'": ("highest", False, "cudnn.conv:fp32"),
    "cudnn.rnn.fp32_precision = 'ieee'": ("highest", True, "cudnn.rnn:fp32"),
    "mkldnn.matmul.fp32_precision = 'bf16'": ("medium", True, "mkldnn.matmul:bf16"),
    "mkldnn.conv.fp32_precision = 'bf16'": ("highest", True, "mkldnn.conv:bf16"),
}
OLD = {
    "cuda.matmul.allow_tf32 = True": ("high", True, "cuda.matmul:tf32"),
    "cudnn.allow_tf32 = False": ("highest", False, "cudnn.conv:fp32 cudnn.rnn:fp32"),
}
CASES = [(True, *case) for case in (NEW | OLD).items()] + [(False, *case) for case in OLD.items()]


# Importing torch.testing._internal freezes the settings of the whole process.
THAWED = getattr(torch.backends, "__allow_nonbracketed_mutation")


@pytest.fixture
def user_sets(monkeypatch):
    """Applies a setting, on a torch of both APIs or of the older alone, until the test ends."""

    def apply(is_new, setting):
        if not is_new:
            monkeypatch.setattr(precision, "OPERATIONS", {})
        elif not precision.OPERATIONS:
            pytest.skip("torch has fp32_precision from 2.9 on")
        with THAWED():
            exec(f"torch.backends.{setting}", {"torch": torch})

    as_fresh()
    yield apply
    monkeypatch.undo()
    as_fresh()


def as_fresh():
    """Gives the settings of a fresh torch back, whatever other tests of this process left."""
    torch.set_float32_matmul_precision("highest")
    operations = precision.OPERATIONS
    with THAWED():
        for each in (torch.backends, *operations.values()) if operations else ():
            each.fp32_precision = "none"
        torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize(("is_new", "setting", "said"), CASES)
def test_a_setting_is_said_and_products_of_either_precision_leave_it(
    user_sets, is_new, setting, said
):
    user_sets(is_new, setting)
    before = device.flags()
    names = ("float32_matmul_precision", "cudnn_allow_tf32", "fp32_precision")
    assert tuple(before.get(name) for name in names) == (said if is_new else (*said[:2], None))
    for dtype in ("fp32", "tf32"):
        with Float32Products(dtype):
            assert precision.format_of("cuda.matmul") == dtype
            # Both APIs agree, whichever a library asks.
            assert torch.backends.cuda.matmul.allow_tf32 == (dtype == "tf32")
        assert device.flags() == before


def test_products_follow_the_setting_of_all_operations_as_before(user_sets):
    user_sets(True, "fp32_precision = 'tf32'")
    with Float32Products():
        pass
    with THAWED():
        torch.backends.fp32_precision = "ieee"
    assert precision.of_products() == "highest"


def test_frozen_settings_are_set_within_and_left_as_they_are(monkeypatch):
    of_torch = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(of_torch, "__allow_nonbracketed_mutation_flag", False)
    before = device.flags()
    with Float32Products("tf32"):
        assert precision.format_of("cuda.matmul") == "tf32"
    assert device.flags() == before


def test_a_report_of_a_model_that_sets_tf32_says_so(user_sets, tmp_path):
    user_sets(True, "cuda.matmul.fp32_precision = 'tf32'")
    report = prooflops.model_report(torch.nn.Linear(8, 8), torch.randn(4, 8))
    report.save(tmp_path / "page.html")
    assert "fp32_precision=cuda.matmul:tf32" in (tmp_path / "page.html").read_text()


def test_the_run_computes_in_full_what_a_conftest_rounds(user_sets):
    user_sets(True, "cuda.matmul.fp32_precision = 'tf32'")
    [said] = device.ignore_tf32_override()
    assert said == "fp32 products run in full precision, although float32_matmul_precision is high"
    assert precision.of_products() == "highest"
