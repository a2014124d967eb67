"""Each addition that CONTRIBUTING.md describes works in a copy, as it stands there; and a step left out is named."""

import re
import shutil
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT, run_pytest_for_each

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# The first line of a block names its file, and the table into which a row goes.
BLOCKS = {match[1]: match for match in re.finditer(r"```\w+\n# ([\w/.-]+)(?:, in (\w+))?\n(.*?)```", PAGE, re.DOTALL)}
REGISTRY, CLAIM = "test_claims/registry/flops.toml", "test_claims/test_flops.py"
PEAKS, BENCHMARK = "accounting/devices/peaks.json", "bench/test_gram.py"
OPTIMIZERS, OPERATORS = "accounting/optimizers/rows.py", "accounting/counted/operators.py"

DISTANCES = """
import torch
from accounting import counted

def test_distances_are_counted():
    with counted.flops() as flops:
        torch.cdist(torch.rand(3, 4), torch.rand(5, 4), compute_mode="donot_use_mm_for_euclid_dist")
    assert not flops.unknown, f"no formula for {flops.unknown}"
    assert flops.elementwise == 3 * 3 * 5 * 4
"""
STRAY = """
import pytest

@pytest.mark.claim("flops.gramm")
def test_that_names_no_claim():
    pass
"""
COUNTED, MISNAMED = "meta_tests/test_distances.py", "meta_tests/test_stray.py"


def copy_of_the_repository(folder: Path) -> Path:
    for name in ("accounting", "prooflops", "bench", "test_claims", "meta_tests"):
        shutil.copytree(ROOT / name, folder / name)  # compiled modules too
    for name in ("conftest.py", "pytest.ini", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / COUNTED).write_text(DISTANCES)
    return folder


def add(folder: Path, name: str, old: str = "", new: str = "") -> None:
    """Adds a block of CONTRIBUTING.md to the file it names, with `old` in it replaced."""
    table, text = BLOCKS[name][2], BLOCKS[name][3]
    assert old in text, f"{name}: the page has no {old!r}"
    text, file = text.replace(old, new), folder / name
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if table:
        line = re.search(rf"^\W*{table}\b.*[({{[]\n", before, re.MULTILINE)
        assert line, f"{name} has no table {table}"
        file.write_text(before[: line.end()] + text + before[line.end() :], encoding="utf-8")
    else:
        file.write_text(f"{before}\n\n{text}" if before else text, encoding="utf-8")


CLAIMS_RUN = f"{CLAIM} --claim flops.gram --quick -v"
ALL_CLAIMS = "test_claims --collect-only -q"
STRAY_RUN = MISNAMED
DEVICES_RUN = "meta_tests/accounting/devices -q"
BENCHMARK_RUN = f"{BENCHMARK} --quick"
OPTIMIZERS_RUN = "meta_tests/accounting/optimizers -q -k nadamw"
OPERATORS_RUN = COUNTED
HOUSE_RUN = "meta_tests/test_imports.py::test_the_house_keeps_its_rules meta_tests/test_claims/test_registry.py -q"


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The runs of a copy to which all five have been added as the page says."""
    folder = copy_of_the_repository(tmp_path_factory.mktemp("complete"))
    for name in BLOCKS:
        add(folder, name)
    lines = [CLAIMS_RUN, ALL_CLAIMS, DEVICES_RUN, BENCHMARK_RUN, OPTIMIZERS_RUN, OPERATORS_RUN, HOUSE_RUN]
    return run_pytest_for_each(folder, [f"-p no:cacheprovider {line}" for line in lines])


@pytest.fixture(scope="module")
def forgotten(tmp_path_factory):
    """The runs of a copy in which each of the five lacks something."""
    folder = copy_of_the_repository(tmp_path_factory.mktemp("forgotten"))
    add(folder, REGISTRY)  # and no test
    (folder / MISNAMED).write_text(STRAY)  # and no row
    add(folder, PEAKS, '"die": "GH100"', '"die": "GX100"')  # a die without rates
    add(folder, BENCHMARK, "2 * ROWS", "ROWS")  # the additions left out
    add(folder, OPTIMIZERS, ', "exp_avg_sq"', ",")  # one buffer of two
    lines = [ALL_CLAIMS, STRAY_RUN, DEVICES_RUN, BENCHMARK_RUN, OPTIMIZERS_RUN, OPERATORS_RUN]
    return run_pytest_for_each(folder, [f"-p no:cacheprovider {line}" for line in lines])


def test_the_page_shows_an_example_of_each_addition() -> None:
    assert list(BLOCKS) == [REGISTRY, CLAIM, PEAKS, BENCHMARK, OPTIMIZERS, OPERATORS]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (CLAIMS_RUN, r"flops\.gram +holds"),
        (ALL_CLAIMS, r"test_a_matrix_times_its_transpose_costs_2mmk_flops"),
        (DEVICES_RUN, r"\d+ passed"),
        (BENCHMARK_RUN, r"gram +.* GFLOP/s"),
        (OPTIMIZERS_RUN, r"\d+ passed"),
        (OPERATORS_RUN, r"1 passed"),
        (HOUSE_RUN, r"\d+ passed"),
    ],
)
def test_what_the_page_says_is_all_that_is_needed(complete, line: str, shown: str) -> None:
    run = complete[f"-p no:cacheprovider {line}"]
    assert run.code == 0, run.output
    assert re.search(shown, run.output), run.output


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (ALL_CLAIMS, 4, r"claims that no test settles: .*\s+'flops\.gram' of .*flops\.toml"),
        (STRAY_RUN, 4, r"add a row, or correct the id\s+'flops\.gramm' in .*test_stray\.py"),
        (DEVICES_RUN, 1, r"flop_per_clock in accounting/devices/peaks\.json lacks: .*'Example 100': 'GX100'"),
        (DEVICES_RUN, 1, r"nothing can tell whether these figures are right: .*'Example 100 bf16'"),
        (BENCHMARK_RUN, 1, r"FLOPs are declared"),
        (OPTIMIZERS_RUN, 1, r"nadamw"),
        (OPERATORS_RUN, 1, r"no formula for .*aten\._cdist_forward"),
    ],
)
def test_what_was_left_out_is_named(forgotten, line: str, code: int, message: str) -> None:
    run = forgotten[f"-p no:cacheprovider {line}"]
    assert run.code == code, run.output
    assert re.search(message, run.output), run.output
