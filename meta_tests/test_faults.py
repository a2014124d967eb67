"""Each planted fault names checks that there are, and each claim has a fault."""

import importlib
import re

from meta_tests.conftest import ROOT
from meta_tests.faults import FAULTS, TOPICS
from prooflops.suite.registry import load_registry

for topic in TOPICS:
    importlib.import_module(f"meta_tests.faults.{topic}")


def test_each_fault_names_real_checks():
    named = {check for planted in FAULTS for check in planted.noticed_by}
    tests = {check.partition("[")[0] for check in named if "::" in check}
    claims = {check for check in named if "::" not in check}
    unknown = claims - load_registry(ROOT / "test_claims" / "registry").claims.keys()
    assert not unknown, f"faults name claims that the registry lacks: {sorted(unknown)}"
    gone = [
        test
        for file, _, test in (node.partition("::") for node in tests)
        if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not gone, f"faults name tests that there are not: {gone}"


def test_every_claim_has_a_fault_that_turns_it_red_or_is_listed():
    page = (ROOT / "docs" / "claims" / "depth.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE))
    named = {check for planted in FAULTS for check in planted.noticed_by}
    unseen = [
        claim.id
        for claim in load_registry(ROOT / "test_claims" / "registry").claims.values()
        if not (claim.on_record or claim.written == "slip" or claim.id in listed | named)
    ]
    assert not unseen, f"no fault names {unseen}, and docs/claims/depth.md does not list them"
