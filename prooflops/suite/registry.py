"""The registry of claims: one TOML file per topic, read strictly. Needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.checks import validated_choice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WRITTEN = ("holds", "holds-if", "wrong")
KINDS = ("formula", "number", "behaviour", "example", "exercise", "practice", "spec", "record")

_REQUIRED = ("id", "statement", "sources", "written", "condition", "correction", "needs", "kind")
_OPTIONAL = ("on_record", "note")


class RegistryError(ValueError):
    """A registry file that does not say what it must; the message names the file and the claim."""


@dataclass(frozen=True)
class Source:
    """Where a claim was made: title and place in it, with an address where there is one."""

    key: str
    title: str
    locator: str = ""
    url: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.title, self.locator, self.url) if part)


@dataclass(frozen=True)
class Claim:
    """One row of the registry: what is claimed, by whom, and how the sources state it."""

    id: str
    statement: str
    sources: tuple[str, ...]
    written: str
    condition: str
    correction: str
    needs: tuple[str, ...]
    kind: str
    on_record: bool = False
    note: str = ""

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True)
class Registry:
    """Every claim and every source, by id and key."""

    claims: Mapping[str, Claim]
    sources: Mapping[str, Source]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(claim.topic for claim in self.claims.values()))

    def selected(self, words: Iterable[str]) -> frozenset[str]:
        """The claim ids that `words` name: each word is an id or a topic; any other is refused."""
        ids: set[str] = set()
        for word in words:
            validated_choice("--claim", word, [*self.topics, *self.claims])
            ids.update(claim.id for claim in self.claims.values() if word in (claim.id, claim.topic))
        return frozenset(ids)

    def describe(self, claim_id: str) -> str:
        """What a reader of a failure needs of this claim: statement, condition or correction, sources."""
        claim = self.claims[claim_id]
        lines = [f"{claim.id}: {claim.statement}"]
        if claim.condition:
            lines.append(f"holds if: {claim.condition}")
        if claim.correction:
            lines.append(f"wrong as written; true is: {claim.correction}")
        lines += [f"source: {self.sources[key]}" for key in claim.sources]
        return "\n".join(lines)


def load_registry(folder: Path) -> Registry:
    """The registry under `folder`: one TOML file a topic, `sources.toml` beside them; checked strictly."""
    claims: dict[str, Claim] = {}
    sources: dict[str, Source] = {}
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise RegistryError(f"no registry files (*.toml) in {folder}")
    for file in files:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise RegistryError(f"{file.name}: {error}") from error
        if unknown := table.keys() - {"claim", "source"}:
            raise RegistryError(f"{file.name}: unknown tables {sorted(unknown)}; valid: claim, source")
        for row in table.get("source", []):
            source = _source(file.name, row)
            if source.key in sources:
                raise RegistryError(f"{file.name}: source {source.key!r} is there twice")
            sources[source.key] = source
        for row in table.get("claim", []):
            claim = _claim(file, row)
            if claim.id in claims:
                raise RegistryError(f"{file.name}: claim {claim.id!r} is there twice")
            claims[claim.id] = claim
    for claim in claims.values():
        for key in claim.sources:
            if key not in sources:
                raise RegistryError(f"{claim.id}: unknown source {key!r}; known: {', '.join(sources)}")
    return Registry(claims, sources)


def _source(file: str, row: dict[str, Any]) -> Source:
    try:
        return Source(**row)
    except TypeError as error:
        raise RegistryError(f"{file}: source {row.get('key', row)!r}: {error}") from error


def _claim(file: Path, row: dict[str, Any]) -> Claim:
    name = f"{file.name}: claim {row.get('id', row)!r}"
    if missing := [key for key in _REQUIRED if key not in row]:
        raise RegistryError(f"{name} lacks {', '.join(missing)}")
    if unknown := row.keys() - {*_REQUIRED, *_OPTIONAL}:
        raise RegistryError(f"{name} has unknown keys {sorted(unknown)}; valid: {', '.join((*_REQUIRED, *_OPTIONAL))}")
    claim = Claim(**{**row, "sources": tuple(row["sources"]), "needs": tuple(row["needs"])})
    problems = {
        f"its id must begin with the file's topic, {file.stem}.": claim.topic != file.stem,
        f"written must be one of {', '.join(WRITTEN)}, got {claim.written!r}": claim.written not in WRITTEN,
        f"kind must be one of {', '.join(KINDS)}, got {claim.kind!r}": claim.kind not in KINDS,
        "a holds-if claim, and no other, states its condition": (claim.written == "holds-if") != bool(claim.condition),
        "a wrong claim, and no other, states its correction": (claim.written == "wrong") != bool(claim.correction),
        "it has no statement": not claim.statement.strip(),
        "it has no source": not claim.sources,
    }
    for problem, there in problems.items():
        if there:
            raise RegistryError(f"{name}: {problem}")
    return claim
