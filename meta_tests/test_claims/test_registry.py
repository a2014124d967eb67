"""The registry as a public interface: no id is ever lost, few are settled by record alone, each has a true source."""

from collections import Counter

import pytest
import torch

from meta_tests.conftest import ROOT
from prooflops.machine import device as devices
from prooflops.suite.registry import Claim, load_registry

REGISTRY = load_registry(ROOT / "test_claims" / "registry")
PUBLISHED = (ROOT / "meta_tests" / "recorded" / "claims.txt").read_text().split()

# Publication dates, thresholds of laws, conventions, opinions: what no machine can settle.
MAY_BE_ON_RECORD = {
    "dtype.bf16-origin",
    "dtype.fp8-origin",
    "dtype.fp4-nemotron",
    "dtype.int4-speed",
    "optim.history",
    "optim.adam-for-adagrad",
    "amp.origin-2017",
    "amp.fp8-training",
    "mfu.term-for-kernel",
    "napkin.ignores",
    "spec.a100-312",
    "spec.h100-fp32-67",
    "spec.h100-80gb",
    "spec.gpt4",
    "spec.gpt3-323",
    "spec.us-eo",
    "spec.eu-ai-act",
    "spec.sparsity-unused",
    "flops.add-equals-mul",
    "roof.rough",
}


def test_every_published_id_is_still_there() -> None:
    assert len(PUBLISHED) == len(set(PUBLISHED)) == 303
    assert set(PUBLISHED) == set(REGISTRY.claims)


def test_only_facts_that_no_machine_can_settle_are_on_record() -> None:
    assert {claim.id for claim in REGISTRY.claims.values() if claim.on_record} <= MAY_BE_ON_RECORD


def test_as_many_claims_circulate_wrong_and_without_their_condition_as_the_readme_says() -> None:
    written = Counter(claim.written for claim in REGISTRY.claims.values())
    readme = (ROOT / "README.md").read_text()
    said = (f"{len(REGISTRY.claims)} claims", f"{written['wrong']} of them wrong", f"{written['holds-if']} only if")
    for words in said:
        assert words in readme, f"the README should say {words!r}"


@pytest.mark.parametrize("claim", REGISTRY.claims.values(), ids=lambda claim: claim.id)
def test_a_row_reads_as_a_sentence_and_its_needs_are_known(claim: Claim) -> None:
    assert claim.statement.rstrip('")').endswith((".", "!", "?")), f"{claim.statement!r} is no sentence"
    assert not claim.condition.endswith("."), f"{claim.condition!r} follows 'holds if' and needs no full stop"
    for need in claim.needs:
        devices.unmet(need, torch.device("cpu"))
