"""The registry as a public interface: no id is lost, few are on record, each has a source."""

import re

import pytest
import torch

from meta_tests.conftest import ROOT, recorded
from prooflops.machine import device as machine
from prooflops.suite.collection import quoting
from prooflops.suite.registry import PLACE_UNKNOWN, Citation, load_registry
from test_claims.oracles import published

REGISTRY = load_registry(ROOT / "test_claims" / "registry")
PUBLISHED = {
    f"{topic}.{slug.rstrip('*')}": slug.endswith("*")
    for topic, slugs in recorded("claims.txt").items()
    for slug in slugs.split()
}
MOST_WORDS = 25
# Sources whose text, or a part of it, was not found again.
NOT_AT_HAND = {"cs336-2025-transcript", "cs336-2026-einops", "cs336-summary", "google-bfloat16"}
ON_RECORD = {claim.id for claim in REGISTRY.claims.values() if claim.on_record}


def test_every_published_id_is_still_there():
    missing = sorted(PUBLISHED.keys() - REGISTRY.claims.keys())
    assert not missing, (
        f"published claims that the registry no longer has: {', '.join(missing)}; "
        "put their rows back: histories are compared by these ids, so a claim is corrected, never "
        "removed or renamed"
    )


def test_only_facts_that_no_machine_can_settle_are_on_record():
    """Publication dates, thresholds of laws, conventions, opinions."""
    settled_before = sorted(claim for claim in ON_RECORD if not PUBLISHED.get(claim, True))
    assert not settled_before, (
        f"a machine could settle these claims so far, now they are on record: {settled_before}"
    )
    assert len(ON_RECORD) <= len(REGISTRY.claims) / 10, (
        f"{len(ON_RECORD)} claims on record are more than a tenth"
    )


def test_each_claim_is_quoted_where_the_option_claim_looks_for_it():
    quoted = "".join(map(quoting, (ROOT / "test_claims").glob("test_*.py")))
    unseen = [claim for claim in REGISTRY.claims.keys() - ON_RECORD if f'"{claim}"' not in quoted]
    assert not unseen, "--claim imports no file for them: write their whole ids in their tests"


def test_every_published_figure_names_a_source_of_the_registry():
    named = {row.source for row in published.TRAINING.values()} | {
        source for _, source in published.LARGE_RUNS.values()
    }
    named |= {source for law in published.THRESHOLDS.values() for source in law.sources}
    unknown = sorted(named - REGISTRY.sources.keys())
    assert not unknown, (
        f"published figures name the sources {unknown}, which the registry does not have"
    )


@pytest.mark.parametrize("claim", REGISTRY.claims.values(), ids=lambda claim: claim.id)
def test_a_row_reads_as_a_sentence_and_its_needs_are_known(claim):
    for text in filter(None, (claim.statement, claim.correction, claim.note)):
        assert text.rstrip('")').endswith((".", "!", "?")), f"{text!r} is no sentence"
    opening = re.match(
        r"(It|That|This|Those|These|They|The same|At (that|those))\b", claim.statement
    )
    assert not opening, f"{claim.statement!r} is not readable alone: name what it speaks of"
    assert not re.search(r"[;:]|\.$", claim.condition), (
        f"{claim.condition!r} follows 'holds if': make it one clause, the rest is a note"
    )
    said = f"{claim.statement} holds if {claim.condition}. {claim.correction} {claim.note}"
    longest = max(re.split(r"(?<=[.?!]) ", said), key=lambda sentence: len(sentence.split()))
    assert len(longest.split()) <= MOST_WORDS, f"more than {MOST_WORDS} words: {longest}"
    for need in claim.needs:
        machine.unmet(need, torch.device("cpu"))


def test_every_place_is_cited_and_every_text_at_hand_by_place():
    cited = {each for claim in REGISTRY.claims.values() for each in claim.citations}
    without_place = {each.source for each in cited if each.place == PLACE_UNKNOWN}
    assert without_place <= NOT_AT_HAND, "their texts are at hand: cite them by heading or quote"
    for source in REGISTRY.sources.values():
        unused = [place for place in source.places if Citation(source.key, place) not in cited]
        assert not unused, f"no claim cites these places of {source.key}, take them out: {unused}"
