"""The published figures that claims rest on: each names a source of the registry."""

from pathlib import Path

from prooflops.suite.registry import load_registry
from test_claims.oracles import published

REGISTRY = load_registry(Path(__file__).resolve().parents[2] / "test_claims" / "registry")


def test_every_published_figure_names_a_source_of_the_registry():
    named = {row.source for row in published.TRAINING.values()}
    named |= {source for law in published.THRESHOLDS.values() for source in law.sources}
    named |= {source for _, source in published.LARGE_RUNS.values()}
    unknown = sorted(named - REGISTRY.sources.keys())
    assert not unknown, f"published figures name the sources {unknown}, which the registry does not have"
