"""Lists the claims in the terminal for `--claims`, and runs no test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from prooflops.suite.registry import Registry
from prooflops_gate.console.tables import many
from prooflops_gate.page.terminal import width_of, wrapped


def run(registry: Registry, words: str, say: Callable[[str], None] = print) -> int:
    """Prints the claims that have these words. Returns 0 even if there are none."""
    width = width_of(isatty=sys.stdout.isatty())
    found = registry.with_words(words)
    for claim in found:
        for line in entry(claim.id, claim.statement, claim.verdict_as_written, width):
            say(line)
    for line in wrapped(_summary(registry, words, len(found)), width):
        say(line)
    return 0


def entry(claim_id: str, statement: str, verdict: str, width: int | None) -> Iterator[str]:
    """A claim and its verdict below it."""
    yield from wrapped(f"{claim_id}: {statement}", width)
    yield from wrapped(f"    {verdict}", width, "    ")


def _summary(registry: Registry, words: str, found: int) -> str:
    of_all = many(len(registry.claims), "claim")
    if not words:
        return f"{of_all}; docs/claims lists them with their sources and tests"
    if found:
        return f"{found} of {of_all} with {words!r}; run them with --claim=ID"
    return f"none of {of_all} has {words!r}"
