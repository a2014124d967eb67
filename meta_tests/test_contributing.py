"""Each addition that CONTRIBUTING.md describes works in a copy."""

import re
import shutil

import pytest

from meta_tests.conftest import PACKAGES, ROOT, run_pytest_for_each

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# The first line of a block names its file, and the table into which a row goes.
BLOCKS = re.findall(r"```\w+\n# ([\w/.-]+)(?:, in (\w+))?\n(.*?)```", PAGE, re.DOTALL)

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

OPERATORS_RUN = "meta_tests/test_distances.py"
# The arguments of each run of pytest, and what it prints.
RUNS = {
    "test_claims/test_flops.py --claim flops.gram --quick -v": r"flops\.gram: A matrix .*\n +holds",
    "meta_tests/accounting/devices -q": r"\d+ passed",
    "bench/test_gram.py --quick": r"gram +.*FLOP/s",
    "meta_tests/accounting/optimizers -q -k nadamw": r"\d+ passed",
    OPERATORS_RUN: "1 passed",
}


def add(folder, name, table, text):
    """Adds a block of CONTRIBUTING.md to the file, or to the table in it, that the block names."""
    file = folder / name
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if table:
        line = re.search(rf"^\W*{table}\b.*[({{[]\n", before, re.MULTILINE)
        file.write_text(before[: line.end()] + text + before[line.end() :], encoding="utf-8")
    else:
        file.write_text(f"{before}\n\n{text}" if before else text, encoding="utf-8")


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The runs of a copy of the repository that has all of them."""
    folder = tmp_path_factory.mktemp("complete")
    for name in PACKAGES:
        # Compiled modules too.
        shutil.copytree(ROOT / name, folder / name)
    for name in ("conftest.py", "pytest.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / OPERATORS_RUN).write_text(DISTANCES)
    for block in BLOCKS:
        add(folder, *block)
    runs = run_pytest_for_each(folder, [f"-p no:cacheprovider {line}" for line in RUNS])
    return dict(zip(RUNS, runs.values(), strict=True))


@pytest.mark.parametrize("line", RUNS)
def test_the_page_names_every_step(complete, line):
    assert complete[line].code == 0, complete[line].output
    assert re.search(RUNS[line], complete[line].output), complete[line].output
