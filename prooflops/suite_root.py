"""Where the suite's own tests lie: in the clone, or beside this file in an installed copy."""

from pathlib import Path

PACKAGED_TESTS = Path(__file__).with_name("tests")
SUITE_ROOT = PACKAGED_TESTS if PACKAGED_TESTS.is_dir() else Path(__file__).parents[1]
