"""The registry of claims: one TOML file per topic, read strictly. Needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from accounting.checks import validated_choice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WRITTEN = ("holds", "holds-if", "wrong")
KINDS = ("formula", "number", "behaviour", "example", "exercise", "practice", "spec", "record")


class RegistryError(ValueError):
    """An invalid registry file; the message names the file and the claim."""


@dataclass(frozen=True)
class Source:
    """The source of a claim: title, place in it, and address if any."""

    key: str
    title: str
    locator: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)

    def __str__(self) -> str:
        return ", ".join(part for part in (self.title, self.locator, self.url) if part)


@dataclass(frozen=True)
class Claim:
    """One row of the registry: a claim, its sources, and their wording."""

    id: str
    statement: str
    sources: tuple[str, ...]
    written: str
    kind: str
    condition: str = ""
    correction: str = ""
    needs: tuple[str, ...] = ()
    on_record: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        validated_choice("written", self.written, WRITTEN)
        validated_choice("kind", self.kind, KINDS)
        conditional, wrong = self.written == "holds-if", self.written == "wrong"
        problems = {
            "a holds-if claim, and no other, states its condition": conditional != bool(self.condition),
            "a wrong claim, and no other, states its correction": wrong != bool(self.correction),
            "it has no statement": not self.statement.strip(),
            "it has no source": not self.sources,
        }
        if found := [problem for problem, there in problems.items() if there]:
            raise ValueError("; ".join(found))

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]

    @property
    def file(self) -> str:
        """The registry file with this claim."""
        return file_of(self.id)


def file_of(claim_id: str) -> str:
    """The registry file for a claim's topic."""
    return f"test_claims/registry/{claim_id.partition('.')[0]}.toml"


def _check_type(name: str, value: object, declared: Any) -> None:
    types = {"str": str, "bool": bool, "tuple[str, ...]": tuple}
    if not isinstance(value, types[declared]) or (isinstance(value, tuple) and any(type(x) is not str for x in value)):
        valid = {str: "a text", bool: "true or false", tuple: "a list of texts"}[types[declared]]
        raise TypeError(f"{name} must be {valid}, got {value!r}")


Row = TypeVar("Row", Claim, Source)


@dataclass(frozen=True)
class Registry:
    """All claims by id, and all sources by key."""

    claims: Mapping[str, Claim]
    sources: Mapping[str, Source]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(claim.topic for claim in self.claims.values()))

    def selected(self, words: Iterable[str]) -> frozenset[str]:
        """The claim ids that `words` name. Each word must be an id or a topic."""
        ids: set[str] = set()
        for word in words:
            topic = word.partition(".")[0]
            if topic not in self.topics:
                validated_choice("the topic of --claim", word, self.topics)
            of_topic = [claim.id for claim in self.claims.values() if claim.topic == topic]
            ids.update(of_topic if word == topic else [validated_choice("--claim", word, of_topic)])
        return frozenset(ids)

    def describe(self, claim_id: str) -> str:
        """A claim as failures print it: statement, condition or correction, sources."""
        claim = self.claims[claim_id]
        lines = [f"{claim.id}: {claim.statement}"]
        if claim.condition:
            lines.append(f"holds if: {claim.condition}")
        if claim.correction:
            lines.append(f"wrong as written; true is: {claim.correction}")
        lines += [f"source: {self.sources[key]}" for key in claim.sources]
        return "\n".join(lines)


def load_registry(folder: Path) -> Registry:
    """The registry in `folder`: one TOML file per topic, `sources.toml` beside them.

    Raises RegistryError for the first invalid row.
    """
    claims: dict[str, Claim] = {}
    sources: dict[str, Source] = {}
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise RegistryError(f"no registry files (*.toml) in {folder}")
    for file in files:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # ValueError: no TOML, no UTF-8
            raise RegistryError(f"{file}: {error}") from error
        if unknown := table.keys() - {"claim", "source"}:
            raise RegistryError(f"{file}: unknown tables {sorted(unknown)}; valid: claim, source")
        for key, rows in table.items():
            if not isinstance(rows, list) or any(not isinstance(row, dict) for row in rows):
                raise RegistryError(f"{file}: each {key} must be a table of its own, under [[{key}]]")
        for row in table.get("source", []):
            source = _read_row(Source, row, f"{file}: source {row.get('key', row)!r}")
            _add(sources, source.key, source, f"{file}: source")
        for row in table.get("claim", []):
            name = f"{file}: claim {row.get('id', row)!r}"
            claim = _read_row(Claim, row, name)
            if claim.topic != file.stem:
                raise RegistryError(f"{name}: its id must begin with the file's topic, {file.stem}.")
            _add(claims, claim.id, claim, f"{file}: claim")
    for claim in claims.values():
        for key in claim.sources:
            try:
                validated_choice("source", key, sources)
            except ValueError as error:
                place = f"{folder / claim.topic}.toml: claim {claim.id!r}"
                raise RegistryError(f"{place}: {error}; a new source gets a [[source]] in sources.toml") from error
    return Registry(claims, sources)


def _read_row(kind: type[Row], row: dict[str, Any], name: str) -> Row:
    """A table of TOML as a Claim or Source."""
    valid = {field.name: field.default is MISSING for field in fields(kind)}
    if missing := [key for key, required in valid.items() if required and key not in row]:
        required = ", ".join(key for key, must in valid.items() if must)
        raise RegistryError(f"{name} lacks {', '.join(missing)}; each has {required}")
    if unknown := row.keys() - valid.keys():
        raise RegistryError(f"{name} has unknown keys {sorted(unknown)}; valid: {', '.join(valid)}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise RegistryError(f"{name}: {error}") from error


def _add(rows: dict[str, Row], key: str, row: Row, name: str) -> None:
    if key in rows:
        raise RegistryError(f"{name} {key!r} is there twice")
    rows[key] = row
