"""The folder of the suite's tests, in the clone or an installed copy, and options with paths."""

from pathlib import Path

PACKAGED_TESTS = Path(__file__).with_name("tests")
SUITE_ROOT = PACKAGED_TESTS if PACKAGED_TESTS.is_dir() else Path(__file__).parents[1]
SUITE_PATHS = ("--report", "--reference", "--known-failures")
