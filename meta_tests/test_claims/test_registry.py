"""The registry as a public interface: no id is ever lost, few are settled by record alone, each has a true source."""

import re
from collections import Counter

import pytest
import torch

from meta_tests.conftest import ROOT, recorded
from prooflops.machine import device as machine
from prooflops.suite.registry import Claim, load_registry

REGISTRY = load_registry(ROOT / "test_claims" / "registry")
PUBLISHED = {
    f"{topic}.{slug.rstrip('*')}": slug.endswith("*")
    for topic, slugs in recorded("claims.txt").items()
    for slug in slugs.split()
}
ON_RECORD = {claim.id for claim in REGISTRY.claims.values() if claim.on_record}


def test_every_published_id_is_still_there() -> None:
    missing = sorted(PUBLISHED.keys() - REGISTRY.claims.keys())
    assert not missing, (
        f"published claims that the registry no longer has: {', '.join(missing)}; "
        "put their rows back: histories are compared by these ids, so a claim is corrected but never removed or renamed"
    )


def test_only_facts_that_no_machine_can_settle_are_on_record() -> None:
    """Publication dates, thresholds of laws, conventions, opinions."""
    settled_before = sorted(claim for claim in ON_RECORD if not PUBLISHED.get(claim, True))
    assert not settled_before, f"a machine could settle these claims so far, now they are on record: {settled_before}"
    assert len(ON_RECORD) <= len(REGISTRY.claims) / 10, f"{len(ON_RECORD)} claims on record are more than a tenth"


def test_the_registry_has_as_many_claims_of_each_kind_as_the_readme_says() -> None:
    written = Counter(claim.written for claim in REGISTRY.claims.values())
    found = re.search(
        r"over (\d+) claims with their sources, over (\d+) of them wrong as they circulate and over (\d+) only if",
        " ".join((ROOT / "README.md").read_text().split()),
    )
    assert found, "the README should say: over N claims with their sources, over N of them wrong ... and over N only if"
    for said, there in zip(found.groups(), (len(REGISTRY.claims), written["wrong"], written["holds-if"]), strict=True):
        assert int(said) < there, f"the README says over {said} where the registry has {there}"


@pytest.mark.parametrize("claim", REGISTRY.claims.values(), ids=lambda claim: claim.id)
def test_a_row_reads_as_a_sentence_and_its_needs_are_known(claim: Claim) -> None:
    assert claim.statement.rstrip('")').endswith((".", "!", "?")), f"{claim.statement!r} is no sentence"
    assert not claim.condition.endswith("."), f"{claim.condition!r} follows 'holds if' and needs no full stop"
    for need in claim.needs:
        machine.unmet(need, torch.device("cpu"))
