"""The registry of claims: one TOML file per topic, read strictly. Needs no torch."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from accounting.checks import validated_choice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# A slip is of one account, such as a misheard name.
WRITTEN = ("holds", "holds-if", "wrong", "slip")
KINDS = ("formula", "number", "behaviour", "example", "exercise", "practice", "spec", "record")

# A place in a source is a heading, `§ Dtypes`, a quote, `“two times”`, or one of these: `table 3`.
NUMBERED = ("table", "figure", "equation", "theorem", "algorithm", "page", "slide", "article")
MOST_QUOTED_WORDS = 5
# The place of a citation whose statement was not found again in the source.
PLACE_UNKNOWN = "(place unknown)"
# An error names no more claims than these.
MOST_NAMED = 20
# A search is typed on a keyboard.
SPELLING = str.maketrans({"·": "", ",": "", "×": "x"})

TYPES: dict[Any, type] = {"str": str, "bool": bool, "tuple[str, ...]": tuple}


class RegistryError(ValueError):
    """An invalid registry file; the message names the file and the claim."""


class TypedRow:
    """A row whose fields have the types that they declare."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value: Any = getattr(self, field.name)
            texts = value if isinstance(value, tuple) else ()
            if type(value) is not TYPES[field.type] or not all(type(x) is str for x in texts):
                raise TypeError(f"{field.name} must be of type {field.type}, got {value!r}")


@dataclass(frozen=True)
class Source(TypedRow):
    """A document that states claims: title, address if any, and the places cited in its order."""

    key: str
    title: str
    url: str = ""
    places: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for place in self.places:
            _check_place(place)
        if len(set(self.places)) < len(self.places):
            raise ValueError("it lists a place twice")

    def cited_at(self, place: str) -> str:
        """This source as a reader needs it: title, place in it, address."""
        return ", ".join(part for part in (self.title, place, self.url) if part)


@dataclass(frozen=True)
class Citation:
    """The key of a source and a place in it, written `key § heading` or `key “quote”`."""

    source: str
    place: str

    @classmethod
    def parsed(cls, text: str) -> Citation:
        key, _, place = text.partition(" ")
        return cls(key, place)


def _check_place(place: str) -> None:
    form = re.fullmatch(rf"(?:§|{'|'.join(NUMBERED)}) \S.*|“([^“”]+)”", place)
    if not form:
        raise ValueError(
            f"place {place!r} must be a quote in “ ”, or one of §, {', '.join(NUMBERED)} and its "
            "name or number"
        )
    words = len((form[1] or "").split())
    if words > MOST_QUOTED_WORDS:
        raise ValueError(f"the quote {place} has {words} words; at most {MOST_QUOTED_WORDS} do")


@dataclass(frozen=True)
class Claim(TypedRow):
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
        super().__post_init__()
        validated_choice("written", self.written, WRITTEN)
        validated_choice("kind", self.kind, KINDS)
        if (self.written == "holds-if") != bool(self.condition):
            raise ValueError("a claim has a condition if it holds-if, and only then")
        if (self.written in ("wrong", "slip")) != bool(self.correction):
            raise ValueError("a claim has a correction if it is wrong or a slip, and only then")
        if not self.statement.strip() or not self.sources:
            raise ValueError("it has no statement, or no source")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError("it cites a place twice")

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]

    @property
    def citations(self) -> tuple[Citation, ...]:
        return tuple(map(Citation.parsed, self.sources))

    @property
    def verdict_as_written(self) -> str:
        """The verdict where all tests of the claim pass, with its condition or correction."""
        if self.written == "holds-if":
            return f"holds if {self.condition}"
        return f"corrected: {self.correction}" if self.correction else "holds"

    @property
    def words(self) -> tuple[str, ...]:
        """The row's words as `searched` writes them."""
        return searched(
            self.id, self.topic, self.statement, self.condition, self.correction, self.note
        )

    def has_words(self, text: str) -> bool:
        """True if each word of `text` occurs in this row, perhaps within a longer word."""
        row = " ".join(self.words)
        return all(word in row for word in searched(text))


def searched(*texts: str) -> tuple[str, ...]:
    """Words in the one spelling in which claims are searched.

    >>> searched("2·m·k·n FLOPs", "1,024 × 512")
    ('2mkn', 'flops', '1024', 'x', '512')
    """
    return tuple(" ".join(texts).lower().translate(SPELLING).split())


def file_of(claim_id: str) -> str:
    """The registry file for a claim's topic."""
    return f"test_claims/registry/{claim_id.partition('.')[0]}.toml"


AnyRow = TypeVar("AnyRow", Claim, Source)


@dataclass(frozen=True)
class Registry:
    """All claims by id, and all sources by key.

    accounts    the keys of the sources in sources.toml, whose claims this suite settles
    """

    claims: Mapping[str, Claim]
    sources: Mapping[str, Source]
    accounts: Sequence[str] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(claim.topic for claim in self.claims.values()))

    def selected(self, words: Iterable[str]) -> frozenset[str]:
        """The claim ids that `words` name. Each word must be an id or a topic."""
        ids: set[str] = set()
        for word in words:
            found = [claim.id for claim in self.claims.values() if word in (claim.id, claim.topic)]
            if not found:
                raise self._unknown(word)
            ids.update(found)
        return frozenset(ids)

    def with_words(self, text: str) -> list[Claim]:
        """The claims whose rows have each word of `text`."""
        return [claim for claim in self.claims.values() if claim.has_words(text)]

    def _unknown(self, word: str) -> ValueError:
        """Says that --claim names neither a claim nor a topic, and which claims have the word."""
        found = [claim.id for claim in self.with_words(word)] if word.strip() else []
        hint = ""
        if found:
            more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            hint = (
                f"; claims with this word: {', '.join(found[:MOST_NAMED])}{more}; "
                f"to read them: pytest --claims={shlex.quote(word)}"
            )
        return ValueError(
            f"--claim={word} is neither a claim's id nor a topic ({', '.join(self.topics)}){hint}"
        )

    def describe(self, claim_id: str) -> str:
        """A claim as failures print it: statement, verdict as written, sources."""
        claim = self.claims[claim_id]
        cited = (self.sources[each.source].cited_at(each.place) for each in claim.citations)
        lines = [
            f"{claim.id}: {claim.statement}",
            claim.verdict_as_written,
            *(f"source: {each}" for each in cited),
        ]
        return "\n".join(lines)


def load_registry(folder: Path) -> Registry:
    """The registry in `folder`: one TOML file per topic, `sources.toml` beside them.

    Raises RegistryError for the first invalid row.
    """
    claims: dict[str, Claim] = {}
    sources: dict[str, Source] = {}
    accounts: list[str] = []
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise RegistryError(f"no registry files (*.toml) in {folder}")
    for file in files:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            for source in (_row(Source, row) for row in table.pop("source", [])):
                _add(sources, source.key, source)
                if file.stem == "sources":
                    accounts.append(source.key)
            for claim in (_row(Claim, row) for row in table.pop("claim", [])):
                if claim.topic != file.stem:
                    raise ValueError(
                        f"claim {claim.id!r}: its id must begin with the file's topic, {file.stem}."
                    )
                _add(claims, claim.id, claim)
            if table:
                raise ValueError(f"unknown tables {sorted(table)}; valid: [[claim]], [[source]]")
        except (OSError, ValueError, TypeError) as error:
            # ValueError: no TOML, no UTF-8.
            raise RegistryError(f"{file}: {error}") from error
    for claim in claims.values():
        for citation in claim.citations:
            try:
                _check_citation(citation, sources)
            except ValueError as error:
                raise RegistryError(
                    f"{folder / claim.topic}.toml: claim {claim.id!r}: {error}"
                ) from error
    return Registry(claims, sources, accounts)


def _check_citation(citation: Citation, sources: Mapping[str, Source]) -> None:
    if citation.source not in sources:
        raise ValueError(
            f"unknown source {citation.source!r}; a new source gets a [[source]] in sources.toml"
        )
    if citation.place not in (*sources[citation.source].places, PLACE_UNKNOWN):
        raise ValueError(
            f"{citation.source} lists no place {citation.place!r} [a citation names one of the "
            f"places of its [[source]], or {PLACE_UNKNOWN}]"
        )


def _row(kind: type[AnyRow], row: Mapping[str, Any]) -> AnyRow:
    """A table of TOML as a Claim or Source. Raises ValueError."""
    try:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        return kind(**values)
    except (TypeError, ValueError) as error:
        name = row.get("id", row.get("key", row))
        valid = ", ".join(field.name for field in fields(kind))
        table = kind.__name__.lower()
        raise ValueError(
            f"{table} {name!r}: {error} [a table under [[{table}]], of {valid}]"
        ) from error


def _add(rows: dict[str, AnyRow], key: str, row: AnyRow) -> None:
    if key in rows:
        raise ValueError(f"{type(row).__name__.lower()} {key!r} is defined twice")
    rows[key] = row
