"""Each addition that CONTRIBUTING.md describes works in a copy; a step left out is named."""

import re
import shutil

import pytest

from meta_tests.conftest import PACKAGES, ROOT, run_pytest_for_each

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# The first line of a block names its file, and the table into which a row goes.
BLOCKS = {
    match[1]: match
    for match in re.finditer(r"```\w+\n# ([\w/.-]+)(?:, in (\w+))?\n(.*?)```", PAGE, re.DOTALL)
}
REGISTRY = "test_claims/registry/flops.toml"
CLAIM = "test_claims/test_flops.py"
PEAKS = "accounting/devices/peaks.json"
BENCHMARK = "bench/test_gram.py"
OPTIMIZERS = "accounting/optimizers.json"
OPERATORS = "prooflops/counted/operators.py"

DISTANCES = """
import pytest
import torch
from prooflops import counted

def test_distances_are_counted():
    with counted.flops() as flops:
        torch.pdist(torch.rand(3, 4))
    assert not flops.unknown, f"no formula for {flops.unknown}"
    assert flops.elementwise == 3 * 3 * 4
"""
STRAY = "import pytest\n\n@pytest.mark.claim('flops.gramm')\ndef test_that_names_no_claim(): pass\n"

CLAIMS_RUN = f"{CLAIM} --claim flops.gram --quick -v"
ALL_CLAIMS = "test_claims --collect-only -q"
STRAY_RUN = "meta_tests/test_stray.py"
OPERATORS_RUN = "meta_tests/test_distances.py"
DEVICES_RUN = "meta_tests/accounting/devices -q"
BENCHMARK_RUN = f"{BENCHMARK} --quick"
OPTIMIZERS_RUN = "meta_tests/accounting/optimizers -q -k nadamw"


def add(folder, name, old="", new=""):
    """Adds a block of CONTRIBUTING.md to the file it names, with `old` in it replaced."""
    table = BLOCKS[name][2]
    text = BLOCKS[name][3]
    assert old in text, f"{name}: the page has no {old!r}"
    text = text.replace(old, new)
    file = folder / name
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if table:
        line = re.search(rf"^\W*{table}\b.*[({{[]\n", before, re.MULTILINE)
        assert line, f"{name} has no table {table}"
        file.write_text(before[: line.end()] + text + before[line.end() :], encoding="utf-8")
    else:
        file.write_text(f"{before}\n\n{text}" if before else text, encoding="utf-8")


def runs_in_a_copy(folder, change, lines):
    """The runs of pytest with these arguments in a changed copy of the repository."""
    for name in PACKAGES:
        # Compiled modules too.
        shutil.copytree(ROOT / name, folder / name)
    for name in ("conftest.py", "pytest.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / OPERATORS_RUN).write_text(DISTANCES)
    change(folder)
    runs = run_pytest_for_each(folder, [f"-p no:cacheprovider {line}" for line in lines])
    return dict(zip(lines, runs.values(), strict=True))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    def change(folder):
        for name in BLOCKS:
            add(folder, name)

    lines = [CLAIMS_RUN, DEVICES_RUN, BENCHMARK_RUN, OPTIMIZERS_RUN, OPERATORS_RUN]
    return runs_in_a_copy(tmp_path_factory.mktemp("complete"), change, lines)


@pytest.fixture(scope="module")
def forgotten(tmp_path_factory):
    def change(folder):
        # The claim is added without its test.
        add(folder, REGISTRY)
        # The test is added without its row.
        (folder / STRAY_RUN).write_text(STRAY)
        # The die has no rates.
        add(folder, PEAKS, '"die": "GH100"', '"die": "GX100"')
        # The additions are left out.
        add(folder, BENCHMARK, "2 * ROWS", "ROWS")
        # One buffer of two is left out.
        add(folder, OPTIMIZERS, ', "exp_avg_sq"', "")

    lines = [ALL_CLAIMS, STRAY_RUN, DEVICES_RUN, BENCHMARK_RUN, OPTIMIZERS_RUN, OPERATORS_RUN]
    return runs_in_a_copy(tmp_path_factory.mktemp("forgotten"), change, lines)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (CLAIMS_RUN, r"flops\.gram: A matrix .*\n +holds"),
        (DEVICES_RUN, r"\d+ passed"),
        (BENCHMARK_RUN, r"gram +.*FLOP/s"),
        (OPTIMIZERS_RUN, r"\d+ passed"),
        (OPERATORS_RUN, r"1 passed"),
    ],
)
def test_the_page_names_every_step(complete, line, shown):
    assert complete[line].code == 0, complete[line].output
    assert re.search(shown, complete[line].output), complete[line].output


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (ALL_CLAIMS, 4, r"claims that no test settles: .*\s+'flops\.gram' of .*flops\.toml"),
        (STRAY_RUN, 4, r"add a row, or correct the id\s+'flops\.gramm' in .*test_stray\.py"),
        (DEVICES_RUN, 1, r"Example 100"),
        (BENCHMARK_RUN, 1, r"FLOPs are declared"),
        (OPTIMIZERS_RUN, 1, r"nadamw"),
        (OPERATORS_RUN, 1, r"no formula for .*aten\._pdist_forward"),
    ],
)
def test_a_step_left_out_is_named(forgotten, line, code, message):
    assert forgotten[line].code == code, forgotten[line].output
    assert re.search(message, forgotten[line].output), forgotten[line].output
