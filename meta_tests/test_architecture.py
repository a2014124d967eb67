"""The ways of docs/architecture.md name files that are there."""

import re

import pytest

from meta_tests.conftest import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WAYS = dict(re.findall(r"## The way of a (\w+)[^\n]*\n.*?```\n(.*?)```", PAGE, re.DOTALL))


def files_of(way):
    return [line.split()[0] for line in WAYS[way].splitlines()]


@pytest.mark.parametrize("way", ["claim", "benchmark"])
def test_a_way_names_files_that_are_there(way):
    absent = [file for file in files_of(way) if not (ROOT / file).is_file()]
    assert not absent, f"the way of a {way} names {absent}, which are not there"
