"""Writes `docs/claims` from the registry: pages of topics and sources, and an index.

A page's links to tests come from a collection of all of them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from prooflops.suite.collection import claims_of
from prooflops.suite.registry import PLACE_UNKNOWN, Claim, Registry, Source, load_registry
from prooflops_gate.console.tables import many, markdown_table
from prooflops_gate.history.records import write_atomically
from prooflops_gate.page.escape import markdown_text

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = ROOT / "test_claims" / "registry"
FOLDER = ROOT / "docs" / "claims"
GENERATED = "<!-- Written by python -m prooflops.suite.claim_pages from test_claims/registry. -->"
# The page of the documents that support a claim and have no page of their own.
DOCUMENTS = "documents"
INDEX = """
Each claim is listed once, as commonly stated, with the verdict of its tests where all pass:

- **holds**, or **holds if** the condition beside it is met;
- **corrected**: it is wrong as commonly stated, or a slip of one source; the true statement
  follows;
- *on record*: it is a sourced fact that no machine can settle.

A place in a source is unknown if the text was not at hand. Each row of `test_spellings.toml`
lists ways in which torch says one thing.

Start with [common claims that are wrong, corrected](corrected.md). `pytest --claims=WORD` searches
all claims in the terminal, and `pytest --claim=ID` runs the tests of one.
[depth.md](depth.md) says how deeply the claims are tested.
[The lecture's code](../reference/lecture-code.md) has a verdict for each block.
"""
CLAIMS_HEAD = ["claim", "statement", "verdict"]
# The names of test functions by the path of their file in the repository.
Tests = Mapping[str, Iterable[str]]


def main() -> None:
    """Writes all pages into the folder. Pages of topics and sources that are gone are removed."""
    parser = argparse.ArgumentParser(
        "python -m prooflops.suite.claim_pages",
        description="Writes a page for each topic and source of the claims.",
    )
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="default: docs/claims")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    written = pages(load_registry(REGISTRY), tests_of_claims())
    for file in folder.glob("*.md"):
        if file.name not in written and file.read_text(encoding="utf-8").startswith(GENERATED):
            file.unlink()
    for name, lines in written.items():
        write_atomically(folder / name, "\n".join([GENERATED, *lines, ""]))


class Collector:
    """A plugin that keeps the test functions of each claim."""

    def __init__(self) -> None:
        self.tests: defaultdict[str, dict[str, dict[str, None]]] = defaultdict(dict)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            name = getattr(item, "originalname", item.name)
            file = item.path.relative_to(ROOT).as_posix()
            for claim in claims_of(item):
                self.tests[claim].setdefault(file, {})[name] = None


def tests_of_claims() -> Mapping[str, Tests]:
    """The test functions of each claim by their files. Raises RuntimeError if one is not read."""
    # An option there could leave tests out.
    os.environ.pop("PYTEST_ADDOPTS", None)
    collector, printed = Collector(), io.StringIO()
    folders = [str(ROOT / name) for name in ("test_claims", "bench")]
    options = ["-c", str(ROOT / "pytest.ini"), "-p", "no:cacheprovider", "--collect-only", "-q"]
    with contextlib.redirect_stdout(printed):
        code = pytest.main([*options, *folders], plugins=[collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect the tests of claims:\n{printed.getvalue()}")
    return collector.tests


def pages(registry: Registry, tests: Mapping[str, Tests]) -> dict[str, list[str]]:
    """The lines of each page by its file name."""
    written = {
        "README.md": [*index(registry)],
        "corrected.md": [*corrected(registry)],
        f"{DOCUMENTS}.md": [*documents(registry)],
    }
    for key in registry.accounts:
        source = registry.sources[key]
        written[f"{key}.md"] = [f"# {markdown_text(source.title)}", *citing(registry, source)]
    for topic in registry.topics:
        about = f"[Claims](README.md) about {subjects(topic)}."
        written[f"{topic}.md"] = [f"# {topic}", "", about, ""]
        for claim in of_topic(registry, topic):
            written[f"{topic}.md"] += entry(registry, claim, tests.get(claim.id, {}))
    return written


def index(registry: Registry) -> Iterator[str]:
    yield from ("# All claims", INDEX)
    yield from ("These pages list the claims in the order of each source of the lecture:", "")
    for key in registry.accounts:
        title = markdown_text(registry.sources[key].title)
        number = len({claim.id for claim, _ in claims_citing(registry, key)})
        yield f"- [{title}]({key}.md): {many(number, 'claim')}"
    yield from (f"- [All other documents]({DOCUMENTS}.md) that claims cite", "")
    topics = [[f"[{topic}](#{topic})", subjects(topic)] for topic in registry.topics]
    yield from (*markdown_table([["topic", "claims about"], *topics]), "")
    for topic in registry.topics:
        rows = [CLAIMS_HEAD]
        for claim in of_topic(registry, topic):
            word, _, on_record = verdict(claim)
            rows.append([link(claim), markdown_text(claim.statement), f"{word}{on_record}"])
        yield from (f"## [{topic}]({topic}.md)", "", *markdown_table(rows), "")


def corrected(registry: Registry) -> Iterator[str]:
    """The claims that are wrong as commonly stated, then the slips of one account."""
    yield "# Common claims that are wrong, corrected"
    head = ["commonly stated", "true", "claim, with sources and tests"]
    for written, title in (("wrong", []), ("slip", ["## Slips of one account", ""])):
        rows = [
            [markdown_text(claim.statement), markdown_text(claim.correction), link(claim)]
            for claim in registry.claims.values()
            if claim.written == written
        ]
        yield from ("", *title, *markdown_table([head, *rows]))


def documents(registry: Registry) -> Iterator[str]:
    """The sources that have no page of their own, in the order of their titles."""
    yield "# Other documents"
    others = [source for key, source in registry.sources.items() if key not in registry.accounts]
    for source in sorted(others, key=lambda source: source.title.lower()):
        yield from ("", f"## `{source.key}`", "", markdown_text(source.title))
        yield from citing(registry, source)


def entry(registry: Registry, claim: Claim, tests: Tests) -> Iterator[str]:
    """All that the registry says of a claim, and its tests."""
    yield from (f"## `{claim.id}`", "", linked(registry, claim.statement), "")
    word, rest, on_record = verdict(claim)
    yield f"- {word}{linked(registry, rest)}{on_record}"
    if claim.note:
        yield f"- note: {linked(registry, claim.note)}"
    if claim.needs:
        yield f"- needs: {', '.join(f'`{need}`' for need in claim.needs)}"
    for citation in claim.citations:
        source = registry.sources[citation.source]
        is_account = source.key in registry.accounts
        page = f"{source.key}.md" if is_account else f"{DOCUMENTS}.md#{anchor(source.key)}"
        place = markdown_text(citation.place)
        yield f"- source: [{markdown_text(source.title)}]({page}), {place}"
    for file, names in tests.items():
        functions = ", ".join(f"`{name}`" for name in names)
        yield f"- tested in [{Path(file).name}](../../{file}): {functions}"
    yield ""


def citing(registry: Registry, source: Source) -> Iterator[str]:
    """The address of a source, and the claims that cite it in its own order."""
    if source.url:
        yield from ("", f"<{source.url}>")
    claims: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim, place in claims_citing(registry, source.key):
        claims[place].append(claim)
    rows = [["place", *CLAIMS_HEAD]]
    for place in (*source.places, PLACE_UNKNOWN):
        for number, claim in enumerate(claims[place]):
            # Named once, at its first claim.
            rows.append(["" if number else markdown_text(place), *row(claim)])
    yield from ("", *markdown_table(rows))


def claims_citing(registry: Registry, key: str) -> Iterator[tuple[Claim, str]]:
    """The claims that cite a source, each with a place in it."""
    for claim in registry.claims.values():
        for citation in claim.citations:
            if citation.source == key:
                yield claim, citation.place


def row(claim: Claim) -> list[str]:
    word, rest, on_record = verdict(claim)
    cell = f"{word}{markdown_text(rest)}{on_record}"
    return [link(claim), markdown_text(claim.statement), cell]


def verdict(claim: Claim) -> tuple[str, str, str]:
    """The word of the verdict as written, its condition or correction, and whether on record."""
    rest = f": {claim.correction}" if claim.correction else f" {claim.condition}".rstrip()
    word = claim.verdict_as_written.removesuffix(rest)
    on_record = " (*on record*)" if claim.on_record else ""
    return f"**{word}**", rest, on_record


def linked(registry: Registry, text: str) -> str:
    """A text in which the ids of claims are links."""

    def link_of(found: re.Match[str]) -> str:
        claim = registry.claims.get(found[0])
        return link(claim) if claim else found[0]

    return re.sub(r"\b[a-z]+\.[\w-]+\b", link_of, markdown_text(text))


def link(claim: Claim) -> str:
    return f"[{claim.id}]({claim.topic}.md#{anchor(claim.id)})"


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading that is one word.

    >>> anchor("grad.backward-4BN")
    'gradbackward-4bn'
    """
    return heading.lower().replace(".", "")


def subjects(topic: str) -> str:
    """The subjects of a topic, as its test files state them."""
    folder = REGISTRY.parent
    files = [folder / f"test_{topic}.py", *sorted(folder.glob(f"test_{topic}_*.py"))]
    found = []
    for file in files:
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or topic
        line = docstring.partition("\n")[0]
        found.append(line.removeprefix("Claims about ").removesuffix("."))
    return "; ".join(found)


def of_topic(registry: Registry, topic: str) -> list[Claim]:
    return [claim for claim in registry.claims.values() if claim.topic == topic]


if __name__ == "__main__":
    main()
