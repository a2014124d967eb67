"""The page about the instruments' domains names tests that exist."""

import re

from meta_tests.conftest import ROOT

PAGE = ROOT / "docs" / "instruments.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    missing = [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert named
    assert not missing, f"docs/instruments.md names tests that do not exist: {missing}"
