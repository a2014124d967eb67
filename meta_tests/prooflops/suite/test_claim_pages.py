"""The pages of the claims are made of the registry and its tests."""

import subprocess
import sys

from meta_tests.conftest import ROOT


def texts_of(folder):
    return {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")}


def test_the_pages_of_the_claims_are_those_of_the_registry_and_its_tests(tmp_path):
    command = [sys.executable, "-m", "prooflops.suite.claim_pages", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    written, kept = texts_of(tmp_path), texts_of(ROOT / "docs" / "claims")
    # Written by hand.
    del kept["depth.md"]
    stale = sorted(name for name in {*written, *kept} if written.get(name) != kept.get(name))
    assert not stale, f"write {stale} anew: python -m prooflops.suite.claim_pages"
